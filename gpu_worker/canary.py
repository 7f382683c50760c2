"""Which way of batching gives this loaded model the states that plain transformers gives: found out, never assumed.

    packed ─▶ padded ─▶ equal lengths ─▶ one at a time on a fresh state ─▶ refused

Packing leaks between samples in many families, depending on configuration and not on the family's name; padding is
wrong where positions depend on the longest row or a model keeps something between batches. So at every start each way,
from the fastest on, is tried on the loaded weights (gpu_worker/canary_batches.py says with which samples) until one
passes:

- block by block, the same input gives the same output in this way and alone (gpu_worker/block_check.py);
- replacing a sample's mates changes it by not one bit (gpu_worker/swap_check.py).

Before that, taps must be what they are named: the numbering is compared with transformers' own ``hidden_states``.
A third test, states that earlier workers of the run stored, is in gpu_worker/reference.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_worker.batching import padded_batch
from gpu_worker.block_check import TOLERANCES, BlockFigures, Subject, compare_blocks
from gpu_worker.canary_batches import canary_batches, lengths_that_matter
from gpu_worker.fresh_state import FreshState
from gpu_worker.packed_attention import AttentionSwitch
from gpu_worker.packing import PackingUnsupported
from gpu_worker.swap_check import swap_mates
from gpu_worker.tap_names import misnamed_tap
from gpu_worker.taps import captured_taps, no_hook_left
from gpu_worker.ways import BatchRunner, TokenRows
from hiddenstream.chassis.logs import log
from hiddenstream.contracts.errors import ModelError
from hiddenstream.contracts.run import RunIdentity
from hiddenstream.contracts.taps import EMBEDDING
from hiddenstream.contracts.worker_report import WAYS

CANARY_NOT_FINITE = "canary_not_finite"
WAY_REFUSED = "way_refused"
WAY_CHOSEN = "way_chosen"
_CPU_SWAP_SLOTS = 512  # on a CPU, where the second test costs more than a shard may, it is run on smaller batches alone
_LOGGER = logging.getLogger("gpu_worker.canary")


class GateRefused(ModelError):
    """A model whose states would be stored wrongly."""


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
    """

    verdict: str
    way: str
    differences: Mapping[str, float]
    refused: Mapping[str, str]
    runner: BatchRunner
    seconds: float = 0.0
    is_bitwise: bool = field(default=True)


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
    vocabulary = vocabulary_rows(backbone)
    if not _has_finite_states(subject, identity, vocabulary):
        log(_LOGGER, CANARY_NOT_FINITE, {"taps": identity.taps}, level=logging.WARNING)
        runner = BatchRunner(backbone, device, "padded", fresh)
        return Gate(verdict="not_run", way="padded", differences={}, refused={}, runner=runner)
    lengths = lengths_that_matter(_settings_of(backbone), longest_tokens)
    refused: dict[str, str] = {}
    for way in ways or ways_for(device, dtype):
        runner = BatchRunner(backbone, device, way, fresh)
        batches = canary_batches(
            runner, lengths, token_budget=token_budget, vocabulary=vocabulary, is_filled=device.type == "cuda"
        )
        try:
            differences, is_bitwise, reason = _judge(subject, runner, batches, identity.taps)
        except (PackingUnsupported, TypeError, ValueError, NotImplementedError) as error:
            if way != "packed":
                raise
            refused[way] = str(error)
        except RuntimeError as error:  # a kernel that does not take this shape
            if way != "packed" or isinstance(error, torch.OutOfMemoryError) or "CUDA error" in str(error):
                raise
            refused[way] = str(error).splitlines()[0]
        else:
            if not reason:
                gate = Gate(
                    verdict="passed",
                    way=way,
                    differences=differences,
                    refused=refused,
                    runner=runner,
                    seconds=time.monotonic() - started,
                    is_bitwise=is_bitwise,
                )
                _log_choice(gate)
                return gate
            refused[way] = reason
        subject.attention.set_own()
        log(_LOGGER, WAY_REFUSED, {"way": way, "message": refused[way]}, level=logging.WARNING)
    raise GateRefused(
        f"{type(backbone).__name__}: no way of batching gives what it computes for a sample alone; "
        + "; ".join(f"{way}: {reason}" for way, reason in refused.items())
    )


