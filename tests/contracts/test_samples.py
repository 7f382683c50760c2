"""Packed samples: their digest, and what cannot be packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiddenstream.contracts.errors import WireError
from tests.contracts.golden import DIGEST, SAMPLES
from tests.contracts.strategies import packed_samples, same_samples


def test_the_digest_of_these_samples_is_this_one():
    """The digest names a plan for good, so it may never change."""
    assert SAMPLES.digest() == DIGEST


@pytest.mark.parametrize(
    "changed",
    [
        {"ids": ("a", "e")},
        {"ids": ("aé", "")},
        {"tokens": np.array([5, 6, 8], np.int32)},
        {"token_counts": np.array([1, 2]), "mask_counts": np.array([0, 2])},
        {"masks": np.array([1, 1], np.uint8)},
        {"masks": np.empty(0, np.uint8), "mask_counts": np.array([0, 0])},
    ],
)
def test_any_difference_gives_another_digest(changed):
    """Ids, tokens, masks and where one ends and the next begins all count."""
    assert replace(SAMPLES, **changed).digest() != DIGEST


@given(packed_samples(), st.data())
def test_taking_samples_keeps_their_content(samples, data):
    """Taking all in order changes nothing; taking one gives its own slices."""
    place = data.draw(st.integers(0, len(samples) - 1)) if len(samples) else None

    everything = samples.take(list(range(len(samples))))

    assert same_samples(samples, everything)
    if place is not None:
        begin, end = samples.token_offsets[place : place + 2]
        np.testing.assert_array_equal(samples.tokens[begin:end], samples.take([place]).tokens)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ids": ("a",)}, "1 ids"),
        ({"token_counts": np.array([3, 0])}, "without tokens"),
        ({"token_counts": np.array([4, -1])}, "without tokens"),
        ({"token_counts": np.array([2, 2])}, "name 4 tokens, 3 are here"),
        ({"token_counts": np.array([4, 1])}, "sample of 4 tokens"),
        ({"mask_counts": np.array([1, 1])}, "another length"),
        ({"mask_counts": np.array([0, 1])}, "1 mask values, 2 are here"),
        ({"masks": np.array([0, 2], np.uint8)}, "holds 2"),
    ],
)
def test_samples_that_do_not_fit_together_are_refused(changed, message):
    """Counts that do not add up never become samples; the message holds the numbers."""
    with pytest.raises(WireError, match=message):
        replace(SAMPLES, **changed)


def test_counts_that_wrap_around_are_refused():
    """Four counts whose sum overflows to the number of tokens are not taken for it."""
    counts = np.array([2**62, 2**62, 2**62, 2**62 + 3])

    with pytest.raises(WireError, match="3 are here"):
        replace(SAMPLES, ids=tuple("abcd"), token_counts=counts, mask_counts=counts * 0, masks=np.empty(0, np.uint8))
