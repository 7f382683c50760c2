"""What a producer shows of itself, its workers and its run while it goes on."""

from __future__ import annotations

import json
import math
import signal
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from hiddenstream.chassis.redis_connection import make_client
from hiddenstream.contracts.queue import report_key, workers_key
from hiddenstream.contracts.worker_report import REPORT_SECONDS, GpuReport, WorkerReport
from producer.metrics import ProducerMetrics
from producer.worker_board import GONE_SECONDS, WorkerBoard
from tests.conftest import wait_until
from tests.factories import a_run, a_shard, store_shard
from tests.run_helpers import commit_shard, described

QUEUE = "hiddenstream-test-0"
SHARDS = [[4, 2], [6], [1, 1, 1], [20]]


@pytest.fixture
def client(redis_server):
    return make_client(redis_server.url)


@pytest.fixture
def paths(tmp_path):
    return a_run(tmp_path / "run", SHARDS)


def report(client, worker, *, queue=QUEUE, data=None, **changed):
    """Report a worker as it would do itself."""
    facts = {"worker": worker, "state": "working", "activity_shares": {}, "tokens_per_second": 30.0, **changed}
    client.sadd(workers_key(queue), worker)
    client.set(report_key(queue, worker), data or WorkerReport(**facts).encode(), px=int(REPORT_SECONDS * 1000))


def page_of(producer):
    (served,) = producer.events("status_page_served")
    with urllib.request.urlopen(f"{served['url']}status.json") as answer:
        return json.load(answer)


