"""The sink's log, on standard output and in a file."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hiddenstream.chassis.logs import LOG_FILE_BYTES
from hiddenstream.contracts.sink_api import run_path
from hiddenstream.run_directory.paths import RunPaths
from tests.factories import a_shard
from tests.sink.harness import a_sink, a_sink_process, ask, event_of, metric, put, wait_for


def events_in(file):
    """Return the events of a log file but the last, which comes or not, by how the process ended."""
    events = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    return [event for event in events if event != "sink_stopped"]


def test_log_lines_go_to_standard_output_and_are_appended_to_a_file(paths):
    """The folder is made, lines of both processes are in the file, and standard output has them as well."""
    file = paths.root / "logs" / "sink.jsonl"
    for shard in (0, 1):
        with a_sink_process(paths, "--log-file", str(file)) as (process, port):
            assert 201 == put(port, shard, a_shard(paths, shard)).status
            assert shard == event_of(process, "shard_committed")["shard"]
            wait_for(lambda: "shard_committed" == events_in(file)[-1])  # it is killed next

    expected = ["run_loaded", "sink_listening", "shard_committed"]
    assert [*expected, *expected] == events_in(file)


def test_a_file_past_its_limit_becomes_the_former_one(paths, tmp_path):
    """A file that is full at the start is renamed, and takes the place of the one that was renamed before."""
    file, former = tmp_path / "sink.jsonl", tmp_path / "sink.jsonl.1"
    former.write_text("older")
    with open(file, "wb") as full:
        full.truncate(LOG_FILE_BYTES)

    with a_sink_process(paths, "--log-file", str(file)):
        wait_for(lambda: "sink_listening" in events_in(file))

    assert ["run_loaded", "sink_listening"] == events_in(file)
    assert LOG_FILE_BYTES == former.stat().st_size


@pytest.mark.parametrize("name", ["/proc/nowhere/sink.jsonl", "/dev/full"])
def test_a_file_that_cannot_be_written_stops_no_sink(paths, name):
    """Neither a folder that cannot be made nor a full disk keeps the sink from serving; it is said once."""
    command = [sys.executable, "-m", "sink", str(paths.root), "--listen", "127.0.0.1:0", "--reserve-bytes", "0"]
    command += ["--metrics-listen", "127.0.0.1:0", "--log-file", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        before = [json.loads(process.stdout.readline()) for _ in range(3)]
        port = next(line["port"] for line in before if line["event"] == "sink_listening")
        statuses = [put(port, shard, a_shard(paths, shard)).status for shard in (0, 1)]
        process.terminate()
        events = [line["event"] for line in [*before, *map(json.loads, process.stdout)]]

    assert [201, 201] == statuses
    assert 1 == events.count("log_file_failed")
    assert 2 == events.count("shard_committed")
    assert "sink_stopped" == events[-1]


def test_asking_before_the_run_is_planned_is_no_news(tmp_path, caplog):
    """Workers that ask for a run that is not planned are counted, and fill no log; other refusals are told."""
    caplog.set_level("DEBUG")
    with a_sink(RunPaths(tmp_path / "run")) as sink:
        early = ask(sink.port, "GET", run_path("test")).status
        ask(sink.port, "GET", "/nothing")
        refusals = metric(sink, "refusals_total", reason="not_ready")

    assert (503, 1) == (early, refusals)
    assert 1 == caplog.messages.count("shard_refused")
