"""A worker as its operator sees it: real processes that refuse, count, and replace a hung engine."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request

import pytest

from bench.zoo_models import save_model
from hiddenstream.contracts.queue import report_key, workers_key
from hiddenstream.contracts.worker_report import REPORT_SECONDS, WorkerReport
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
    assert 0 < series["tokens_total"] <= series["computed_tokens_total"] <= series["token_slots_total"]
    assert shards - 1 == series['stage_seconds_count{stage="answer"}'] == series['stage_seconds_count{stage="send"}']
    assert 0 < series['tap_rms{tap="block.2"}']
    assert (1, 0) == (series['exactness_gate{verdict="passed"}'], series['exactness_gate{verdict="not_run"}'])
    assert (1, 0) == (series['batching_way{way="padded"}'], series['batching_way{way="packed"}'])
    assert 0 <= series['exactness_difference{test="blocks"}'] < 1e-4
    assert 0 == series['exactness_difference{test="swap"}'] == series['exactness_difference{test="reference"}']
    assert 0 < series["model_load_seconds"]
    assert 1 == sum(value for name, value in series.items() if name.startswith("build_info") and 'torch="2' in name)
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
    sink = services.sink()
    producer = services.producer(*plan_arguments)
    wait_until(services.paths.is_planned, 60)
    producer.process.send_signal(signal.SIGSTOP)
    services.client().delete(f"rq:queue:{services.queue()}")
    worker = services.worker("worker-a")
    wait_until(lambda: worker.events("reference_stored"), 60)
    sink.end()
    services.sink("--reserve-bytes", "1000000G")
    producer.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "disk_full" in worker.log.read_text(), 60)

    worker.process.send_signal(signal.SIGTERM)
    waited = len(worker.events("sink_waited_for"))
    wait_until(lambda: len(worker.events("sink_waited_for")) > waited + 1, 60)
    code_after_one = worker.process.poll()
    worker.process.send_signal(signal.SIGTERM)

    assert code_after_one is None
    assert 1 == worker.wait(10)
    assert 0 == services.commits()


def test_activity_adds_up_to_the_time_that_passes(services, plan_arguments):
    """Each second of a living engine is counted as one activity, also while it waits; idle, for its queue."""
    services.sink()
    producer = services.producer(*plan_arguments)
    wait_until(services.paths.is_planned, 60)
    producer.process.send_signal(signal.SIGSTOP)
    services.client().delete(f"rq:queue:{services.queue()}")
    worker = services.worker("worker-a")
    wait_until(lambda: worker.events("model_loaded"), 60)

    def total(series):
        return sum(value for name, value in series.items() if name.startswith("activity_seconds_total"))

    wait_until(lambda: total(scraped(worker)) > 0)
    begin, began = scraped(worker), time.monotonic()
    wait_until(lambda: total(scraped(worker)) - total(begin) > 3)
    passed, end = time.monotonic() - began, scraped(worker)

    assert passed == pytest.approx(total(end) - total(begin), abs=1.5)
    waited = 'activity_seconds_total{activity="wait_for_job"}'
    assert end[waited] - begin[waited] == pytest.approx(total(end) - total(begin), abs=0.01)
    assert 1 == end['state{state="idle"}']
    assert 1 == end['bottleneck{resource="none"}']  # it has had no job yet


def test_a_report_is_there_while_the_worker_is(services, plan_arguments):
    """A worker's report says what it did, outlives a kill by some seconds only, and a stopped worker takes it back."""
    services.sink()
    producer = services.producer(*plan_arguments)
    wait_until(services.paths.is_planned, 60)
    key = f"rq:queue:{services.queue()}"
    wait_until(lambda: services.paths.read_record().shards == services.client().llen(key))
    producer.process.send_signal(signal.SIGSTOP)
    services.client().rpop(key)
    workers = [services.worker(name) for name in ("worker-a", "worker-b")]

    def report_of(name):
        data = services.client().get(report_key(services.queue(), name))
        return None if data is None else WorkerReport.decode(data)

    wait_until(lambda: all((report := report_of(worker.log.stem)) and "idle" == report.state for worker in workers), 60)
    reports = [report_of(worker.log.stem) for worker in workers]
    names = services.client().smembers(workers_key(services.queue()))
    workers[0].process.send_signal(signal.SIGTERM)
    assert 0 == workers[0].wait(60)
    after_stop, left = report_of("worker-a"), services.client().smembers(workers_key(services.queue()))
    workers[1].signal_all(signal.SIGKILL)

    assert {b"worker-a", b"worker-b"} == names
    assert services.commits() == sum(report.shards for report in reports)
    assert all("cpu" == report.device for report in reports)
    assert any("shard_extracted" in line for report in reports for line in report.log_lines)
    assert (None, {b"worker-b"}) == (after_stop, left)
    wait_until(lambda: report_of("worker-b") is None, REPORT_SECONDS + 1)
    assert 0 < services.client().ttl(workers_key(services.queue())) <= 60


def test_a_refused_worker_can_stay_to_say_so(services, plan_arguments, tmp_path):
    """With --stay a worker whose model fails the exactness gate shows that and its reason, and leaves with 2."""
    model = save_model("gemma3n_text", tmp_path / "four-streams")  # what leaves its blocks is [4, rows, tokens, width]
    arguments = [str(model) if part == plan_arguments[1] else part for part in plan_arguments]
    services.sink()
    services.producer(*arguments)

    worker = services.worker("worker-a", "--stay")
    wait_until(lambda: worker.events("worker_stayed"), 60)
    series = scraped(worker)

    assert (1, 1) == (series['state{state="refused"}'], series['exactness_gate{verdict="failed"}'])
    assert 503 == health(worker)
    assert set() == services.leased_shards("worker-a")
    key = report_key(services.queue(), "worker-a")

    def says_why():
        data = services.client().get(key)
        return data and "not [rows, tokens, width]" in WorkerReport.decode(data).message

    wait_until(says_why)
    worker.process.send_signal(signal.SIGTERM)
    assert 2 == worker.wait(10)


def test_a_worker_refused_by_the_sink_can_stay(services, plan_arguments, tmp_path):
    """A wrong token is shown with --stay, too, though there is no queue to report to."""
    services.sink()
    services.producer(*plan_arguments)
    wait_until(services.paths.is_planned, 60)
    (tmp_path / "token").write_text("another")

    worker = services.worker("worker-a", "--stay")
    wait_until(lambda: worker.events("worker_stayed"), 60)

    assert 1 == scraped(worker)['state{state="refused"}']
    assert 503 == health(worker)
    worker.process.send_signal(signal.SIGTERM)
    assert 2 == worker.wait(10)
