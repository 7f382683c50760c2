"""Any process dies at any moment, and the run ends complete."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from hiddenstream.contracts.queue import LEASE_SECONDS
from tests.pipeline.services import Service, Services, assert_complete_and_equal, wait_for


@pytest.fixture
def running(services: Services, plan_arguments: list[str]) -> dict[str, Service]:
    """A run under way: sink, producer and one worker, with three shards committed."""
    started = {
        "sink": services.sink(),
        "producer": services.producer(*plan_arguments),
        "worker": services.worker("worker-a"),
    }
    wait_for(lambda: services.commits() >= 3, "three commits")
    return started


@pytest.fixture
def running_pair(services: Services, plan_arguments: list[str]) -> dict[str, Service]:
    """A run under way with two workers, both of which have a shard in hand."""
    started = {
        "sink": services.sink(),
        "producer": services.producer(*plan_arguments),
        "other": services.worker("worker-b"),
        "worker": services.worker("worker-a"),
    }
    wait_for(lambda: all(started[name].events("model_loaded") for name in ("worker", "other")), "both are loaded")
    wait_for(lambda: services.leased_by("worker-b"), "the other worker is at work")
    wait_for(lambda: services.leased_by("worker-a"), "a shard in hand")
    return started


def finish(services: Services, running: dict[str, Service], rows: list[dict[str, Any]]) -> None:
    """Wait for the run's end and prove that nothing is lost, doubled or changed."""
    assert 0 == running["producer"].wait()
    assert 0 == running["worker"].wait()
    assert "other" not in running or 0 == running["other"].wait()
    assert_complete_and_equal(services.paths, rows)
    assert [] == services.client().keys("*")


def test_a_killed_engine_is_replaced(
    services: Services, running: dict[str, Service], rows: list[dict[str, Any]]
) -> None:
    """SIGKILL of an engine in mid-shard costs that shard's time and one model load."""
    wait_for(lambda: services.leased_by("worker-a"), "a shard in hand")
    os.kill(running["worker"].child_pids()[0], signal.SIGKILL)

    finish(services, running, rows)

    assert 2 == len(running["worker"].events("model_loaded"))
    assert services.executions() <= services.paths.read_record().shards + 2


def test_a_killed_worker_s_shard_runs_elsewhere_within_ten_seconds(
    services: Services, running_pair: dict[str, Service], rows: list[dict[str, Any]]
) -> None:
    """SIGKILL of a whole worker: another one has its shards within 10 s, and its engine does not live on."""
    running = running_pair
    engine = running["worker"].child_pids()[0]
    running["worker"].process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    running["worker"].process.wait()

    wait_for(lambda: running["producer"].events("shards_redelivered"), "the shard is delivered again")
    lost = set(running["producer"].events("shards_redelivered")[0]["shards"])
    wait_for(lambda: lost & services.leased_shards("worker-b") or lost <= services.committed(), "it runs elsewhere")
    elsewhere_seconds = time.monotonic() - killed
    wait_for(lambda: not os.path.exists(f"/proc/{engine}"), "the engine is gone", seconds=5)
    running["worker"] = running.pop("other")
    finish(services, running, rows)

    assert elsewhere_seconds < 10


def test_a_killed_sink_loses_nothing(
    services: Services, running: dict[str, Service], rows: list[dict[str, Any]]
) -> None:
    """SIGKILL of the sink in mid-upload: its successor sweeps what it left, and the worker sends again."""
    sink = running["sink"]

    def is_stopped_in_mid_upload() -> bool:
        sink.process.send_signal(signal.SIGSTOP)
        parts = [file for file in services.paths.incoming.rglob("*") if file.is_file() and file.name != "lock"]
        if not parts:
            sink.process.send_signal(signal.SIGCONT)
        return bool(parts)

    wait_for(is_stopped_in_mid_upload, "an upload under way")
    sink.process.send_signal(signal.SIGKILL)
    sink.process.wait()
    wait_for(lambda: running["worker"].events("sink_waited_for"), "the worker waits for the sink")
    running["sink"] = services.sink()

    finish(services, running, rows)

    assert 1 == len(running["worker"].events("model_loaded"))


def test_a_killed_producer_continues_where_it_was(
    services: Services, running: dict[str, Service], rows: list[dict[str, Any]]
) -> None:
    """SIGKILL of the producer: its successor needs neither data nor model, and redoes nothing."""
    running["producer"].process.send_signal(signal.SIGKILL)
    running["producer"].process.wait()
    running["producer"] = services.producer()

    finish(services, running, rows)

    assert services.executions() <= services.paths.read_record().shards + 1


def test_a_worker_paused_past_its_lease_does_no_harm(
    services: Services, running_pair: dict[str, Service], rows: list[dict[str, Any]]
) -> None:
    """SIGSTOP of a worker: its shard runs elsewhere; SIGCONT: its late result is a duplicate and is dropped."""
    running = running_pair
    running["worker"].signal_all(signal.SIGSTOP)
    wait_for(lambda: not services.leased_by("worker-a"), "the lease runs out", seconds=LEASE_SECONDS + 5)
    wait_for(lambda: running["producer"].events("shards_redelivered"), "the shard is delivered again")

    running["worker"].signal_all(signal.SIGCONT)
    finish(services, running, rows)

    lost = sum(len(event["shards"]) for event in running["producer"].events("shards_redelivered"))
    assert services.executions() <= services.paths.read_record().shards + lost


def test_an_emptied_redis_is_filled_again(
    services: Services, running: dict[str, Service], rows: list[dict[str, Any]]
) -> None:
    """FLUSHALL in mid-run: queue and leases are made anew, no model is loaded again."""
    services.client().flushall()

    finish(services, running, rows)

    assert 1 == len(running["worker"].events("model_loaded"))
    assert services.executions() <= services.paths.read_record().shards + 2


def test_an_outage_of_redis_is_waited_out(
    services: Services, running: dict[str, Service], rows: list[dict[str, Any]], redis_server: Any
) -> None:
    """Redis is killed and comes back empty after 30 s: everybody waits, and no model is loaded again."""
    redis_server.kill()
    down = time.monotonic()
    wait_for(lambda: running["producer"].events("redis_waited_for"), "the producer says that it waits")
    wait_for(lambda: time.monotonic() - down > 30, "half a minute")
    redis_server.start()

    finish(services, running, rows)

    assert 1 == len(running["worker"].events("model_loaded"))
