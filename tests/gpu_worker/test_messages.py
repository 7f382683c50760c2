"""Messages from engine to supervisor, over a real pipe."""

from __future__ import annotations

import dataclasses
import json
import os
import threading

import pytest
from prometheus_client import CollectorRegistry

from gpu_worker.engine_process import EngineProcess
from gpu_worker.facts import OUTCOMES, BatchDone, ModelReady, ShardExtracted
from gpu_worker.messages import (
    ACTIVITY,
    BEAT,
    COMPUTED,
    COMPUTING,
    DONE,
    LOADED,
    LOGGED,
    REFUSED,
    TOOK,
    Reporter,
    facts_of,
)
from gpu_worker.metrics import WorkerMetrics

FACTS = ShardExtracted(
    shard=7,
    delivery="a_1",
    outcome="failed",
    samples=3,
    upload_seconds=0.25,
    statistics={"block.0": {"count": 2, "mean": 1.0, "m2": 0.5, "largest": 1.5}},
    message='"é"\n\u2028 of an error',
)
READY = ModelReady(device="cpu", torch="2.13.0", load_seconds=1.5, warm_seconds=0.25, gate="passed")
BATCH = BatchDone(tokens=30, token_slots=32, allocated_bytes=1, reserved_bytes=2)


@pytest.fixture
def pipe():
    """An engine's end and its supervisor's, as that reads it."""
    reading, writing = os.pipe()
    supervisor = EngineProcess.__new__(EngineProcess)  # only its reading: no process is started
    supervisor._messages = os.fdopen(reading, "rb")
    yield writing, supervisor
    supervisor._messages.close()


def test_messages_arrive_as_they_were_sent(pipe):
    """Each kind arrives in order with what it carries, and facts come back equal."""
    writing, supervisor = pipe
    reporter = Reporter(writing)

    reporter.refused("no such model", gate="failed")
    reporter.loaded(READY)
    reporter.is_at("send", thread="upload-0")
    reporter.took(7, "a_1")
    reporter.computing()
    reporter.beat(BATCH)
    reporter.computed()
    reporter.logged("{}")
    reporter.done(FACTS)
    os.close(writing)
    messages = list(supervisor.messages())

    kinds = [REFUSED, LOADED, ACTIVITY, TOOK, COMPUTING, BEAT, COMPUTED, LOGGED, DONE]
    assert kinds == [message["kind"] for message in messages]
    told = {message["kind"]: message for message in messages}
    assert ("no such model", "failed") == (told[REFUSED]["message"], told[REFUSED]["gate"])
    assert ("upload-0", "send") == (told[ACTIVITY]["thread"], told[ACTIVITY]["activity"])
    assert (7, "a_1") == (told[TOOK]["shard"], told[TOOK]["delivery"])
    assert READY == ModelReady(**told[LOADED]["facts"])
    assert BATCH == BatchDone(**told[BEAT]["facts"])
    assert "{}" == told[LOGGED]["line"]
    assert FACTS == facts_of(messages[-1])


def test_a_line_torn_by_death_is_dropped(pipe):
    """What an engine wrote before it died is read; its last, unfinished line is not."""
    writing, supervisor = pipe

    Reporter(writing).logged("whole")
    os.write(writing, json.dumps({"kind": DONE, "facts": dataclasses.asdict(FACTS)}).encode()[:-20])
    os.close(writing)

    assert [{"kind": LOGGED, "line": "whole"}] == list(supervisor.messages())


def test_threads_do_not_mix_their_lines(pipe):
    """Lines longer than a pipe takes at once stay whole while several threads write."""
    writing, supervisor = pipe
    reporter = Reporter(writing)
    long = dataclasses.replace(FACTS, message="x" * 100_000)
    writers = [threading.Thread(target=lambda: [reporter.done(long) for _ in range(5)]) for _ in range(3)]
    received = []
    reader = threading.Thread(target=lambda: received.extend(supervisor.messages()))
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    os.close(writing)
    reader.join()

    assert [long] * 15 == [facts_of(message) for message in received]


def test_every_outcome_is_shown_before_it_happens():
    """A scrape of a fresh worker has each outcome at zero, so rates are right from the first one on."""
    registry = CollectorRegistry()
    WorkerMetrics.in_registry(registry)

    name = "hiddenstream_worker_deliveries_total"
    assert [0.0] * len(OUTCOMES) == [registry.get_sample_value(name, {"outcome": outcome}) for outcome in OUTCOMES]
