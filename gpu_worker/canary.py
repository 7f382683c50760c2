"""Refusing at start what would be stored wrongly: taps of another shape, and models whose samples see their mates.

Theory: right padding is exact only where no token sees a later one. A model that looks both ways, that carries state
from one row to another, or whose rotary embedding depends on the longest row (longrope) gives a sample other states
beside a long one than alone. So a short sample is run alone and beside one as long as the run's samples may be, which
also warms the device up on a batch of the real size. Compared is the shallowest block: there bfloat16 rounds by about
2e-3 (measured on an H200, 64 blocks), while at the deepest it can reach 5e-2.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpu_worker.batching import padded_batch
from gpu_worker.taps import captured_taps
from hiddenstream.chassis.logs import log
from hiddenstream.contracts.errors import ModelError
from hiddenstream.contracts.run import RunIdentity
from hiddenstream.contracts.taps import EMBEDDING

CANARY_NOT_FINITE = "canary_not_finite"
_LOGGER = logging.getLogger("gpu_worker.canary")
_SHORT = 33  # tokens of the shorter sample at most: enough that positions matter, and a mate is longer
# Relative L2, by compute dtype. float32 rounds by 1e-6; a mate that is seen makes 1e-3 and more.
_TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}


class GateRefused(ModelError):
    """A model whose states would be stored wrongly."""


@torch.inference_mode()
def refuse_unfit_taps(
    backbone: nn.Module, blocks: nn.ModuleList, identity: RunIdentity, *, device: torch.device, longest_tokens: int
) -> str:
    """Run a short sample alone and beside a longer one, and refuse a model that cannot be stored as it is.

    Args:
        longest_tokens: tokens of the longest sample that can have a batch mate.

    Returns:
        ``passed``, or ``not_run`` where there was nothing finite to compare.

    Raises:
        GateRefused: a tap is never reached or has another shape, or the short sample's states differ.
        IndexError: what a backbone raises that counts its blocks by its configuration and finds some missing.
    """
    embedding: Any = backbone.get_input_embeddings()  # type: ignore[operator]
    mate = np.arange(max(2, longest_tokens), dtype=np.int32) % embedding.weight.shape[0]
    short = mate[::-1][: min(_SHORT, mate.size // 2)].copy()
    alone = _run(backbone, blocks, identity, padded_batch([short], device))
    beside = _run(backbone, blocks, identity, padded_batch([short, mate], device))
    tap = next((tap for tap in identity.taps if tap != EMBEDDING), identity.taps[0])
    expected, found = alone[tap][0].float(), beside[tap][0, : short.size].float()
    if not bool(torch.isfinite(expected).all()):
        log(_LOGGER, CANARY_NOT_FINITE, {"tap": tap}, level=logging.WARNING)
        return "not_run"  # nothing to compare; samples of such tokens are judged one by one
    difference = float((found - expected).norm() / expected.norm().clamp_min(1e-30))
    if not difference <= _TOLERANCES[identity.compute_dtype]:
        raise GateRefused(
            f"{type(backbone).__name__}: {tap} of a sample changes by {difference:.1e} (relative L2) when one of"
            f" {mate.size} tokens is in its batch; it is no causal model, or its positions depend on the longest sample"
            " (then a smaller --max-length helps)"
        )
    return "passed"


def _run(backbone: nn.Module, blocks: nn.ModuleList, identity: RunIdentity, ids_BT: Tensor) -> dict[str, Tensor]:
    with captured_taps(blocks, identity.taps) as captured:
        backbone(input_ids=ids_BT, use_cache=False)
    for tap in identity.taps:
        if tap not in captured:
            raise GateRefused(f"{tap} was never reached in a forward pass of {type(backbone).__name__}")
        expected = (*ids_BT.shape, identity.hidden_size)
        if tuple(captured[tap].shape) != expected:
            raise GateRefused(f"{tap} has shape {tuple(captured[tap].shape)}; expected {expected}")
    return captured
