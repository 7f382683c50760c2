"""Judging one sample's states by what is known of each token: finite, not overflowed, not zero, not constant.

Shape letters: S tokens of the sample, K taps, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.forward import BatchStates


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a sample has no states.

    Attributes:
        reason, detail: as in :class:`hiddenstream.contracts.commit.Quarantined`.
        overflowed_values: how many values the stored dtype cannot hold, where that is the reason.
    """

    reason: str
    detail: str
    overflowed_values: int = 0


def fault_of(states: BatchStates, begin: int, tokens_S: npt.NDArray[np.int32], taps: tuple[str, ...]) -> Fault | None:
    """Return what is wrong with a sample, or None where it is sound.

    Args:
        begin: its first token in the batch.
        tokens_S: its token ids.
    """
    end = begin + tokens_S.size
    largest_SK = states.largest_NK[begin:end]
    is_finite_SK = torch.isfinite(largest_SK)
    if not bool(is_finite_SK.all()):
        return _not_finite(states, begin, is_finite_SK, taps)
    is_zero_K = largest_SK.amax(dim=0) == 0
    if bool(is_zero_K.any()):
        return Fault(reason="all_zero", detail=f"{taps[int(is_zero_K.nonzero()[0])]} is zero at every token")
    if bool((tokens_S == tokens_S[0]).all()):
        return None  # equal tokens give equal states in models without absolute positions
    for tap in _maybe_constant(states, begin, end):
        if bool((states.hidden_NKD[begin:end, tap] == states.hidden_NKD[begin, tap]).all()):
            return Fault(reason="constant", detail=f"{taps[tap]} is the same at every token")
    return None


def _not_finite(states: BatchStates, begin: int, is_finite_SK: Tensor, taps: tuple[str, ...]) -> Fault:
    """Tell what the cast did from what the model did; where both did something, the model's comes first."""
    rows = slice(begin, begin + is_finite_SK.shape[0])
    was_finite_SK = is_finite_SK if states.cast_loss is None else states.cast_loss.was_finite_NK[rows]
    if states.cast_loss is None or not bool(was_finite_SK.all()):
        tap, token = _first(~was_finite_SK)
        return Fault(reason="non_finite", detail=f"{taps[tap]} is not finite at token {token}")
    overflowed_SK = states.cast_loss.overflowed_NK[rows]
    tap, token = _first(overflowed_SK > 0)
    values = int(overflowed_SK.sum())
    detail = f"{taps[tap]} overflows {_dtype_of(states)} at token {token}; {values} values do in all"
    return Fault(reason="overflow", detail=detail, overflowed_values=values)


def _first(is_wrong_SK: Tensor) -> tuple[int, int]:
    """Return the shallowest tap and its first token: above it, attention spreads a NaN to the tokens before it too."""
    tap, token = is_wrong_SK.T.nonzero()[0].tolist()
    return tap, token


def _maybe_constant(states: BatchStates, begin: int, end: int) -> list[int]:
    """Return the taps in which all tokens have one largest magnitude; sums of equal rows may round differently."""
    is_alike_K = (states.largest_NK[begin:end] == states.largest_NK[begin]).all(dim=0)
    return [int(tap) for tap in is_alike_K.nonzero().flatten()]


def _dtype_of(states: BatchStates) -> str:
    hidden_NKD: Tensor = states.hidden_NKD
    return str(hidden_NKD.dtype).removeprefix("torch.")
