"""Making the plan of a new run, or checking that an existing one is the run that was asked for."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

from hiddenstream.chassis.logs import log
from hiddenstream.contracts.errors import RunMismatch, UsageError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.taps import FINAL, parse_layers
from hiddenstream.model_reference import ModelReference, resolve_model
from hiddenstream.run_directory.paths import RunPaths
from producer.dataset import describe_sources
from producer.plan import make_plan
from producer.plan_request import PlanRequest
from producer.settings import (
    DEFAULT_DTYPE,
    DEFAULT_LAYERS,
    DEFAULT_OVER_LONG,
    DEFAULT_SHARD_BYTES,
    DEFAULT_TOKEN_BUDGET,
    PlanFlags,
)

PLAN_RESUMED = "plan_resumed"
DATA_NOT_CHECKED = "data_not_checked"
TOKEN_BUDGET_KEPT = "token_budget_kept"
_LOGGER = logging.getLogger("producer.resume")


def ensure_plan(flags: PlanFlags, *, on_rows: Callable[[int], None] = lambda _: None) -> RunRecord:
    """Return the run's record, after planning it if it is new. The caller holds the producer lock.

    Args:
        on_rows: as of :func:`producer.plan.make_plan`.

    Raises:
        UsageError: a new run without model or data, or a setting that cannot be meant.
        RunMismatch: an existing run, and something given says otherwise.
        HiddenstreamError: whatever :func:`producer.plan.make_plan` raises.
    """
    paths = RunPaths(flags.run_directory)
    if not paths.is_planned():
        return make_plan(plan_request(flags), on_rows=on_rows)
    record = paths.read_record()
    refuse_other_run(flags, record)
    log(_LOGGER, PLAN_RESUMED, {"run": record.run, "samples": record.samples, "shards": record.shards})
    return record


def plan_request(flags: PlanFlags) -> PlanRequest:
    """Make every choice that *flags* leave open, and find the model.

    Raises:
        UsageError: no model or no data, or layers that the model does not have.
        ModelError: the model cannot be found.
    """
    if flags.model is None:
        raise UsageError(f"{flags.run_directory} holds no run yet; --model is required to plan one")
    if not flags.data:
        raise UsageError(f"{flags.run_directory} holds no run yet; --data is required to plan one")
    model = resolve_model(flags.model, flags.revision)
    layers = DEFAULT_LAYERS if flags.layers is None else flags.layers
    compute_dtype = flags.dtype or DEFAULT_DTYPE
    return PlanRequest(
        run_directory=flags.run_directory,
        run_name=flags.run_name or default_run_name(flags.run_directory),
        model=model,
        taps=parse_layers(layers, num_blocks=model.num_blocks, keep_final=bool(flags.final)),
        keeps_final=bool(flags.final) or _names_final(layers),
        compute_dtype=compute_dtype,
        stored_dtype=flags.store_dtype or compute_dtype,
        data=flags.data,
        max_length=flags.max_length,
        over_long=flags.over_long or DEFAULT_OVER_LONG,
        token_budget=flags.token_budget or DEFAULT_TOKEN_BUDGET,
        shard_bytes=flags.shard_bytes or DEFAULT_SHARD_BYTES,
        is_strict=bool(flags.strict),
        keeps_heads=bool(flags.heads),
    )


def default_run_name(run_directory: Path) -> str:
    """Make a run's name of its folder's."""
    words = re.sub(r"[^A-Za-z0-9_-]+", "-", run_directory.absolute().resolve().name)
    return words.strip("-_")[:64] or "run"


def refuse_other_run(flags: PlanFlags, record: RunRecord) -> None:
    """Compare what was given, and only that, with an existing run.

    Raises:
        RunMismatch: something differs; the error lists all of it.
    """
    names_model = flags.model is not None or flags.revision is not None
    model = resolve_model(flags.model or record.model, flags.revision) if names_model else None
    settings, identity = record.settings, record.identity
    given = [
        ("model", model and model.digest, identity.model_digest),
        ("dtype", flags.dtype, identity.compute_dtype),
        ("store_dtype", flags.store_dtype, identity.stored_dtype),
        ("max_length", _longest(flags, record, model), settings.max_length),
        ("over_long", flags.over_long, settings.over_long),
        ("shard_bytes", flags.shard_bytes, settings.shard_bytes),
        ("heads", flags.heads, record.keeps_heads),
        ("run_name", flags.run_name, record.run),
    ]
    differences = [_line(name, has, got) for name, got, has in given if got is not None and got != has]
    differences += _tap_differences(flags, record) + _data_differences(flags, record)
    if differences:
        raise RunMismatch(str(flags.run_directory), differences)
    if flags.token_budget not in (None, settings.token_budget):
        facts = {"planned": settings.token_budget, "given": flags.token_budget}
        log(_LOGGER, TOKEN_BUDGET_KEPT, {**facts, "message": "the plan keeps its batches"}, level=logging.WARNING)


def _line(name: str, has: object, got: object) -> str:
    return f"{name}: this run has {has!r}, got {got!r}"


def _longest(flags: PlanFlags, record: RunRecord, model: ModelReference | None) -> int | None:
    """Return what the given maximum comes to; the record holds it with model and token budget considered."""
    if flags.max_length is None:
        return None
    positions = model.max_positions if model is not None and model.max_positions is not None else flags.max_length
    return min(flags.max_length, positions, record.settings.token_budget)


def _names_final(layers: str) -> bool:
    return FINAL in [word.strip() for word in layers.split(",")]


def _tap_differences(flags: PlanFlags, record: RunRecord) -> list[str]:
    keeps_final = record.keeps_final if flags.final is None else flags.final
    taps = record.identity.taps
    if flags.layers is not None:
        taps = parse_layers(flags.layers, num_blocks=record.num_blocks, keep_final=keeps_final)
        keeps_final = keeps_final or _names_final(flags.layers)
    differences = []
    if taps != record.identity.taps:
        differences.append(_line("layers", ",".join(record.identity.taps), ",".join(taps)))
    if keeps_final != record.keeps_final:
        differences.append(_line("final", record.keeps_final, keeps_final))
    return differences


def _data_differences(flags: PlanFlags, record: RunRecord) -> list[str]:
    missing = [str(path) for path in flags.data if not path.exists()]
    planned = [source.name for source in record.sources]
    foreign = [name for name in missing if not any(f"{source}/".startswith(f"{name}/") for source in planned)]
    if foreign:
        return [f"data: there is no {name}, and the run was not planned from it" for name in foreign]
    if missing:
        message = "the data is gone, so it cannot be compared; the plan holds the tokens"
        log(_LOGGER, DATA_NOT_CHECKED, {"missing": missing, "message": message}, level=logging.WARNING)
    if missing or not flags.data:
        return []
    sources = describe_sources(flags.data)
    if len(sources) != len(record.sources):
        return [f"data: this run has {len(record.sources)} files, got {len(sources)}"]
    return [
        _line(f"data file {new.name}", f"{old.size_bytes} bytes, xxh3 {old.xxh3}", f"{new.size_bytes}, {new.xxh3}")
        for old, new in zip(record.sources, sources, strict=True)
        if (old.size_bytes, old.xxh3) != (new.size_bytes, new.xxh3)
    ]
