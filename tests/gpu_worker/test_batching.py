"""Rows laid out as one padded batch, and found in it again."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.batching import padded_batch, real_slots
from tests.gpu_worker.made import CPU

ROWS = st.lists(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9).map(lambda row: np.array(row, np.int32)),
    min_size=1,
    max_size=9,
)


@given(ROWS)
def test_every_token_keeps_its_place(rows):
    """Each row begins at slot 0 of its own line, and its last token follows it to the end."""
    batch = padded_batch(rows, CPU)

    assert (len(rows), max(row.size for row in rows)) == tuple(batch.shape)
    assert torch.int64 == batch.dtype
    for row, line in zip(rows, batch.tolist(), strict=True):
        assert [*row.tolist(), *[int(row[-1])] * (len(line) - row.size)] == line


@given(ROWS)
def test_real_slots_are_the_tokens_in_order(rows):
    """The real slots of a flattened batch hold the rows end to end, padding ids inside a row included."""
    flat = padded_batch(rows, CPU).flatten()

    slots = real_slots([row.size for row in rows], CPU)

    assert np.concatenate(rows).tolist() == flat[slots].tolist()
