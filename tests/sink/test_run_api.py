"""What the sink tells of its run, also before there is one."""

from __future__ import annotations

import json

import pytest

from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.errors import RunDirectoryError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.sink_api import run_path, shard_path
from hiddenstream.run_directory.paths import RunPaths
from tests.factories import a_run, a_shard
from tests.sink.harness import a_sink, ask, files_left, put


def test_progress_counts_what_is_committed(paths):
    """Progress tells shards, samples and tokens, planned and committed, and what is quarantined and to do."""
    with a_sink(paths) as sink:
        put(sink.port, 0, a_shard(paths, 0, quarantined=[Quarantined(id="s1", reason="all_zero", detail="")]))
        content = ask(sink.port, "GET", run_path("test")).content

    assert content["progress"] == {
        "shards": {"planned": 2, "committed": 1},
        "samples": {"planned": 3, "committed": 1, "quarantined": 1, "to_do": 1},
        "tokens": {"planned": 6, "committed": 3},
    }
    assert (content["run"], content["sink"], content["is_complete"]) == ("test", "sink", False)


def test_a_worker_learns_the_runs_identity(paths):
    """The record in the answer is run.json's, and its fingerprint stands beside it."""
    with a_sink(paths) as sink:
        content = ask(sink.port, "GET", run_path("test")).content

    assert paths.read_record() == RunRecord.from_json(json.dumps(content["record"]))
    assert paths.read_record().identity.fingerprint == content["fingerprint"]


def test_a_run_is_complete_when_every_shard_is_committed(paths):
    """The last shard completes the run."""
    with a_sink(paths) as sink:
        for shard in (1, 0):
            put(sink.port, shard, a_shard(paths, shard))

        assert ask(sink.port, "GET", run_path("test")).content["is_complete"]


def test_head_tells_whether_a_shard_is_there(paths):
    """HEAD says 404 before the commit and 200 after it, and 404 again once the file is gone."""
    with a_sink(paths) as sink:
        statuses = [ask(sink.port, "HEAD", shard_path("test", 0)).status]
        put(sink.port, 0, a_shard(paths, 0))
        statuses += [ask(sink.port, "HEAD", shard_path("test", 0)).status]
        paths.shard(0).unlink()
        statuses += [ask(sink.port, "HEAD", shard_path("test", 0)).status]

    assert statuses == [404, 200, 404]


def test_a_sink_serves_before_the_run_is_planned(tmp_path):
    """Until the plan is there everything but health is put off; then the same sink takes shards."""
    paths = RunPaths(tmp_path / "run")

    with a_sink(paths) as sink:
        early = [
            ask(sink.port, "GET", run_path("test")),
            ask(sink.port, "HEAD", shard_path("test", 0)),
            put(sink.port, 0, b"x" * 100),
        ]
        health = ask(sink.port, "GET", "/healthz").status
        a_run(paths.root)
        sink.tick()
        late = put(sink.port, 0, a_shard(paths, 0)).status

    assert [(reply.status, reply.headers["Retry-After"]) for reply in early] == [(503, "5")] * 3
    assert early[0].content["reason"] == "not_ready"
    assert (health, late) == (200, 201)


def test_a_plan_that_is_not_the_records_is_not_served(paths):
    """A run whose tokens differ from what run.json was written for is refused at start."""
    tokens = bytearray(paths.tokens.read_bytes())
    tokens[0] ^= 1
    paths.tokens.write_bytes(tokens)

    with pytest.raises(RunDirectoryError, match="holds plan"), a_sink(paths):
        pass

    assert files_left(paths) == []
