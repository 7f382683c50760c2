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
class BatchStates:
    """The states of one batch's samples, end to end, padding gone.

    Attributes:
        hidden_NKD: states in the stored dtype, on the device.
        largest_NK: largest magnitude of each token and tap, float32, on the host; NaN where one is NaN.
        norms_NK: Euclidean length of each token's state of each tap, float32, on the host.
        token_slots: slots of the batch, padding included.
        forward_seconds: time until the device was done.
    """

    hidden_NKD: Tensor
    largest_NK: Tensor
    norms_NK: Tensor
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
            hidden_NKD = gathered([captured[tap] for tap in self._taps], slots_N, self._stored_dtype, device)
        largest_NK = hidden_NKD.abs().amax(dim=2).float()
        norms_NK = torch.linalg.vector_norm(hidden_NKD, dim=2, dtype=torch.float32)  # casts as it sums, on CUDA
        largest_NK, norms_NK = torch.stack((largest_NK, norms_NK)).cpu()  # one transfer; it waits for the device
        return BatchStates(
            hidden_NKD=hidden_NKD,
            largest_NK=largest_NK,
            norms_NK=norms_NK,
            token_slots=runner.token_slots([row.size for row in rows]),
            forward_seconds=time.monotonic() - started,
        )


def gathered(taps_BTD: list[Tensor], slots_N: Tensor | None, stored_dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the real tokens of every tap, [N, K, D] in the stored dtype on *device*; without slots, all are real.

    A model that is spread over several devices leaves each tap on its block's; there the padding goes and the dtype
    changes, so that no more than what is stored moves between devices.
    """
    kept = [tap_BTD.flatten(0, 1) for tap_BTD in taps_BTD]
    if slots_N is not None:
        kept = [tap_ND[slots_N.to(tap_ND.device)] for tap_ND in kept]
    return torch.stack([tap_ND.to(stored_dtype).to(device) for tap_ND in kept], dim=1)


def fault_of(largest_NK: Tensor, taps: tuple[str, ...]) -> tuple[str, str] | None:
    """Judge one sample's states by their magnitudes; return (reason, detail), or None where they are sound.

    A sample is unsound where a value is NaN or infinite, or where a tap is zero throughout.
    """
    is_sound = torch.isfinite(largest_NK)
    if not bool(is_sound.all()):
        # the shallowest tap: above it, attention spreads a NaN to the tokens before it too (0 times NaN)
        tap, token = (int(i) for i in (~is_sound).T.nonzero()[0])
        return "non_finite", f"{taps[tap]} is not finite at token {token}"
    is_zero = largest_NK.amax(dim=0) == 0
    if bool(is_zero.any()):
        return "all_zero", f"{taps[int(is_zero.nonzero()[0])]} is zero at every token"
    return None