def metrics_of(producer):
    port = producer.events("producer_started")[0]["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0].removeprefix("hiddenstream_producer_"): float(line.split()[-1]) for line in lines}


def test_workers_are_shown_as_they_report_and_share_the_speed(client):
    """Each report becomes a worker with its state, its GPU and its share; worker-10 comes after worker-9."""
    board = WorkerBoard(QUEUE)
    gpu = GpuReport(uuid="GPU-1", name="H200", memory_used_bytes=3, memory_total_bytes=4)
    for name, rate in (("w-10", 10.0), ("w-9", 30.0)):
        report(client, name, tokens_per_second=rate, gpus=(gpu,), shards_in_hand=(4, 5))

    board.read(client, 0.0)

    first, second = board.workers(0.5)
    assert (["w-9", "w-10"], [0.75, 0.25]) == ([first.worker, second.worker], [first.share, second.share])
    assert ((gpu,), 2, 2) == (first.gpus, first.shards_in_hand, board.by_state()["working"])
    assert 0.5 <= first.heard_seconds < 2


def test_a_worker_that_vanished_is_shown_as_gone_for_a_while(client):
    """When a report runs out its name leaves the set, and the worker is shown as gone for some minutes."""
    board = WorkerBoard(QUEUE)
    report(client, "w-1")
    board.read(client, 0.0)
    client.delete(report_key(QUEUE, "w-1"))

    board.read(client, 1.0)
    gone = board.workers(1.0)
    board.read(client, GONE_SECONDS + 1)

    assert [("gone", "was working", 0.0)] == [(w.state, w.message, w.tokens_per_second) for w in gone]
    assert 0 == client.scard(workers_key(QUEUE))
    assert () == board.workers(GONE_SECONDS + 1)


@pytest.mark.parametrize(
    "data", [b"\xff", b"", b"x" * 70_000, WorkerReport(worker="other", state="idle", activity_shares={}).encode()]
)
def test_a_malformed_report_is_counted_once_and_harms_no_other(client, data):
    """What cannot be read, is too long or names another worker is left out and counted; others are shown."""
    board = WorkerBoard(QUEUE)
    report(client, "good")
    report(client, "bad", data=data or b"\0")

    board.read(client, 0.0)
    board.read(client, 1.0)

    assert (["good"], 1) == ([worker.worker for worker in board.workers(1.0)], board.malformed)


def test_a_producer_shows_its_run_on_page_and_metrics(paths, services):
    """Page and metrics of a real producer tell its commits, queue, disk and workers."""
    producer = services.producer("--reserve-bytes", "0")
    commit_shard(paths, a_shard(paths, 1, made_by=described({"block.1": 3.0, "no.such.tap": 1.0})))
    wait_until(lambda: producer.events("producer_started"))
    report(
        services.client(),
        "w-1",
        queue=services.queue(),
        bottleneck="gpu",
        log_lines=('{"time":"2026-01-01T00:00:00Z","event":"model_loaded"}',),
    )
    wait_until(lambda: page_of(producer)["workers"] and page_of(producer)["queue"]["waiting"])

    page, metrics = page_of(producer), metrics_of(producer)

    assert ("running", "test", "tiny", 1, "gpu") == (
        page["state"],
        page["run"],
        page["model"],
        page["committed"]["shards"],
        page["bottleneck"],
    )
    assert "model_loaded" in [line["event"] for line in page["log"] if line["source"] == "w-1"]
    assert (1.0, 1.0, 3.0, 0.0) == (
        metrics['workers{state="working"}'],
        metrics["workers_live"],
        metrics["shards_to_do"],
        metrics["is_complete"],
    )
    assert 0.0 == metrics['samples_quarantined{reason="all_zero"}']
    assert (3.0, 4.0) == (metrics['tap_mean{tap="block.1"}'], metrics['tap_largest{tap="block.1"}'])
    assert pytest.approx(10**0.5) == metrics['tap_rms{tap="block.1"}']
    assert ["block.1"] == [name.split('"')[1] for name in metrics if name.startswith("tap_rms")]
    assert metrics["disk_total_bytes"] >= metrics["disk_free_bytes"] > 0
    assert metrics["redis_memory_used_bytes"] > 0
    assert metrics["oldest_job_age_seconds"] >= 0
    assert [name for name in metrics if name.startswith('run_info{compute_dtype="float32"') and 'run="test"' in name]


def test_a_producer_that_stays_serves_on_until_it_is_stopped(paths, services):
    """With --stay the ended run is still on page and metrics; SIGTERM then ends it with the run's exit code."""
    for shard in range(len(SHARDS)):
        store_shard(paths, shard)
    producer = services.producer("--stay")
    wait_until(lambda: producer.events("run_ended"))
    wait_until(lambda: "complete" == page_of(producer)["state"])

    wait_until(lambda: metrics_of(producer)["is_redis_reachable"] == 1.0)  # it delivers nothing, and asks all the same
    assert (0, 1.0) == (page_of(producer)["exit_code"], metrics_of(producer)["is_complete"])
    assert producer.process.poll() is None
    producer.process.send_signal(signal.SIGTERM)
    assert 0 == producer.wait(10)


def test_redis_is_unreachable_only_while_it_is(paths, services, redis_server):
    """The series follows an outage in both directions, also of a run that has nothing left to deliver."""
    for shard in range(len(SHARDS)):
        store_shard(paths, shard)
    producer = services.producer("--stay")
    wait_until(lambda: producer.events("run_ended") and metrics_of(producer)["is_redis_reachable"] == 1.0)

    redis_server.kill()
    wait_until(lambda: metrics_of(producer)["is_redis_reachable"] == 0.0)
    redis_server.start()

    wait_until(lambda: metrics_of(producer)["is_redis_reachable"] == 1.0)


def test_a_producer_that_was_not_asked_for_redis_says_nothing_of_it():
    """Before Redis was asked the series has no number, so no alert can be raised from it."""
    registry = CollectorRegistry()
    ProducerMetrics.in_registry(registry)

    assert math.isnan(registry.get_sample_value("hiddenstream_producer_is_redis_reachable"))


def test_a_refused_producer_that_stays_shows_why(paths, services, tmp_path):
    """With --stay, a refusal is told on the page until SIGTERM, and then by the exit code."""
    missing = ["--model", str(tmp_path / "none"), "--data", str(tmp_path / "none.jsonl"), "--metrics-listen"]
    other = str(tmp_path / "other")
    producer = services.start("p", "producer", other, "--redis", services.redis_url, "--stay", *missing, "127.0.0.1:0")
    wait_until(lambda: producer.events("producer_refused"))
    wait_until(lambda: page_of(producer)["state"] == "refused")
    page = page_of(producer)

    assert page["message"] == producer.events("producer_refused")[0]["message"]
    assert (True, 0) == (page["has_ended"], page["planned"]["samples"])
    assert producer.process.poll() is None
    producer.process.send_signal(signal.SIGTERM)
    assert producer.wait(10) in (1, 2)


def test_a_status_port_that_was_asked_for_must_be_free(paths, services):
    """A taken port ends the producer with 2 where it was asked for; else another one is taken."""
    first = services.producer("--reserve-bytes", "0")
    wait_until(lambda: first.events("producer_started"))
    taken = first.events("status_page_served")[0]["url"].rstrip("/").rpartition("/")[2]
    first.process.send_signal(signal.SIGTERM)
    first.wait(10)
    first = services.start(
        "first", "producer", str(paths.root), "--redis", services.redis_url, "--status-listen", taken
    )
    wait_until(lambda: first.events("producer_started"))
    other = a_run(paths.root.parent / "other", SHARDS)

    second = services.start(
        "second", "producer", str(other.root), "--redis", services.redis_url, "--status-listen", taken
    )

    assert 2 == second.wait(30)
    assert "--status-listen" in second.events("producer_refused")[0]["message"]


def test_planning_is_shown(request_of):
    """Whoever asks while rows are read is told how many there are so far, to the last."""
    from producer.plan import make_plan

    told = []

    make_plan(request_of([{"id": str(n), "input_ids": [1, 2]} for n in range(200)]), on_rows=told.append)

    assert told == sorted(told)
    assert (200, True) == (told[-1], len(told) > 2)
