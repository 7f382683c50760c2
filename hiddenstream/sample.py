"""One sample as it was stored, and why a sample may not be there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.errors import HiddenstreamError
from hiddenstream.contracts.taps import FINAL
from hiddenstream.final_norm import FinalNorm

if TYPE_CHECKING:
    import torch


class SampleUnavailable(HiddenstreamError, KeyError):
    """A sample that a run cannot give; also a KeyError.

    Attributes:
        sample_id: the id that was asked for.
    """

    reason = "sample_unavailable"
    __str__ = Exception.__str__  # KeyError's own puts the message in quotes

    def __init__(self, sample_id: str, why: str) -> None:
        super().__init__(f"sample {sample_id!r} {why}")
        self.sample_id = sample_id


class UnknownSample(SampleUnavailable):
    """No such id is planned in this run."""

    reason = "unknown_sample"


class SampleNotCommitted(SampleUnavailable):
    """The sample is planned; its shard is not stored yet."""

    reason = "not_committed"


class SampleQuarantined(SampleUnavailable):
    """The sample has no states and never will in this run.

    Attributes:
        entry: the reason and the evidence.
    """

    reason = "quarantined"

    def __init__(self, entry: Quarantined) -> None:
        super().__init__(entry.id, f"is quarantined: {entry.reason} ({entry.detail})")
        self.entry = entry


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One stored sample: read-only views of a mapped file; nothing is copied until it is touched.

    Shapes: S tokens, k taps, H hidden size.

    Attributes:
        id: the sample's id, exactly as in the input.
        input_ids: int32 [S], token ids.
        loss_mask: uint8 [S] of 0 and 1, or None where the input had none.
        hidden_states: [S, k, H] in the stored dtype; ``ml_dtypes.bfloat16`` for bfloat16.
        taps: names along the second axis, ascending in depth.
        final_tap: the tap that ``final`` stands for, or None where it was not kept.
        find_final_norm: gives the run's final norm; see :meth:`final_normed`.
    """

    id: str
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8] | None
    hidden_states: npt.NDArray[Any]
    taps: tuple[str, ...]
    final_tap: str | None
    find_final_norm: Callable[[], FinalNorm]

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.hidden_states.shape))
        return f"Sample({self.id!r}, {self.input_ids.size} tokens, states {shape} {self.hidden_states.dtype})"

    def states_of(self, tap: str) -> npt.NDArray[Any]:
        """Return one tap's states, [S, H], as a view.

        Raises:
            KeyError: the tap was not kept; names those that were.
        """
        name = self.final_tap if tap == FINAL else tap
        if name not in self.taps:
            raise KeyError(f"{tap} was not kept; this run has {', '.join(self.taps)}")
        states: npt.NDArray[Any] = self.hidden_states[:, self.taps.index(name)]
        return states

    def final_normed(self) -> npt.NDArray[np.float32]:
        """Return what transformers gives as the last hidden state, float32 [S, H], without torch and the model.

        Computed anew at each call, in float32, from the states as they are stored.

        Raises:
            KeyError: the last block's output was not kept.
            RunDirectoryError: the run's final norm is not there, or damaged.
        """
        return self.find_final_norm().apply(self.states_of(FINAL))

    def torch(self) -> torch.Tensor:
        """Return the hidden states as a torch tensor [S, k, H] over the same memory; needs torch.

        The memory is a read-only map of the file: ``clone()`` before changing anything in place.
        """
        import torch

        is_bfloat16 = self.hidden_states.dtype.itemsize == 2 and self.hidden_states.dtype != np.float16
        plain = self.hidden_states.view(np.int16) if is_bfloat16 else self.hidden_states
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.from_numpy(plain)
        return tensor.view(torch.bfloat16) if is_bfloat16 else tensor
