"""The services as processes of their own, from rows to states."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.pipeline.services import Services, assert_complete_and_equal, wait_for
from tests.tiny import random_rows, save_tiny_model, write_rows


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5_text"])
def test_every_stored_sample_equals_plain_transformers(family: str, services: Services, tmp_path: Path) -> None:
    """Thirty samples of mixed and equal lengths come out as plain transformers computes each alone."""
    model = save_tiny_model(family, tmp_path / "model")
    rows = random_rows([3, 17, 1, 64, 9, 9, 9, 9, 40, 2] * 3)
    data = write_rows(rows, tmp_path / "rows.jsonl")
    what = ["--model", str(model), "--data", str(data), "--layers", "embedding,0,2,final", "--dtype", "float32"]

    services.sink()
    producer = services.producer(*what, "--token-budget", "128", "--reserve-bytes", "0")
    worker = services.worker("worker-a")

    assert 0 == producer.wait()
    assert 0 == worker.wait()
    assert_complete_and_equal(services.paths, rows)
    assert [] == services.client().keys("*")


def test_workers_come_and_go(services: Services, plan_arguments: list[str], rows: list[dict[str, object]]) -> None:
    """A second worker joins a running run, the first leaves on SIGTERM, and nothing is done twice."""
    services.sink()
    producer = services.producer(*plan_arguments)
    first = services.worker("worker-a")
    wait_for(lambda: services.commits() >= 3, "three commits")
    first.process.send_signal(signal.SIGTERM)
    first_code = first.wait(30)
    committed_by_first = services.commits()

    second = services.worker("worker-b")

    assert 0 == first_code
    assert committed_by_first < services.paths.read_record().shards
    assert 0 == producer.wait()
    assert 0 == second.wait()
    assert_complete_and_equal(services.paths, rows)
    assert services.paths.read_record().shards == services.executions()


def test_services_wait_for_each_other(services: Services, plan_arguments: list[str]) -> None:
    """A worker started before everything else says what it waits for, and works once it is there."""
    worker = services.worker("worker-a")
    wait_for(lambda: worker.events("sink_waited_for"), "it says that it waits for the sink")
    services.sink()
    producer = services.producer(*plan_arguments)

    assert 0 == producer.wait()
    assert 0 == worker.wait()
    assert 1 == len(worker.events("model_loaded"))


def test_a_second_producer_has_nothing_to_do(services: Services, plan_arguments: list[str]) -> None:
    """The producer of a complete run ends at once and enqueues nothing."""
    services.sink()
    services.producer(*plan_arguments)
    services.worker("worker-a")
    wait_for(lambda: all(s.process.poll() is not None for s in services.started[1:]), "the run ends")

    again = services.producer(*plan_arguments)

    assert 0 == again.wait()
    assert [] == services.client().keys("*")
