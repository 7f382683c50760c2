"""``hiddenstream run``: the whole pipeline by one command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hiddenstream
from gpu_worker.recompute import load_plain
from hiddenstream.run_directory.paths import RunPaths
from tests.pipeline.services import Services, assert_complete_and_equal, wait_for
from tests.tiny import random_rows, save_tiny_model, write_rows


def command(*arguments: str) -> subprocess.Popen[str]:
    """Start ``hiddenstream ARGUMENTS``."""
    return subprocess.Popen(
        [sys.executable, "-m", "hiddenstream.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )


def finished(*arguments: str) -> tuple[int, str, str]:
    """Run ``hiddenstream ARGUMENTS`` to its end; return exit code, output and errors."""
    process = command(*arguments)
    output, errors = process.communicate(timeout=200)
    return process.returncode, output, errors


@pytest.fixture
def run_arguments(tmp_path: Path) -> list[str]:
    """A small run of a tiny model."""
    model = save_tiny_model("llama", tmp_path / "model")
    data = write_rows(random_rows([5, 9, 30, 9] * 10), tmp_path / "rows.jsonl")
    return ["--model", str(model), "--data", str(data), "--layers", "0,2", "--dtype", "float32", "--device", "cpu"]


def replaced(arguments: list[str], flag: str, value: str) -> list[str]:
    """Return *arguments* with another value for *flag*, or with the flag added."""
    if flag not in arguments:
        return [*arguments, flag, value]
    place = arguments.index(flag) + 1
    return [*arguments[:place], value, *arguments[place + 1 :]]


def assert_logits_follow(run: str) -> None:
    """What is stored of a sample and of the model gives the logits of plain transformers."""
    opened = hiddenstream.open(run)
    sample = opened["s2"]
    plain = load_plain(opened.record.model, None, "float32")
    expected = plain(input_ids=torch.from_numpy(sample.input_ids.astype("int64"))[None]).logits[0].detach().numpy()
    np.testing.assert_allclose(sample.final_normed() @ opened.heads().lm_head.T, expected, rtol=1e-4, atol=1e-4)


def test_a_run_is_one_command(tmp_path: Path, run_arguments: list[str]) -> None:
    """It ends complete, sums up, recomputes, and a second run makes no forward pass and says so."""
    run = str(tmp_path / "run")

    code, output, _ = finished(
        "run", run, *run_arguments, "--final", "--heads", "--token-budget", "64", "--recompute", "5", "--workers", "2"
    )
    again_code, again, _ = finished("run", run, *run_arguments)
    verify_code, _, _ = finished("verify", run, "--recompute", "3")
    status_code, status, _ = finished("status", run, "--json")

    assert (0, 0, 0, 0) == (code, again_code, verify_code, status_code)
    assert "complete: 40 of 40 samples" in output
    assert "recomputed 5 samples with plain transformers: equal but for rounding" in output
    assert "no forward pass was made" in again
    assert 40 == json.loads(status)["committed_samples"]
    assert_complete_and_equal(RunPaths(Path(run)), random_rows([5, 9, 30, 9] * 10))
    assert_logits_follow(run)
    logs = {file.name for file in (Path(run) / "logs").iterdir()}
    assert {"queue.jsonl", "sink.jsonl", "producer.jsonl", "worker-0.jsonl", "worker-1.jsonl"} <= logs


def test_ctrl_c_stops_in_order_and_a_rerun_continues(
    tmp_path: Path, plan_arguments: list[str], rows: list[dict[str, Any]]
) -> None:
    """Ctrl-C in mid-run exits 4 with what was computed stored; the same command then completes the run."""
    folder = tmp_path / "run"
    paths = RunPaths(folder)
    arguments = [word for word in plan_arguments if word not in ("--reserve-bytes", "0")]
    process = command("run", str(folder), *arguments, "--device", "cpu")
    wait_for(lambda: paths.ledger.exists() and any(paths.ledger.iterdir()), "a commit")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    stored = len(hiddenstream.open(folder))

    code, output, _ = finished("run", str(folder), "--device", "cpu")

    assert 4 == process.returncode
    assert 0 < stored < len(rows)
    assert 0 == code
    assert f"{stored:,} samples are stored already" in output
    assert_complete_and_equal(paths, rows)


@pytest.mark.parametrize("victim", ["sink", "producer", "gpu_worker", "queue"])
def test_any_service_may_die(
    victim: str, tmp_path: Path, plan_arguments: list[str], rows: list[dict[str, Any]]
) -> None:
    """SIGKILL of any one service of a local run: it is started again and the run ends complete."""
    folder = tmp_path / "run"
    arguments = [word for word in plan_arguments if word not in ("--reserve-bytes", "0")]
    process = command("run", str(folder), *arguments, "--device", "cpu")
    ledger = folder / "ledger" / "sink.jsonl"
    wait_for(lambda: ledger.exists() and len(ledger.read_bytes().splitlines()) >= 3, "three commits")

    os.kill(child_of(process.pid, "unixsocket" if victim == "queue" else victim), signal.SIGKILL)
    process.communicate(timeout=200)

    assert 0 == process.returncode
    assert_complete_and_equal(RunPaths(folder), rows)


def child_of(parent: int, word: str) -> int:
    """Return the pid of the child process whose command line holds *word*."""

    def matching() -> list[str]:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [pid for pid in children if word in Path(f"/proc/{pid}/cmdline").read_text()]

    return int(wait_for(matching, f"a child process with {word!r}")[0])


def test_a_refusal_ends_the_run_with_its_reason(tmp_path: Path, run_arguments: list[str]) -> None:
    """A model that cannot be loaded as asked ends the run with the worker's own words, not with a hang."""
    code, _, errors = finished("run", str(tmp_path / "run"), *run_arguments[:-1], "cuda:77")

    assert 1 == code
    assert "cuda:77" in errors


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--layers", "0,9"], "block 9 does not exist; this model has blocks 0 to 4"),
        (["--layers", "0,0"], "more than once"),
        (["--budget", "9"], "--budget"),
        (["--dtype", "int8"], "choose from float32, bfloat16, float16"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--data", "/nowhere.jsonl"], "/nowhere.jsonl"),
    ],
)
def test_bad_settings_stop_before_any_work(
    changed: list[str], named: str, tmp_path: Path, run_arguments: list[str]
) -> None:
    """A setting that cannot be meant is named, the exit code is 2, and no plan is written."""
    code, _, errors = finished("run", str(tmp_path / "run"), *replaced(run_arguments, *changed))

    assert 2 == code
    assert named in errors
    assert not (tmp_path / "run" / "run.json").exists()


