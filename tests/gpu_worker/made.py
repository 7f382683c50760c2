"""Runs that are really planned for a tiny model, and what a worker makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.forward import ForwardPass
from gpu_worker.model import TORCH_DTYPES, LoadedModel, load_model
from hiddenstream.contracts.job import ExtractionJob
from hiddenstream.contracts.run import RunRecord
from hiddenstream.model_reference import resolve_model
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import Plan
from producer.plan import make_plan
from producer.plan_request import PlanRequest
from tests.tiny import random_rows, write_rows

CPU = torch.device("cpu")
EVERY_TAP = ("embedding", "block.0", "block.2", "block.4")


def a_planned_run(root: Path, model: Path, rows: list[dict[str, Any]] | None = None, **changed: Any) -> RunPaths:
    """Plan *rows* in float32 into one shard; *changed* replaces fields of the request."""
    root.mkdir(parents=True, exist_ok=True)
    request = PlanRequest(
        run_directory=root / "run",
        run_name="run",
        model=resolve_model(str(model)),
        taps=EVERY_TAP,
        keeps_final=False,
        compute_dtype="float32",
        stored_dtype="float32",
        data=(write_rows(random_rows([3]) if rows is None else rows, root / "rows.jsonl"),),
        max_length=None,
        over_long="reject",
        token_budget=1024,  # one batch, so one shard
        shard_bytes=1 << 24,
        is_strict=False,
    )
    make_plan(replace(request, **changed))
    return RunPaths(root / "run")


def a_job(paths: RunPaths, shard: int = 0, **changed: Any) -> ExtractionJob:
    """Return the first delivery of a planned shard, to be cut into several batches; *changed* replaces its fields."""
    record = paths.read_record()
    job = ExtractionJob(
        run=record.run,
        fingerprint=record.identity.fingerprint,
        shard=shard,
        delivery="a_1",
        token_budget=40,
        samples=Plan(paths).samples_of(shard),
    )
    return replace(job, **changed)


def loaded(record: RunRecord) -> LoadedModel:
    """Load a run's model as an engine does."""
    return load_model(record, record.model, CPU)


def forward_of(model: LoadedModel, record: RunRecord) -> ForwardPass:
    """Return the forward pass of a run on its model."""
    return ForwardPass(model, record.identity.taps, TORCH_DTYPES[record.identity.stored_dtype])


def token_rows(lengths: list[int], *, seed: int = 0) -> list[npt.NDArray[np.int32]]:
    """Return rows of random token ids."""
    return [np.array(row["input_ids"], np.int32) for row in random_rows(lengths, seed=seed)]
