"""Which way of batching gives this loaded model the states that plain transformers gives: found out, never assumed.

    packed ─▶ padded ─▶ equal lengths ─▶ one at a time on a fresh state ─▶ refused

Packing leaks between samples in many families, depending on configuration and not on the family's name; padding is
wrong where positions depend on the longest row or a model keeps something between batches. So at every start each way,
from the fastest on, is tried on the loaded weights (gpu_worker/canary_batches.py says with which samples) until one
passes:

- block by block, the same input gives the same output in this way and alone (gpu_worker/block_check.py);
- replacing a sample's mates changes it by not one bit (gpu_worker/swap_check.py).

Before that, taps must be what they are named (gpu_worker/first_pass.py).
A third test, states that earlier workers of the run stored, is in gpu_worker/reference.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpu_worker.block_check import Subject
from gpu_worker.canary_batches import lengths_that_matter
from gpu_worker.first_pass import has_finite_states
from gpu_worker.fresh_state import FreshState
from gpu_worker.packed_attention import AttentionSwitch
from gpu_worker.trial import try_way
from gpu_worker.ways import BatchRunner
from hiddenstream.chassis.logs import log
from hiddenstream.contracts.errors import GateRefused
from hiddenstream.contracts.run import RunIdentity
from hiddenstream.contracts.worker_report import WAYS

CANARY_NOT_FINITE = "canary_not_finite"
WAY_REFUSED = "way_refused"
WAY_CHOSEN = "way_chosen"
_LOGGER = logging.getLogger("gpu_worker.canary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What the canary decided.

    Attributes:
        verdict: ``passed``, or ``not_run`` where there was nothing finite to compare.
        way: the way of batching that passed.
        differences: largest difference by test: ``blocks`` and ``swap``.
        refused: why each faster way was not taken.
        runner: runs batches in that way.
        seconds: how long it took.
        is_bitwise: whether other batch mates change not one bit; else they change rounding.
    """

    verdict: str
    way: str
    differences: Mapping[str, float]
    refused: Mapping[str, str]
    runner: BatchRunner
    seconds: float = 0.0
    is_bitwise: bool = True


def ways_for(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """Return the ways worth trying; packing pays where variable-length attention runs, on CUDA in half precision."""
    return WAYS if device.type == "cuda" and dtype != torch.float32 else WAYS[1:]


@torch.inference_mode()
def choose_way(
    backbone: nn.Module,
    blocks: nn.ModuleList,
    identity: RunIdentity,
    *,
    device: torch.device,
    longest_tokens: int,
    token_budget: int,
    ways: tuple[str, ...] | None = None,
) -> Gate:
    """Find the fastest way of batching that is right for a loaded model.

    Args:
        longest_tokens: tokens of the plan's longest sample.
        token_budget: token slots of a batch.
        ways: to try, in order; those of :func:`ways_for` unless given.

    Raises:
        GateRefused: a tap is never reached, has another shape or another block's states; or no way is right.
        IndexError: what a backbone raises that counts its blocks by its configuration and finds some missing.
    """
    started = time.monotonic()
    dtype: torch.dtype = getattr(torch, identity.compute_dtype)
    fresh = FreshState(backbone)
    subject = Subject(
        backbone=backbone,
        blocks=blocks,
        device=device,
        dtype=dtype,
        fresh=fresh,
        fresh_blocks=[FreshState(block) for block in blocks],
        attention=AttentionSwitch(backbone),
    )
    if not has_finite_states(subject, identity):
        log(_LOGGER, CANARY_NOT_FINITE, {"taps": identity.taps}, level=logging.WARNING)
        runner = BatchRunner(backbone, device, "one_at_a_time", fresh)  # right whatever the model does
        return Gate(verdict="not_run", way=runner.way, differences={}, refused={}, runner=runner)
    lengths = lengths_that_matter(_settings_of(backbone), longest_tokens)
    refused: dict[str, str] = {}
    for way in ways or ways_for(device, dtype):
        runner = BatchRunner(backbone, device, way, fresh)
        trial = try_way(subject, runner, lengths, identity.taps, token_budget=token_budget)
        if not trial.fault:
            gate = Gate(
                verdict="passed",
                way=way,
                differences=trial.differences,
                refused=refused,
                runner=runner,
                seconds=time.monotonic() - started,
                is_bitwise=trial.is_bitwise,
            )
            _log_choice(gate)
            return gate
        refused[way] = trial.fault
        log(_LOGGER, WAY_REFUSED, {"way": way, "message": trial.fault}, level=logging.WARNING)
    raise GateRefused(
        f"{type(backbone).__name__}: no way of batching gives what it computes for a sample alone; "
        + "; ".join(f"{way}: {reason}" for way, reason in refused.items())
    )


def _settings_of(backbone: nn.Module) -> Mapping[str, Any]:
    config: Any = backbone.config
    settings: Mapping[str, Any] = config.get_text_config().to_dict()
    return settings


def _log_choice(gate: Gate) -> None:
    facts = {
        "way": gate.way,
        "differences": {test: float(f"{difference:.2e}") for test, difference in gate.differences.items()},
        "is_bitwise": gate.is_bitwise,
        "seconds": round(gate.seconds, 3),
        "refused": dict(gate.refused),
    }
    log(_LOGGER, WAY_CHOSEN, facts)