def vocabulary_rows(backbone: nn.Module) -> int:
    """Return how many token ids a backbone's embedding knows."""
    embedding: Any = backbone.get_input_embeddings()  # type: ignore[operator]
    return int(embedding.weight.shape[0])


def _settings_of(backbone: nn.Module) -> Mapping[str, Any]:
    config: Any = backbone.config
    settings: Mapping[str, Any] = config.get_text_config().to_dict()
    return settings


def _judge(
    subject: Subject, runner: BatchRunner, batches: list[TokenRows], taps: tuple[str, ...]
) -> tuple[dict[str, float], bool, str]:
    """Return the differences, whether mates changed not one bit, and what is wrong, or ""."""
    blocks: BlockFigures = compare_blocks(subject, runner, batches)
    differences, is_bitwise = {"blocks": blocks.difference}, True
    if blocks.fault:
        return differences, False, blocks.fault
    for rows in batches:
        slots = runner.token_slots([row.size for row in rows])
        if len(rows) > 1 and (subject.device.type == "cuda" or slots <= _CPU_SWAP_SLOTS):
            found = swap_mates(subject, runner, rows, taps)
            differences["swap"] = max(differences.get("swap", 0.0), found.difference)
            is_bitwise &= found.is_bitwise
    if not differences.get("swap", 0.0) <= TOLERANCES[subject.dtype]:
        return (
            differences,
            False,
            f"other batch mates change a sample's states (by {differences['swap']:.1e}, relative)",
        )
    return differences, is_bitwise, ""


def _log_choice(gate: Gate) -> None:
    facts = {
        "way": gate.way,
        "differences": {test: float(f"{difference:.2e}") for test, difference in gate.differences.items()},
        "is_bitwise": gate.is_bitwise,
        "seconds": round(gate.seconds, 3),
        "refused": dict(gate.refused),
    }
    log(_LOGGER, WAY_CHOSEN, facts)


def _has_finite_states(subject: Subject, identity: RunIdentity, vocabulary: int) -> bool:
    """Run one sample alone; refuse taps of another shape or name; return whether there are states to compare."""
    row = np.random.default_rng(2).integers(0, vocabulary, 9).astype(np.int32)
    ids_BT = padded_batch([row], subject.device)
    try:
        taps = tuple(dict.fromkeys((EMBEDDING, *identity.taps)))
        with no_hook_left(subject.backbone), captured_taps(subject.blocks, taps) as captured:
            output = subject.backbone(input_ids=ids_BT, use_cache=False, output_hidden_states=True)
    except ModelError as error:
        raise GateRefused(f"{type(subject.backbone).__name__}: {error}") from error
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "CUDA error" in str(error):
            raise
        name, where = type(subject.backbone).__name__, f"in {identity.compute_dtype} on {subject.device.type}"
        raise GateRefused(f"{name} cannot run {where}: {str(error).splitlines()[0]}") from error
    subject.fresh.restore()
    name = type(subject.backbone).__name__
    for tap in identity.taps:
        if tap not in captured:
            raise GateRefused(f"{tap} was never reached in a forward pass of {name}")
        expected = (*ids_BT.shape, identity.hidden_size)
        if tuple(captured[tap].shape) != expected:
            raise GateRefused(f"{tap} has shape {tuple(captured[tap].shape)}; expected {expected}")
    if not all(bool(torch.isfinite(captured[tap]).any()) for tap in identity.taps):
        return False
    mistake = misnamed_tap(captured, getattr(output, "hidden_states", None))
    if mistake:
        raise GateRefused(f"{name}: {mistake}")
    return True
