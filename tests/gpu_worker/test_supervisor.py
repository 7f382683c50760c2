"""A worker as its operator sees it: real processes that refuse, count, and replace a hung engine."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request

import pytest

from tests.conftest import wait_until
from tests.pipeline.services import Services, assert_complete_and_equal
from tests.tiny import random_rows, save_tiny_model, write_rows

ROWS = random_rows([3, 17, 1, 9, 9, 30, 2, 12])
SLOW = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8, "head_dim": 32}


@pytest.fixture
def services(tmp_path, redis_server):
    """Services of a run over a tiny Llama, none started yet."""
    made = Services(tmp_path, redis_server.url)
    yield made
    made.end()


@pytest.fixture
def plan_arguments(tiny_model, tmp_path):
    """What the producer needs to plan the rows."""
    data = write_rows(ROWS, tmp_path / "rows.jsonl")
    model = ["--model", str(tiny_model("llama")), "--data", str(data)]
    return [*model, "--layers", "0,2", "--dtype", "float32", "--token-budget", "64", "--reserve-bytes", "0"]


def scraped(worker):
    """Return every series of a running worker by name and labels."""
    port = worker.events("worker_started")[0]["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {
        name.removeprefix("hiddenstream_worker_"): float(value)
        for name, _, value in (line.rpartition(" ") for line in lines)
    }


def health(worker):
    """Return the status of a running worker's health answer."""
    port = worker.events("worker_started")[0]["metrics_port"]
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz").status
    except urllib.error.HTTPError as error:
        return error.code


def test_an_engine_that_refuses_its_model_ends_the_worker(services, plan_arguments, tmp_path):
    """A model of other content is refused once, with both digests in the log, and the worker exits with 2."""
    other = save_tiny_model("llama", tmp_path / "other", seed=1)
    services.sink()
    services.producer(*plan_arguments)

    worker = services.worker("worker-a", "--model", str(other))

    assert 2 == worker.wait(60)
    refused = worker.events("engine_refused")
    assert ["run_mismatch"] == [event["reason"] for event in refused]
    assert services.paths.read_record().identity.model_digest in refused[0]["message"]
    assert 0 == services.commits()


def test_a_wrong_token_ends_the_worker(services, plan_arguments, tmp_path):
    """A worker whose token the sink refuses says so and exits at once; it would be refused for ever."""
    services.sink()
    services.producer(*plan_arguments)
    wait_until(services.paths.is_planned)
    (tmp_path / "token").write_text("another")

    worker = services.worker("worker-a")

    assert 2 == worker.wait(60)
    assert "unauthorized" in worker.events("worker_refused")[0]["message"]


def test_the_metrics_show_what_was_done(services, plan_arguments):
    """A worker that waits for the rest of its run shows its deliveries, samples and tokens, and is healthy."""
    services.sink()
    producer = services.producer(*plan_arguments)
    wait_until(services.paths.is_planned)
    key = f"rq:queue:{services.queue()}"
    shards = services.paths.read_record().shards
    wait_until(lambda: shards == services.client().llen(key))
    producer.process.send_signal(signal.SIGSTOP)  # so that what is taken off the queue here stays off
    services.client().rpop(key)

    worker = services.worker("worker-a")
    wait_until(lambda: shards - 1 == services.commits(), deadline_seconds=60)
    wait_until(lambda: 0 == scraped(worker)["shards_in_hand"])
    series, status = scraped(worker), health(worker)
    producer.process.send_signal(signal.SIGCONT)

    assert shards - 1 == series['deliveries_total{outcome="committed"}'] == series["upload_attempts_total"]
    assert shards - 1 == series['stage_seconds_count{stage="upload"}']
    assert (1, 1, 0) == (series["is_ready"], series["engine_starts_total"], series["engine_deaths_total"])
    assert 0 < series["tokens_total"] <= series["token_slots_total"]
    assert 200 == status
    assert 0 == producer.wait(60)
    assert 0 == worker.wait(60)
    assert_complete_and_equal(services.paths, ROWS)


@pytest.mark.slow
def test_a_hung_engine_is_killed_and_replaced(services, tmp_path):
    """An engine that stops in mid-shard is killed after the stall time, and the run completes on another."""
    rows, model = random_rows([200] * 12), save_tiny_model("llama", tmp_path / "slow", **SLOW)
    what = ["--model", str(model), "--data", str(write_rows(rows, tmp_path / "rows.jsonl"))]
    services.sink()
    producer = services.producer(*what, "--layers", "0,2", "--dtype", "float32", "--token-budget", "1200")
    worker = services.worker("worker-a", "--stall-seconds", "3")

    def is_stopped_in_mid_shard():
        if not services.leased_by("worker-a"):
            return False
        engine, stopped = worker.child_pids()[0], time.monotonic()
        os.kill(engine, signal.SIGSTOP)
        wait_until(lambda: worker.events("engine_stalled") or time.monotonic() - stopped > 5)
        if not worker.events("engine_stalled"):  # it was between two shards
            os.kill(engine, signal.SIGCONT)
        return worker.events("engine_stalled")

    wait_until(is_stopped_in_mid_shard, deadline_seconds=60)

    assert 0 == producer.wait(60)
    assert 0 == worker.wait(60)
    assert [-signal.SIGKILL] == [event["exit_code"] for event in worker.events("engine_died")]
    assert_complete_and_equal(services.paths, rows)


def test_a_second_signal_ends_a_worker_that_waits_for_the_sink(services, plan_arguments):
    """The first SIGTERM lets a worker wait for a sink without disk, to save what it computed; the second does not."""
    services.sink("--reserve-bytes", "1000000G")
    services.producer(*plan_arguments)
    worker = services.worker("worker-a")
    wait_until(lambda: "disk_full" in worker.log.read_text(), 60)

    worker.process.send_signal(signal.SIGTERM)
    waited = len(worker.events("sink_waited_for"))
    wait_until(lambda: len(worker.events("sink_waited_for")) > waited + 1, 60)
    code_after_one = worker.process.poll()
    worker.process.send_signal(signal.SIGTERM)

    assert code_after_one is None
    assert 1 == worker.wait(10)
    assert 0 == services.commits()
