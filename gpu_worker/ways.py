"""The ways in which samples share a forward pass, from the fastest to the most careful.

``packed``: end to end in one row, nothing between them; boundaries are kept by attention and recurrent layers.
``padded``: one row each, right-padded to the longest, without a mask.
``equal_lengths``: rows of one length only, so nothing is padded, on a model whose own state is put back before.
``one_at_a_time``: each sample alone, likewise.

The last is what plain transformers does. Which of them gives the same for a loaded model is found by the canary
(gpu_worker/canary.py), never assumed.

Shape letters: B rows, T token slots, N real tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gpu_worker.batching import padded_batch, real_slots
from gpu_worker.fresh_state import FreshState
from gpu_worker.packed_attention import AttentionSwitch
from gpu_worker.packed_recurrence import heed_segments
from gpu_worker.packing import Segments, packed
from hiddenstream.contracts.batches import cut_batches
from hiddenstream.contracts.worker_report import WAYS

TokenRow = npt.NDArray[np.int32]
TokenRows = list[TokenRow]


class BatchRunner:
    """Runs batches of samples through a backbone in one way.

    Attributes:
        way: one of WAYS.
    """

    def __init__(self, backbone: nn.Module, device: torch.device, way: str, fresh: FreshState) -> None:
        """Prepare; *fresh* is the state of *backbone* as it was loaded."""
        assert way in WAYS
        self.way = way
        self._backbone, self._device, self._fresh = backbone, device, fresh
        self._attention = AttentionSwitch(backbone)
        if way == "packed":
            heed_segments(backbone)

    def cut(self, lengths: list[int], *, max_token_slots: int) -> Iterator[range]:
        """Group samples, in order, into batches of this way; one longer than *max_token_slots* is alone in its batch.

        Args:
            lengths: tokens of each sample.
            max_token_slots: most token slots of a batch, padding included.
        """
        counted = [min(length, max_token_slots) for length in lengths]
        if self.way == "packed":
            yield from _cut_by_sum(counted, max_token_slots)
        elif self.way == "padded":
            yield from cut_batches(counted, max_token_slots=max_token_slots)
        elif self.way == "one_at_a_time":
            yield from (range(place, place + 1) for place in range(len(lengths)))
        else:
            begin = 0
            for _, group in groupby(lengths):
                count = len(list(group))
                alike = counted[begin : begin + count]
                for batch in cut_batches(alike, max_token_slots=max_token_slots):
                    yield range(begin + batch.start, begin + batch.stop)
                begin += count

    def token_slots(self, lengths: list[int]) -> int:
        """Return how many token slots a batch of *lengths* takes."""
        return sum(lengths) if self.way == "packed" else len(lengths) * max(lengths)

    def run(self, rows: TokenRows, *, filling: int | None = None) -> Tensor | None:
        """Run one batch; hooks see [B, T, D].

        Args:
            filling: token id to pad with, which must not matter.

        Returns:
            Places of the real tokens in [B * T], int64 [N], in the order of *rows*; None where every slot is real.

        Raises:
            PackingUnsupported: the way is ``packed``, and a layer cannot.
            torch.OutOfMemoryError: the batch does not fit.
        """
        lengths = [row.size for row in rows]
        if self.way == "packed":
            self._run_packed(rows, lengths)
            return None
        if self.way != "padded":
            self._fresh.restore()
        ids_BT = padded_batch(rows, self._device, filling=filling)
        self._backbone(input_ids=ids_BT, use_cache=False)
        return real_slots(lengths, self._device) if ids_BT.numel() > sum(lengths) else None

    def slices_of(self, lengths: list[int]) -> list[tuple[slice, slice]]:
        """Return where each sample of a batch lies in [B, T]."""
        if self.way == "packed":
            ends = np.cumsum(lengths).tolist()
            return [(slice(0, 1), slice(end - length, end)) for end, length in zip(ends, lengths, strict=True)]
        return [(slice(place, place + 1), slice(0, length)) for place, length in enumerate(lengths)]

    def _run_packed(self, rows: TokenRows, lengths: list[int]) -> None:
        ids_BT = torch.from_numpy(np.concatenate(rows).astype(np.int64))[None].to(self._device, non_blocking=True)
        places = np.concatenate([np.arange(length) for length in lengths])
        positions_BT = torch.from_numpy(places)[None].to(self._device, non_blocking=True)
        with packed(Segments.of(lengths, self._device)), self._attention.packed():
            self._backbone(input_ids=ids_BT, position_ids=positions_BT, use_cache=False)


def _cut_by_sum(lengths: list[int], max_token_slots: int) -> Iterator[range]:
    begin, tokens = 0, 0
    for place, length in enumerate(lengths):
        if tokens + length > max_token_slots and place > begin:
            yield range(begin, place)
            begin, tokens = place, 0
        tokens += length
    if lengths:
        yield range(begin, len(lengths))


def vocabulary_rows(backbone: nn.Module) -> int:
    """Return how many token ids a backbone's embedding knows."""
    embedding: Any = backbone.get_input_embeddings()  # type: ignore[operator]
    return int(embedding.weight.shape[0])
