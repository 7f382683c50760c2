"""Judging one sample's states by what is known of each token: finite, not overflowed, not zero, not constant.

Shape letters: S tokens of the sample, K taps, D model width.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.forward import BatchStates


def fault_of(
    states: BatchStates, begin: int, tokens_S: npt.NDArray[np.int32], taps: tuple[str, ...]
) -> tuple[str, str] | None:
    """Return (reason, detail) of what is wrong with a sample, or None where it is sound.

    Args:
        begin: its first token in the batch.
        tokens_S: its token ids.
    """
    end = begin + tokens_S.size
    largest_SK = states.largest_NK[begin:end]
    is_finite_SK = torch.isfinite(largest_SK)
    if not bool(is_finite_SK.all()):
        # the shallowest tap: above it, attention spreads a NaN to the tokens before it too (0 times NaN)
        tap, token = (int(i) for i in (~is_finite_SK).T.nonzero()[0])
        if states.overflowed_NK is not None and states.overflowed_NK[begin + token, tap]:
            values = int(states.overflowed_NK[begin:end].sum())
            return "overflow", f"{taps[tap]} overflows {_dtype_of(states)} at token {token}; {values} values do in all"
        return "non_finite", f"{taps[tap]} is not finite at token {token}"
    is_zero_K = largest_SK.amax(dim=0) == 0
    if bool(is_zero_K.any()):
        return "all_zero", f"{taps[int(is_zero_K.nonzero()[0])]} is zero at every token"
    if bool((tokens_S == tokens_S[0]).all()):
        return None  # equal tokens give equal states in models without absolute positions
    for tap in _maybe_constant(states, begin, end):
        if bool((states.hidden_NKD[begin:end, tap] == states.hidden_NKD[begin, tap]).all()):
            return "constant", f"{taps[tap]} is the same at every token"
    return None


def overflowed_values(states: BatchStates, begin: int, end: int) -> int:
    """Return how many values of a sample were finite until they were cast to the stored dtype."""
    return 0 if states.overflowed_NK is None else int(states.overflowed_NK[begin:end].sum())


def _maybe_constant(states: BatchStates, begin: int, end: int) -> list[int]:
    """Return the taps whose tokens are alike in all that was taken off the device; few models have one."""
    is_alike_K = torch.ones(states.largest_NK.shape[1], dtype=torch.bool)
    for known_NK in (states.largest_NK, states.means_NK, states.variances_NK):
        is_alike_K &= (known_NK[begin:end] == known_NK[begin]).all(dim=0)
    return [int(tap) for tap in is_alike_K.nonzero().flatten()]


def _dtype_of(states: BatchStates) -> str:
    hidden_NKD: Tensor = states.hidden_NKD
    return str(hidden_NKD.dtype).removeprefix("torch.")
