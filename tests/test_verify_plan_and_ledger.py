"""Verifying finds damage to the plan and the ledger, too."""

from __future__ import annotations

import os

import pytest

from hiddenstream.cli import run_command
from hiddenstream.verify.verify import verify_run
from tests.factories import a_shard
from tests.run_helpers import append_line, commit_shard, line_of, with_column, with_record
from tests.verify_helpers import a_complete_run, flip, found


@pytest.fixture
def paths(tmp_path):
    return a_complete_run(tmp_path / "run")


def test_a_torn_ledger_line_is_found_by_file_and_line(paths):
    """A line that was cut and then written over is damage; the shard it named is to do again."""
    ledger = paths.ledger / "sink.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(lines[0] + lines[1][:50] + b"\n" + lines[2])

    report = verify_run(paths)

    assert (report.damage[0].kind, report.to_do, report.exit_code) == ("ledger_line", ("s2",), 1)
    assert "sink.jsonl, line 2" in report.damage[0].message


def test_a_last_line_without_its_end_is_a_note(paths):
    """A sink may be writing it; it counts for nothing yet."""
    ledger = paths.ledger / "sink.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-30])

    report = verify_run(paths)

    assert ({"unfinished_line", "foreign_file"}, 4) == ({f.kind for f in report.findings}, report.exit_code)


def test_a_ledger_line_of_an_unplanned_shard_is_found(paths):
    """A shard that the plan does not have is damage, and does not hide the rest."""
    append_line(paths, line_of(paths.shard(0).read_bytes(), shard=9).to_line())

    assert {("unknown_shard", 9, None)} == found(paths)


def test_an_older_line_of_other_bytes_is_named(paths):
    """A shard that was made again is judged by its newest line; the older one is named."""
    content = a_shard(paths, 0, delivery="b7")
    commit_shard(paths, content, time="2026-01-01T00:01:00.000Z", sink="another")

    report = verify_run(paths)

    assert ([(f.kind, f.shard) for f in report.findings], report.exit_code) == ([("committed_twice", 0)], 0)


def test_altered_tokens_in_the_plan_name_shard_and_sample(paths):
    """A bit flip in tokens.bin is told from one in the shard: the plan's own id no longer fits."""
    flip(paths.tokens, 0)

    assert {
        ("plan_altered", None, None),
        ("header_misfit", 0, None),
        ("tokens_differ", 0, "s0"),
    } == found(paths)


def test_a_short_tokens_file_is_found(paths):
    """The shard whose tokens are cut off is named."""
    os.truncate(paths.tokens, paths.tokens.stat().st_size - 8)

    assert {("plan_altered", 2, None), ("plan_altered", None, None)} <= found(paths)


def test_an_id_planned_twice_is_found(paths):
    """Two planned samples of one id could not be told apart."""
    with_column(paths, "id", ["s0", "s1", "s2", "s0", "s4"], keep_plan_id=True)

    assert ("id_repeated", 2, "s0") in found(paths)


def test_an_altered_id_names_the_shard(paths):
    """A plan with another id than was computed is found through the plan's id and the shard's header."""
    with_column(paths, "id", ["s0", "s1", "S2", "s3", "s4"], keep_plan_id=True)

    assert {("plan_altered", None, None), ("header_misfit", 1, None), ("sample_missing", 1, "S2")} <= found(paths)


def test_counts_of_the_record_are_checked_against_the_table(paths):
    """Rows that vanished from the plan are found."""
    with_record(paths, rejected={"no_tokens": 2})

    assert ("counts_differ", None, None) in found(paths)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 100])
def test_a_plan_that_cannot_be_read_ends_verifying(paths, content, capsys):
    """Without a plan nothing can be judged: one error, exit code 1."""
    paths.samples.write_bytes(content)

    code = run_command("verify", [str(paths.root)])

    assert code == 1
    assert "plan" in capsys.readouterr().err
