"""One forward pass over a list of samples: tokens in, checked states out.

Shape letters: B rows, T token slots, N real tokens, K taps, D model width.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.model import LoadedModel
from gpu_worker.taps import captured_taps


@dataclass(frozen=True, slots=True, kw_only=True)
class CastLoss:
    """What the cast to the stored dtype did to a batch, on the host.

    Attributes:
        was_finite_NK: whether all values of a token and tap were finite before it.
        overflowed_NK: how many of them were, and are not any more.
    """

    was_finite_NK: Tensor
    overflowed_NK: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStates:
    """The states of one batch's samples, end to end, padding gone.

    Attributes:
        hidden_NKD: states in the stored dtype, on the device.
        largest_NK: largest magnitude of each token and tap, float32, on the host; NaN where one is NaN.
        means_NK, variances_NK: of the values of each token and tap, float32, on the host.
        cast_loss: where a value is not finite and the states were cast; None elsewhere.
        token_slots: slots of the batch, padding included.
        forward_seconds: time until the device was done.
    """

    hidden_NKD: Tensor
    largest_NK: Tensor
    means_NK: Tensor
    variances_NK: Tensor
    cast_loss: CastLoss | None
    token_slots: int
    forward_seconds: float


class ForwardPass:
    """Runs batches through a loaded model and keeps the taps."""

    def __init__(self, model: LoadedModel, taps: tuple[str, ...], stored_dtype: torch.dtype) -> None:
        self._model = model
        self._taps = taps
        self._stored_dtype = stored_dtype

    def with_taps(self, taps: tuple[str, ...]) -> ForwardPass:
        """Return a pass that keeps other taps."""
        return ForwardPass(self._model, taps, self._stored_dtype)

    def cut(self, lengths: list[int], *, max_token_slots: int) -> Iterator[range]:
        """Group samples, in order, into batches; see :meth:`gpu_worker.ways.BatchRunner.cut`."""
        return self._model.gate.runner.cut(lengths, max_token_slots=max_token_slots)

    @torch.inference_mode()
    def run(self, rows: list[npt.NDArray[np.int32]]) -> BatchStates:
        """Run samples as one batch, in the model's way.

        Args:
            rows: token ids of each sample, one or more each.

        Raises:
            torch.OutOfMemoryError: the batch does not fit.
        """
        started = time.monotonic()
        device, runner = self._model.device, self._model.gate.runner
        with captured_taps(self._model.blocks, self._taps) as captured:
            slots_N = runner.run(rows)
            taps_ND = gathered([captured[tap] for tap in self._taps], slots_N)
            # the dtype changes where the block's device is, so that no more than what is stored moves between devices
            hidden_NKD = torch.stack([tap_ND.to(self._stored_dtype).to(device) for tap_ND in taps_ND], dim=1)
            del taps_ND
        known_NK = [hidden_NKD.abs().amax(dim=2).float(), *_moments(hidden_NKD)]
        largest_NK, variances_NK, means_NK = torch.stack(known_NK).cpu()  # one transfer; it waits for the device
        cast_loss = None
        if not bool(
            torch.isfinite(largest_NK).all()
        ):  # rare, so a look at the states before the cast may take its time
            cast_loss = _cast_loss(gathered([captured[tap] for tap in self._taps], slots_N), hidden_NKD)
        return BatchStates(
            hidden_NKD=hidden_NKD,
            largest_NK=largest_NK,
            means_NK=means_NK,
            variances_NK=variances_NK,
            cast_loss=cast_loss,
            token_slots=runner.token_slots([row.size for row in rows]),
            forward_seconds=time.monotonic() - started,
        )


def gathered(taps_BTD: list[Tensor], slots_N: Tensor | None) -> list[Tensor]:
    """Return the real tokens of every tap, [N, D] each, on the tap's own device; without slots, all are real."""
    kept = [tap_BTD.flatten(0, 1) for tap_BTD in taps_BTD]
    return kept if slots_N is None else [tap_ND[slots_N.to(tap_ND.device)] for tap_ND in kept]


def _moments(hidden_NKD: Tensor) -> tuple[Tensor, Tensor]:
    """Return variance and mean of each token and tap, float32 [N, K]; tap by tap, to hold one of them in float32."""
    by_tap = [torch.var_mean(hidden_NKD[:, tap].float(), dim=1, correction=0) for tap in range(hidden_NKD.shape[1])]
    return torch.stack([tap[0] for tap in by_tap], dim=1), torch.stack([tap[1] for tap in by_tap], dim=1)


def _cast_loss(taps_ND: list[Tensor], hidden_NKD: Tensor) -> CastLoss | None:
    """Compare what is stored with what it was before it was cast; None where it was not."""
    if all(tap_ND.dtype == hidden_NKD.dtype for tap_ND in taps_ND):
        return None
    was_finite, overflowed = [], []
    for place, tap_ND in enumerate(taps_ND):
        is_finite_ND = torch.isfinite(tap_ND)
        is_lost_ND = is_finite_ND & ~torch.isfinite(hidden_NKD[:, place].to(tap_ND.device))
        was_finite.append(is_finite_ND.all(dim=1).cpu())
        overflowed.append(is_lost_ND.sum(dim=1).cpu())
    return CastLoss(was_finite_NK=torch.stack(was_finite, dim=1), overflowed_NK=torch.stack(overflowed, dim=1))
