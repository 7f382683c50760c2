"""The plan command, as a user calls it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hiddenstream.contracts.errors import RunDirectoryError
from hiddenstream.run_directory.paths import RunPaths, producer_lock
from producer.plan_command import main


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what a command does to this process's logging."""
    loggers = [logging.getLogger(name) for name in (None, "hiddenstream", "producer", "gpu_worker", "sink")]
    levels, handlers = [logger.level for logger in loggers], loggers[0].handlers[:]
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def words(tmp_path: Path, bare_model_folder: Path) -> list[str]:
    """A command line that plans three samples out of six rows."""
    rows = [
        {"id": "a", "input_ids": [1] * 4, "loss_mask": [1] * 4},
        {"id": "b", "input_ids": [1] * 9},
        {"id": "c", "input_ids": [1] * 10},
        {"id": "a", "input_ids": [1] * 4, "loss_mask": [1] * 4},
        {"id": "d", "input_ids": [999]},
        {"id": "e", "input_ids": []},
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run, model, data = str(tmp_path / "run"), str(bare_model_folder), str(tmp_path / "data.jsonl")
    limits = ["--max-length", "9", "--over-long", "truncate", "--token-budget", "18"]
    return [run, "--model", model, "--data", data, "--layers", "1,2,3", *limits]


def test_a_plan_without_a_rejected_row_is_reported(words, tmp_path, capsys):
    """Nothing to give an example of is no error."""
    (tmp_path / "data.jsonl").write_text('{"id": "a", "input_ids": [1, 2]}\n')

    assert 0 == main([*words, "--json"])

    report = json.loads(capsys.readouterr().out)
    assert (1, [], {}) == (report["samples"], report["rejection_examples"], report["rejected"])


def test_figures_are_printed_as_json(words, capsys):
    """--json prints every figure of the plan, and nothing else, to standard output."""
    assert 0 == main([*words, "--json"])

    report = json.loads(capsys.readouterr().out)
    assert {
        "run": "run",
        "input_rows": 6,
        "samples": 3,
        "tokens": 22,
        "shards": 2,
        "state_bytes": 22 * 3 * 16 * 2,
        "longest_sample_tokens": 9,
        "truncated": 1,
        "without_mask": 2,
        "merged": 1,
        "rejected": {"token_out_of_range": 1, "no_tokens": 1},
    }.items() <= report.items()
    assert 0 <= report["padding_share"] < 1
    assert report["free_bytes"] > 0
    assert ["token_out_of_range", "no_tokens"] == [example["reason"] for example in report["rejection_examples"]]


def test_table_is_readable(words, capsys):
    """Without --json the same figures are a table, with examples of rejected rows."""
    main(words)

    text = capsys.readouterr().out
    assert "samples              3\n" in text
    assert "  no_tokens          1\n" in text
    assert "data.jsonl:5: token_out_of_range: token id 999 at position 0" in text


def test_existing_plan_is_reported_without_its_data(words, capsys):
    """A planned directory alone suffices to print its figures again."""
    main([*words, "--json"])
    first = json.loads(capsys.readouterr().out)

    assert 0 == main([words[0], "--json"])

    again = json.loads(capsys.readouterr().out)
    assert {**first, "free_bytes": 0} == {**again, "free_bytes": 0}


def test_dry_run_keeps_nothing(words, capsys, tmp_path):
    """--dry-run prints the figures that the plan would have, and leaves no file behind."""
    before = set(os.listdir(tmp_path))

    assert 0 == main([*words, "--dry-run", "--json"])

    assert before == set(os.listdir(tmp_path))
    dry = json.loads(capsys.readouterr().out)
    main([*words, "--json"])
    real = json.loads(capsys.readouterr().out)
    assert (dry["run"], dry["fingerprint"]) == (real["run"], real["fingerprint"])


def test_second_producer_is_refused(words, tmp_path):
    """While a producer works in the directory, planning there is refused."""
    with producer_lock(RunPaths(tmp_path / "run")), pytest.raises(RunDirectoryError, match="has a producer already"):
        main(words)


def test_planning_needs_no_torch(words, tmp_path):
    """Planning runs where torch cannot be imported."""
    program = f"import sys; sys.modules['torch'] = None; from producer.plan_command import main; main({words!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)

    assert 0 == done.returncode, done.stderr
    assert RunPaths(tmp_path / "run").is_planned()
