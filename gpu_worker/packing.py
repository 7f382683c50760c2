"""Which samples lie where while a batch is packed: end to end in one row, with nothing between them.

Attention and recurrent layers have to keep packed samples apart. Few families hand boundaries down to them, so they are
not passed as arguments: :func:`packed` notes them for the time of one forward pass, and what replaces attention
(gpu_worker/packed_attention.py), convolutions and delta rules (gpu_worker/packed_recurrence.py) reads them here. One
thread runs forward passes, so one place is enough. Whether all layers of a model heed them is not assumed: the canary
finds out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from hiddenstream.contracts.errors import HiddenstreamError


class PackingUnsupported(HiddenstreamError):
    """A layer that cannot keep packed samples apart here."""

    reason = "packing_unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """The samples of one packed row.

    Attributes:
        lengths: tokens of each sample, in order.
        boundaries: int32 [samples + 1], on the device: where each begins, and where the last one ends.
        longest: tokens of the longest sample.
    """

    lengths: tuple[int, ...]
    boundaries: Tensor
    longest: int

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> Segments:
        """Note samples of *lengths*."""
        boundaries = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return cls(lengths=tuple(lengths), boundaries=boundaries.to(device, non_blocking=True), longest=max(lengths))

    def pieces(self) -> list[tuple[int, int]]:
        """Return first token and end of each sample."""
        ends = torch.tensor(self.lengths).cumsum(0).tolist()
        return [(end - length, end) for end, length in zip(ends, self.lengths, strict=True)]


_current: Segments | None = None


def current_segments() -> Segments | None:
    """Return the samples of the pack that is in a forward pass now, or None where none is."""
    return _current


@contextmanager
def packed(segments: Segments | None) -> Iterator[None]:
    """Let layers know, inside the context, that their one row holds *segments*; None: that it is one sample."""
    global _current
    before, _current = _current, segments
    try:
        yield
    finally:
        _current = before
