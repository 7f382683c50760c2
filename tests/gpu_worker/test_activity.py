"""Where time goes, and what that says."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from gpu_worker.activity import ActivityAccount, LastMinute, bottleneck_of, shares_of
from gpu_worker.facts import ModelReady, ShardExtracted
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.standing import Standing
from hiddenstream.contracts.worker_report import ACTIVITIES, BOTTLENECKS, WORKER_STATES

READY = ModelReady(device="a GPU", torch="2.13.0", load_seconds=3.0, warm_seconds=1.0, gate="passed")


def test_time_goes_to_what_a_thread_is_at():
    """Each moment is counted once, that of the present activity as it passes, and none after the thread's end."""
    account = ActivityAccount()

    account.enter("forward", 10.0)
    account.enter("copy", 12.0)
    account.enter("forward", 12.5)
    running = account.seconds(14.0)
    account.enter(None, 15.0)

    assert {"forward": 3.5, "copy": 0.5} == running
    assert {"forward": 4.5, "copy": 0.5} == account.seconds(99.0)
    assert account.now_at is None


def test_a_minute_is_looked_back_on():
    """Growth is that of the last minute; what happened before is forgotten."""
    window = LastMinute()

    window.add(0.0, {"a": 0.0})
    window.add(10.0, {"a": 100.0})
    window.add(70.0, {"a": 101.0, "b": 2.0})

    assert {"a": 1.0, "b": 2.0} == window.grown()
    assert 60.0 == window.seconds


@pytest.mark.parametrize(
    ("seconds", "send", "answer", "expected"),
    [
        ({"forward": 50, "wait_for_job": 10}, 0, 0, "gpu"),
        ({"forward": 10, "copy": 20, "hash": 5}, 0, 0, "copy"),
        ({"forward": 25, "check": 10, "hash": 10, "other": 10}, 0, 0, "host"),
        ({"forward": 20, "wait_for_buffer": 40}, 30, 10, "upload"),
        ({"forward": 20, "wait_for_buffer": 40}, 10, 30, "sink"),
        ({"forward": 20, "wait_for_buffer": 40}, 0, 0, "sink"),
        ({"forward": 20, "wait_for_sink": 15, "wait_for_buffer": 15}, 0, 5, "sink"),
        ({"forward": 20, "wait_for_job": 40}, 0, 0, "queue"),
        ({}, 0, 0, "none"),
        ({"forward": 0.0}, 0, 0, "none"),
    ],
)
def test_the_largest_share_holds_a_worker_back(seconds, send, answer, expected):
    """The resource that most time goes to is the bottleneck; waiting for a buffer is the wire's fault or the sink's."""
    assert expected == bottleneck_of(shares_of(seconds), send_seconds=send, answer_seconds=answer)


@pytest.mark.parametrize("activity", ACTIVITIES)
def test_every_activity_has_its_resource(activity):
    """No activity is without a word, and the word is one of the list."""
    assert bottleneck_of({activity: 1.0}, send_seconds=0, answer_seconds=0) in set(BOTTLENECKS) - {"none"}


class AWorker:
    """A standing with a clock of its own, and its series."""

    def __init__(self) -> None:
        self.now = 100.0
        self.registry = CollectorRegistry()
        self.standing = Standing("worker-a", WorkerMetrics.in_registry(self.registry), clock=lambda: self.now)

    def series(self, name: str, **labels: str) -> float | None:
        """Return one series."""
        return self.registry.get_sample_value(f"hiddenstream_worker_{name}", labels)


def test_activity_is_counted_while_it_lasts():
    """A forward pass that has not ended is in the series already, and is never counted twice."""
    worker = AWorker()
    worker.standing.engine_is_at("main", "forward", 100.0)

    worker.now = 104.0
    worker.standing.look(())
    midway = worker.series("activity_seconds_total", activity="forward")
    worker.standing.engine_is_at("main", "copy", 103.5)  # it came late
    worker.now = 105.0
    worker.standing.look(())

    assert 4.0 == midway
    assert 4.0 == worker.series("activity_seconds_total", activity="forward")
    assert 1.5 == worker.series("activity_seconds_total", activity="copy")


def test_a_report_says_what_the_last_minute_was():
    """Shares, bottleneck and rate are of the last minute, and of nothing that was before the first job."""
    worker = AWorker()
    worker.standing.now_is("loading")
    worker.standing.model_is_ready(READY)
    worker.standing.engine_is_at("main", "wait_for_job", 100.0)
    before = worker.standing.look(())

    worker.now = 110.0
    worker.standing.shards_are_held([3])
    worker.standing.engine_is_at("main", "wait_for_buffer", 110.0)
    worker.standing.engine_is_at("upload-0", "send", 110.0)
    worker.now = 140.0
    worker.standing.delivery_has_ended(
        ShardExtracted(
            shard=3,
            delivery="a_1",
            outcome="committed",
            samples=2,
            tokens=400,
            statistics={"block.1": {"count": 4, "mean": 1.5, "m2": 16.0, "largest": 4.0}},
        )
    )
    after = worker.standing.look(())

    assert ("none", {}) == (before.bottleneck, before.activity_shares)
    assert {"wait_for_buffer": 1.0} == {name: share for name, share in after.activity_shares.items() if share}
    assert "upload" == after.bottleneck
    assert pytest.approx(400 / 30) == after.tokens_per_second
    assert (1, 2, 400, (3,), "a GPU") == (after.shards, after.samples, after.tokens, after.shards_in_hand, after.device)
    assert 1.0 == worker.series("bottleneck", resource="upload")
    assert 2.5 == worker.series("tap_rms", tap="block.1")
    assert after == type(after).decode(after.encode())


def test_a_worker_without_a_job_is_idle_after_a_moment():
    """The way from one job to the next is work; a second without one is not, and a stop is neither."""
    worker = AWorker()
    worker.standing.now_is("loading")
    worker.standing.model_is_ready(READY)
    worker.standing.engine_is_at("main", "wait_for_job", 100.0)

    worker.now = 100.5
    soon = worker.standing.look(()).state
    worker.now = 102.0
    later = worker.standing.look(()).state
    worker.standing.now_is("draining")
    stopping = worker.standing.look(()).state

    assert ("working", "idle", "draining") == (soon, later, stopping)
    assert 1.0 == sum(worker.series("state", state=state) or 0 for state in WORKER_STATES)
