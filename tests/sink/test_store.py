"""Shards that are stored."""

from __future__ import annotations

import os
import threading

import numpy as np
import safetensors.numpy

from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.shard import sample_tensors
from hiddenstream.contracts.sink_api import run_path, shard_path
from hiddenstream.run_directory.plan import Plan
from tests.factories import a_run, a_shard, the_states
from tests.sink.harness import (
    DEADLINE_SECONDS,
    a_head,
    a_sink,
    ask,
    committed,
    connect,
    files_left,
    ledger_lines,
    metric,
    put,
    reply_on,
)

STORED = ["ledger/sink.jsonl", "shards/000/000000.safetensors"]


def test_a_good_shard_is_stored_as_it_was_sent(paths):
    """A shard that fits the plan becomes a file of the same bytes and one ledger line."""
    data = a_shard(paths, 0)

    with a_sink(paths) as sink:
        reply = put(sink.port, 0, data)

    assert (reply.status, reply.content) == (201, {"status": "committed"})
    assert data == paths.shard(0).read_bytes()
    assert files_left(paths) == STORED


def test_the_safetensors_library_reads_a_stored_shard(paths):
    """A stored shard is a plain safetensors file with the planned tokens and the states that were sent."""
    samples = Plan(paths).samples_of(0)

    with a_sink(paths) as sink:
        put(sink.port, 0, a_shard(paths, 0))

    tensors = safetensors.numpy.load_file(paths.shard(0))
    assert np.array_equal(the_states(samples), tensors["hidden_states"])
    assert sample_tensors(samples) == {name: tensors[name].tobytes() for name in sample_tensors(samples)}


def test_a_ledger_line_says_what_was_stored(paths):
    """A ledger line holds the sizes and checksums of the file, and who made it."""
    with a_sink(paths) as sink:
        put(sink.port, 0, a_shard(paths, 0))

    line = committed(paths)[0]
    assert (line.tokens, line.samples, line.delivery, line.made_by["worker"]) == (4, 2, "a1", "w1")
    assert paths.shard(0).stat().st_size == line.file_bytes


def test_a_second_upload_of_a_shard_changes_nothing(paths):
    """The first commit of a shard wins; a later delivery of it is answered with 200."""
    first, second = a_shard(paths, 0), a_shard(paths, 0, delivery="b2")

    with a_sink(paths) as sink:
        replies = [put(sink.port, 0, first), put(sink.port, 0, second)]
        duplicates = metric(sink, "shards_duplicate_total")

    assert [reply.status for reply in replies] == [201, 200]
    assert replies[1].content == {"status": "duplicate"}
    assert first == paths.shard(0).read_bytes()
    assert [line.delivery for line in ledger_lines(paths)] == ["a1"]
    assert files_left(paths) == STORED
    assert duplicates == 1


def test_a_quarantined_sample_is_left_out_and_recorded(paths):
    """A shard without its quarantined sample is stored, and the ledger names the sample and the reason."""
    quarantined = Quarantined(id="s0", reason="non_finite", detail="block.1 holds NaN")

    with a_sink(paths) as sink:
        reply = put(sink.port, 0, a_shard(paths, 0, quarantined=[quarantined]))
        counted = metric(sink, "samples_quarantined_total")

    line = committed(paths)[0]
    assert reply.status == 201
    assert (1, 1, (quarantined,)) == (line.tokens, line.samples, line.quarantined)
    assert counted == 1


def test_a_shard_may_hold_no_sample(paths):
    """A shard all of whose samples are quarantined is stored, so that the run can complete."""
    quarantined = [Quarantined(id=i, reason="all_zero", detail="") for i in ("s0", "s1")]

    with a_sink(paths) as sink:
        reply = put(sink.port, 0, a_shard(paths, 0, quarantined=quarantined))

    assert reply.status == 201
    assert (committed(paths)[0].tokens, committed(paths)[0].samples) == (0, 0)
    assert safetensors.numpy.load_file(paths.shard(0))["hidden_states"].shape == (0, 2, 4)


def test_samples_without_masks_are_stored(tmp_path):
    """A run without loss masks is stored like any other."""
    paths = a_run(tmp_path / "run", with_masks=False)

    with a_sink(paths) as sink:
        assert put(sink.port, 0, a_shard(paths, 0)).status == 201


