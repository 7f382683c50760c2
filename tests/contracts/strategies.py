"""Made-up samples and damaged bytes for properties."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from hiddenstream.contracts.samples import PackedSamples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def packed_samples(draw: st.DrawFn) -> PackedSamples:
    """Up to six samples with any ids, some with masks."""
    counts = draw(st.lists(st.integers(1, 5), max_size=6))
    masked = [draw(st.booleans()) for _ in counts]
    mask_counts = [count if has_mask else 0 for count, has_mask in zip(counts, masked, strict=True)]
    tokens, masks = sum(counts), sum(mask_counts)
    return PackedSamples(
        ids=tuple(draw(TEXT) for _ in counts),
        token_counts=np.array(counts, np.int64),
        tokens=np.array(draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=tokens, max_size=tokens)), np.int32),
        mask_counts=np.array(mask_counts, np.int64),
        masks=np.array(draw(st.lists(st.integers(0, 1), min_size=masks, max_size=masks)), np.uint8),
    )


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """*whole* with bytes replaced, cut out or put in at some place, or anything else."""
    begin = draw(st.integers(0, len(whole)))
    end = draw(st.integers(begin, min(len(whole), begin + 8)))
    return draw(st.one_of(st.binary(max_size=64), st.just(whole[:begin] + draw(st.binary(max_size=8)) + whole[end:])))


def same_samples(one: PackedSamples, other: PackedSamples) -> bool:
    """Whether two are equal in everything."""
    arrays = ("token_counts", "tokens", "mask_counts", "masks")
    return one.ids == other.ids and all(np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays)