def test_another_run_is_refused(tmp_path: Path, run_arguments: list[str]) -> None:
    """A run directory that belongs to other taps, dtype or data says what differs and stays as it is."""
    run = str(tmp_path / "run")
    finished("plan", run, *run_arguments[:-2])
    record = (tmp_path / "run" / "run.json").read_bytes()
    other = write_rows(random_rows([4] * 9, seed=1), tmp_path / "other.jsonl")

    code, _, errors = finished("run", run, "--layers", "1", "--dtype", "bfloat16", "--data", str(other))

    assert 2 == code
    assert all(word in errors for word in ("layers", "dtype", "data"))
    assert record == (tmp_path / "run" / "run.json").read_bytes()


def test_an_unknown_environment_variable_is_an_error(
    tmp_path: Path, run_arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt variable of ours stops the command and is named."""
    monkeypatch.setenv("HIDDENSTREAM_TOKEN_BUGDET", "9")

    code, _, errors = finished("run", str(tmp_path / "run"), *run_arguments)

    assert 2 == code
    assert "HIDDENSTREAM_TOKEN_BUGDET" in errors


def test_bad_rows_are_counted_and_the_rest_is_done(tmp_path: Path, run_arguments: list[str]) -> None:
    """Rows that cannot be used are named by reason; every other row is stored."""
    rows = random_rows([5, 6, 7])
    bad: list[dict[str, Any]] = [
        {"id": "empty", "input_ids": []},
        {"id": "outside", "input_ids": [1, 128]},
        {"id": "mask", "input_ids": [1, 2], "loss_mask": [1]},
        {"id": "long", "input_ids": [1] * 300},
    ]
    data = write_rows(rows + bad + [rows[0]], tmp_path / "mixed.jsonl")
    with open(data, "a") as file:
        file.write('{"id": "torn"')

    code, output, _ = finished("run", str(tmp_path / "run"), *replaced(run_arguments, "--data", str(data)))

    assert 0 == code
    for reason in ("no_tokens", "token_out_of_range", "mask_length", "over_long", "unreadable_line"):
        assert f"rejected rows: 1 {reason}" in output
    assert "rows that repeat another, merged: 1" in output


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_an_evicting_redis_is_refused(policy: str, services: Services, plan_arguments: list[str]) -> None:
    """A Redis that may drop jobs or leases is refused by producer and run before any work, planning included."""
    services.client().config_set("maxmemory-policy", policy)
    root = services.paths.root
    arguments = [word for word in plan_arguments if word not in ("--reserve-bytes", "0")]

    producer = services.producer(*plan_arguments)
    code, _, errors = finished("run", str(root), "--redis", services.redis_url, *arguments)

    assert 2 == producer.wait()
    assert policy in producer.events("producer_refused")[0]["message"]
    assert 2 == code
    assert policy in errors
    assert not services.paths.is_planned()


def test_a_run_says_what_it_waits_for(tmp_path: Path, run_arguments: list[str]) -> None:
    """With a Redis that is not there, the terminal names what is waited for; Ctrl-C ends the wait."""
    process = command("run", str(tmp_path / "run"), *run_arguments, "--redis", f"unix://{tmp_path}/none.sock")
    said = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if "redis waited for" in line:
                said.set()

    threading.Thread(target=read, daemon=True).start()
    is_said = said.wait(60)
    process.send_signal(signal.SIGINT)

    assert is_said
    assert 4 == process.wait(60)


def test_what_died_is_said(tmp_path: Path, plan_arguments: list[str]) -> None:
    """A service that was killed and started again is named on the terminal, with its exit code."""
    folder = tmp_path / "run"
    arguments = [word for word in plan_arguments if word not in ("--reserve-bytes", "0")]
    process = command("run", str(folder), *arguments, "--device", "cpu")
    wait_for(lambda: (folder / "logs" / "worker-0.jsonl").exists(), "the worker is started")

    os.kill(child_of(process.pid, "gpu_worker"), signal.SIGKILL)
    output, _ = process.communicate(timeout=200)

    assert 0 == process.returncode
    assert "worker-0 died (exit code -9) and was started again" in output


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, run_arguments: list[str]) -> None:
    """A run directory that is a file ends in one line, not in a traceback."""
    (tmp_path / "file").write_text("")

    code, _, errors = finished("run", str(tmp_path / "file"), *run_arguments)

    assert 1 == code
    assert "Traceback" not in errors
    assert str(tmp_path / "file") in errors
