"""Making the plan: input in, ``tokens.bin``, ``samples.parquet`` and at last ``run.json`` out."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from hiddenstream.chassis.logs import log, now
from hiddenstream.contracts.errors import DiskTooSmall, HiddenstreamError, RunDirectoryError
from hiddenstream.contracts.run import DataSource, PlanSettings, RunRecord
from hiddenstream.run_directory.paths import RunPaths, sync_folder
from hiddenstream.run_directory.plan import Plan, plan_id_of, write_table
from producer.chat import ChatTokenizer
from producer.dataset import describe_sources, read_rows
from producer.plan_request import PlanRequest
from producer.plan_rows import PlanRows
from producer.planner import ShardPlan, plan_shards
from producer.rejections import NothingPlanned, StrictRejection
from producer.rows import Limits, Rejection, read_sample

ROWS_READ = "rows_read"
RUN_PLANNED = "run_planned"
_PROGRESS_SECONDS = 10.0
_ROWS_TOLD = 64
_TOKEN_AND_MASK_BYTES = 5  # a shard holds them beside the states
__all__ = ["PlanRequest", "make_plan"]
_LOGGER = logging.getLogger("producer.plan")


def make_plan(request: PlanRequest, *, on_rows: Callable[[int], None] = lambda _: None) -> RunRecord:
    """Read the input once and write the run directory's plan, ``run.json`` last.

    What a crashed attempt left is replaced. The caller holds the run directory's producer lock.

    Args:
        on_rows: called with the number of rows read so far, every few of them.

    Raises:
        RunDirectoryError: the directory is planned already, or cannot be written.
        UsageError: input that cannot be read.
        StrictRejection: a bad row, with ``is_strict``.
        ConflictingIds: one id with different tokens.
        NothingPlanned: no usable row.
        DiskTooSmall: the states would not fit.
    """
    paths = RunPaths(request.run_directory)
    if paths.is_planned():
        raise RunDirectoryError(f"{paths.root} is planned already")
    try:
        shutil.rmtree(paths.plan, ignore_errors=True)
        paths.plan.mkdir(parents=True)
        record = _write_plan(request, paths, on_rows)
    except HiddenstreamError:
        shutil.rmtree(paths.plan, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(paths.plan, ignore_errors=True)
        raise RunDirectoryError(f"the plan cannot be written to {paths.root}: {error}") from error
    log(_LOGGER, RUN_PLANNED, {"run": record.run, "samples": record.samples, "shards": record.shards})
    return record


def _write_plan(request: PlanRequest, paths: RunPaths, on_rows: Callable[[int], None]) -> RunRecord:
    started = time.monotonic()
    sources = describe_sources(request.data)
    with PlanRows(paths.tokens) as rows:
        _read_rows(request, rows, on_rows)
        if not rows.samples:
            raise NothingPlanned(dict(rows.rejected))
        bytes_per_token = request.identity("").bytes_per_token
        shards = plan_shards(
            rows.lengths,
            token_budget=request.token_budget,
            shard_bytes=request.shard_bytes,
            bytes_per_token=bytes_per_token,
        )
        _refuse_small_disk(paths.root, rows.token_count * (bytes_per_token + _TOKEN_AND_MASK_BYTES))
        rows.finish_tokens()
    table = write_table(paths, rows.columns(shards))
    plan_id = plan_id_of(Plan(paths, table).digests())
    record = _record(request, rows, shards, sources, plan_id, planning_seconds=time.monotonic() - started)
    _finish(paths, record)
    return record


def _read_rows(request: PlanRequest, rows: PlanRows, on_rows: Callable[[int], None]) -> None:
    limits = Limits(
        vocabulary_rows=request.model.vocabulary_rows, max_length=request.longest, over_long=request.over_long
    )
    render_chat = ChatTokenizer(request.model.name, request.model.revision)
    told_at = time.monotonic()
    for source_row, raw in enumerate(read_rows(request.data)):
        outcome = read_sample(raw, source_row=source_row, limits=limits, render_chat=render_chat)
        if not isinstance(outcome, Rejection):
            rows.add_sample(outcome)
        elif request.is_strict:
            raise StrictRejection(outcome.source, outcome.reason, outcome.detail)
        else:
            rows.add_rejection(outcome)
        if source_row % _ROWS_TOLD == 0:
            on_rows(len(rows))
        if time.monotonic() - told_at >= _PROGRESS_SECONDS:
            told_at = time.monotonic()
            log(_LOGGER, ROWS_READ, {"rows": len(rows), "samples": rows.samples, "tokens": rows.token_count})
    on_rows(len(rows))


def _refuse_small_disk(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise DiskTooSmall(str(folder), needed_bytes=needed_bytes, free_bytes=free_bytes)


def _record(
    request: PlanRequest,
    rows: PlanRows,
    shards: ShardPlan,
    sources: tuple[DataSource, ...],
    plan_id: str,
    *,
    planning_seconds: float,
) -> RunRecord:
    return RunRecord(
        run=request.run_name,
        identity=request.identity(plan_id),
        model=request.model.name,
        revision=request.model.revision,
        num_blocks=request.model.num_blocks,
        keeps_final=request.keeps_final,
        settings=PlanSettings(
            max_length=request.longest,
            over_long=request.over_long,
            token_budget=request.token_budget,
            shard_bytes=request.shard_bytes,
            is_strict=request.is_strict,
        ),
        sources=sources,
        shards=shards.shards,
        samples=rows.samples,
        tokens=rows.token_count,
        longest_tokens=int(rows.lengths.max()),
        rejected=dict(rows.rejected),
        merged=rows.merged,
        truncated=rows.truncated,
        without_mask=rows.without_mask,
        token_slots=shards.token_slots,
        planning_seconds=round(planning_seconds, 3),
        created=now(),
        keeps_heads=request.keeps_heads,
    )


def _finish(paths: RunPaths, record: RunRecord) -> None:
    """Make all files durable and then, in one step, the plan valid."""
    with open(paths.samples, "rb") as table:
        os.fsync(table.fileno())
    for folder in (paths.plan, paths.plan.parent, paths.root):
        sync_folder(folder)
    temporary = paths.root / "run.json.new"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(record.to_json())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, paths.run_json)
    sync_folder(paths.root)
