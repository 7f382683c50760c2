"""Sending shards to a real sink while the worker computes the next ones."""

from __future__ import annotations

import gc
import socket
import weakref

import pytest

from gpu_worker.buffers import HostBuffers
from gpu_worker.facts import ShardExtracted
from gpu_worker.sink_client import SinkClient
from gpu_worker.upload import SINK_WAITED_FOR, FinishedShard, Uploader
from tests.conftest import wait_until
from tests.factories import a_shard
from tests.sink.harness import LOCALHOST, a_sink, committed


class Sender:
    """An uploader, its buffers, and what it said of each delivery."""

    def __init__(self, port, *, run="test"):
        self.buffers, self.done, self.phases = HostBuffers(2, is_pinned=False), [], []
        client = SinkClient(f"http://{LOCALHOST}:{port}", run, None)
        self._uploader = Uploader(client, self.buffers, self.done.append, lambda *said: self.phases.append(said))

    def send(self, shard, *pieces):
        facts = ShardExtracted(shard=shard, delivery="a_1", outcome="committed", samples=2)
        self._uploader.hand_over(FinishedShard(pieces=pieces, buffer=self.buffers.take(), facts=facts))

    def outcomes(self, count):
        """Wait for *count* deliveries' ends; return the outcome of each shard."""
        wait_until(lambda: len(self.done) == count)
        return {facts.shard: facts.outcome for facts in self.done}


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
        return probe.getsockname()[1]


def test_shards_wait_for_a_sink_that_is_away(paths, free_port, caplog):
    """Two shards in flight are tried until their sink is there, and are stored then; their buffers are free again."""
    sender = Sender(free_port)
    for shard in (0, 1):
        sender.send(shard, a_shard(paths, shard))
    wait_until(lambda: SINK_WAITED_FOR in caplog.messages)

    with a_sink(paths, listen=(LOCALHOST, free_port)):
        outcomes = sender.outcomes(2)

    assert {0: "committed", 1: "committed"} == outcomes
    assert {0, 1} == committed(paths).keys()
    assert all(facts.upload_attempts > 1 and facts.samples == 2 for facts in sender.done)
    sender.buffers.wait_until_all_are_free()


def test_sending_and_waiting_for_the_answer_are_told_apart(paths):
    """A thread says what it is at, and the time of each is in the facts; together they are the upload."""
    with a_sink(paths) as sink:
        sender = Sender(sink.port)
        sender.send(0, a_shard(paths, 0))
        sender.outcomes(1)

    (facts,) = sender.done
    assert ["answer", "send", "answer", "nothing"] == [phase for _, phase in sender.phases]
    assert 1 == len({thread for thread, _ in sender.phases})
    assert facts.send_seconds > 0
    assert facts.answer_seconds > 0
    assert facts.upload_seconds == pytest.approx(facts.send_seconds + facts.answer_seconds, abs=0.05)


def test_a_shard_that_is_there_is_a_duplicate(paths):
    """The second delivery of a shard ends as a duplicate."""
    with a_sink(paths) as sink:
        sender = Sender(sink.port)
        sender.send(0, a_shard(paths, 0))
        sender.outcomes(1)
        sender.send(0, a_shard(paths, 0))
        sender.outcomes(2)

    assert ["committed", "duplicate"] == [facts.outcome for facts in sender.done]


def test_a_refused_shard_has_failed(paths):
    """A refusal ends the delivery at the first attempt with the sink's own words, and the next shard is sent."""
    with a_sink(paths) as sink:
        sender = Sender(sink.port)
        sender.send(0, a_shard(paths, 0, taps=("block.1", "block.3")))
        sender.outcomes(1)
        sender.send(1, a_shard(paths, 1))
        outcomes = sender.outcomes(2)

    assert {0: "failed", 1: "committed"} == outcomes
    assert "wrong_taps" in sender.done[0].message
    assert 1 == sender.done[0].upload_attempts
    sender.buffers.wait_until_all_are_free()


def test_a_wrong_hash_is_tried_three_times(paths):
    """Bytes damaged on the way are sent again; damaged in memory they never get better, so three attempts are all."""
    data = bytearray(a_shard(paths, 0))
    data[-1] ^= 1

    with a_sink(paths) as sink:
        sender = Sender(sink.port)
        sender.send(0, bytes(data))
        sender.outcomes(1)

    assert ("failed", 3) == (sender.done[0].outcome, sender.done[0].upload_attempts)
    assert "wrong_hash" in sender.done[0].message


def test_an_error_of_our_own_ends_one_delivery(paths):
    """Whatever goes wrong in sending is told as that delivery's failure; buffer and thread are free again."""
    with a_sink(paths) as sink:
        sender = Sender(sink.port)
        for _ in range(3):
            sender.send(0, "not bytes")
            wait_until(lambda: not sender.buffers._free.empty())
        sender.send(1, a_shard(paths, 1))
        sender.outcomes(4)

    assert ["failed"] * 3 + ["committed"] == [facts.outcome for facts in sender.done]


def test_a_sent_shard_is_not_kept(paths):
    """Once a shard is answered nothing holds its memory, so a buffer that grows does not exist twice."""

    class Memory(bytearray):
        pass

    memory = Memory(a_shard(paths, 0))
    watched = weakref.ref(memory)
    with a_sink(paths) as sink:
        sender = Sender(sink.port)
        sender.send(0, memoryview(memory))
        del memory
        sender.outcomes(1)

        wait_until(lambda: gc.collect() is not None and watched() is None, deadline_seconds=5)