def test_one_shard_sent_four_times_at_once_is_stored_once(paths):
    """Uploads of one shard that race end as one file and one ledger line."""
    datas = [a_shard(paths, 0, delivery=f"d{i}") for i in range(4)]
    statuses: list[int] = []

    with a_sink(paths) as sink:
        clients = [connect(sink.port) for _ in datas]
        for client, data in zip(clients, datas, strict=True):  # all but the last byte of each
            client.sendall(a_head(0, len(data)) + data[:-1])
        threads = [
            threading.Thread(target=lambda c=client, d=data: (c.sendall(d[-1:]), statuses.append(reply_on(c).status)))
            for client, data in zip(clients, datas, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_SECONDS)
        for client in clients:
            client.close()

    assert sorted(statuses) == [200, 200, 200, 201]
    assert len(ledger_lines(paths)) == 1
    assert paths.shard(0).read_bytes() in datas
    assert files_left(paths) == STORED


def test_two_sinks_share_a_run_directory(paths):
    """A shard that another sink has committed is there already for this one."""
    with a_sink(paths, name="east") as east, a_sink(paths, name="west") as west:
        replies = [put(sink.port, shard, a_shard(paths, shard)) for sink, shard in ((east, 0), (west, 0), (west, 1))]

        run = ask(east.port, "GET", run_path("test")).content

    assert [reply.status for reply in replies] == [201, 200, 201]
    assert tuple([line.shard for line in ledger_lines(paths, name)] for name in ("east", "west")) == ([0], [1])
    assert run["is_complete"]


def test_a_damaged_file_under_the_final_name_makes_way(paths):
    """A file that does not verify is kept aside, and the good upload takes its name."""
    damaged = bytearray(a_shard(paths, 0))
    damaged[-1] ^= 1
    data = a_shard(paths, 0)

    with a_sink(paths) as sink:
        paths.shard(0).parent.mkdir(parents=True)
        paths.shard(0).write_bytes(damaged)
        reply = put(sink.port, 0, data)

    kept = list((paths.root / "damaged").iterdir())
    assert reply.status == 201
    assert data == paths.shard(0).read_bytes()
    assert [bytes(damaged)] == [file.read_bytes() for file in kept]
    assert [file.name.split(".")[0] for file in kept] == ["000000"]


def test_a_replaced_file_is_what_the_ledger_describes(paths):
    """After a damaged file was replaced by another good one, readers of the ledger find the new checksum."""
    states = the_states(Plan(paths).samples_of(0)) + 1

    with a_sink(paths) as sink:
        put(sink.port, 0, a_shard(paths, 0))
        paths.shard(0).write_bytes(b"\0" * 100)
        reply = put(sink.port, 0, a_shard(paths, 0, states=states))
        head = ask(sink.port, "HEAD", shard_path("test", 0))

    assert (reply.status, head.status) == (201, 200)
    assert len(ledger_lines(paths)) == 2
    assert ledger_lines(paths)[1] == committed(paths)[0]


def test_a_good_file_that_no_ledger_knows_gets_its_line(paths):
    """An upload that finds a good file without a ledger line ledgers the file that is there."""
    there, sent = a_shard(paths, 0, delivery="there"), a_shard(paths, 0, delivery="sent")

    with a_sink(paths) as sink:
        paths.shard(0).parent.mkdir(parents=True)
        paths.shard(0).write_bytes(there)
        reply = put(sink.port, 0, sent)

    assert reply.status == 200
    assert [line.delivery for line in ledger_lines(paths)] == ["there"]


def test_commits_are_counted(paths):
    """Metrics tell shards, bytes, tokens and samples as the ledger does."""
    data = a_shard(paths, 0)

    with a_sink(paths) as sink:
        put(sink.port, 0, data)
        names = ("shards_committed_total", "bytes_written_total", "tokens_committed_total", "samples_committed_total")
        counted = [metric(sink, name) for name in names]
        sink.tick()

        assert [1, len(data), 4, 2] == counted
        assert metric(sink, "fsync_seconds_count") == 1
        assert (metric(sink, "shards_planned"), metric(sink, "run_shards_committed")) == (2, 1)


def test_nothing_is_promised_before_it_is_durable(paths, monkeypatch):
    """The file is synced before it gets its name, the name before the ledger line, and that before the answer."""
    order: list[str] = []  # a power cut can't be had in a test, so the real calls are watched

    def watched_fsync(descriptor, fsync=os.fsync):
        order.append("sync " + os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), paths.root))
        fsync(descriptor)

    def watched_link(source, target, link=os.link):
        order.append("link " + os.path.relpath(target, paths.root))
        link(source, target)

    with a_sink(paths) as sink:
        put(sink.port, 1, a_shard(paths, 1))
        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(os, "link", watched_link)
        put(sink.port, 0, a_shard(paths, 0))
        order.append("answer")

    assert order == [
        "sync incoming/sink/000000-1.part",
        "link shards/000/000000.safetensors",
        "sync shards/000",
        "sync shards",
        "sync ledger/sink.jsonl",
        "answer",
    ]
