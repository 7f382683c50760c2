"""Fixtures of the pipeline's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.services import Services
from tests.tiny import random_rows, save_tiny_model, write_rows


@pytest.fixture(scope="session")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama big enough that a shard takes long enough to be killed in the middle."""
    folder = tmp_path_factory.mktemp("slow") / "model"
    return save_tiny_model("llama", folder, hidden_size=256, intermediate_size=1024, num_attention_heads=8, head_dim=32)


@pytest.fixture
def services(tmp_path: Path, redis_server: Any) -> Iterator[Services]:
    """Services on a real Redis, killed at the end of the test."""
    made = Services(tmp_path, redis_server.url)
    yield made
    made.end()


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """Rows enough for some ten seconds of work: mixed lengths, and many of the same."""
    return random_rows([1 + (7 * n) % 90 for n in range(400)] + [40] * 100)


@pytest.fixture
def plan_arguments(slow_model: Path, rows: list[dict[str, Any]], tmp_path: Path) -> list[str]:
    """What the producer needs to plan *rows* in float32, into many small shards of several batches."""
    data = write_rows(rows, tmp_path / "rows.jsonl")
    model = ["--model", str(slow_model), "--data", str(data)]
    return [*model, "--layers", "0,2,3", "--dtype", "float32", "--token-budget", "96", "--reserve-bytes", "0"]
