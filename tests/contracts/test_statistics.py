"""Statistics of parts merge into those of the whole."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiddenstream.contracts.statistics import (
    TapStatistics,
    merge_taps,
    statistics_from_wire,
    statistics_to_wire,
)

WIDTH = 3
VALUES = st.floats(-1e3, 1e3, width=32)
TOKENS = st.lists(st.lists(VALUES, min_size=WIDTH, max_size=WIDTH), max_size=6)


def of(values) -> TapStatistics:
    """Return the statistics of values [N, WIDTH], as a worker takes them."""
    values = np.array(values, np.float64).reshape(-1, WIDTH)
    largest = np.abs(values).max(axis=1, initial=0.0)
    return TapStatistics.of_tokens(values.mean(axis=1), values.var(axis=1), largest, width=WIDTH)


@given(st.lists(TOKENS, max_size=5), st.floats(-1e4, 1e4))
def test_merged_parts_equal_the_whole(parts, offset):
    """However values are cut into batches and shards, and however far they lie from zero, the figures are the same."""
    shifted = [np.array(part, np.float64).reshape(-1, WIDTH) + offset for part in parts]
    whole = np.concatenate([*shifted, np.empty((0, WIDTH))])

    merged = reduce(TapStatistics.merged, map(of, shifted), TapStatistics())

    assert whole.size == merged.count
    if whole.size:
        scale = np.abs(whole).max() + 1.0
        assert whole.mean() == pytest.approx(merged.mean, abs=1e-9 * scale)
        assert np.square(whole - whole.mean()).sum() == pytest.approx(merged.m2, rel=1e-6, abs=1e-6 * scale)
        assert np.abs(whole).max() == merged.largest
        assert np.sqrt(np.square(whole).mean()) == pytest.approx(merged.rms, rel=1e-6, abs=1e-9)


def test_a_small_spread_around_a_large_mean_is_kept():
    """Sums of squares would lose it: one part in 1e8 of the mean."""
    values = 1e8 + np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])

    merged = of(values[:1]).merged(of(values[1:]))

    assert 17.5 == pytest.approx(merged.m2, rel=1e-6)


def test_taps_are_merged_by_name_and_travel_as_text():
    """A tap that one part lacks is taken from the other, and what is written is read back."""
    one, other = {"a": of([[1, 2, 3]])}, {"a": of([[4, 5, 6]]), "b": of([[7, 8, 9]])}

    merged = merge_taps(one, other)

    assert {"a": of([[1, 2, 3], [4, 5, 6]]), "b": other["b"]} == merged
    assert merged == statistics_from_wire(statistics_to_wire(merged))


@pytest.mark.parametrize("wire", [None, 3, {"a": None}, {"a": {"count": 1}}, {"a": {"count": "x"}}, [1]])
def test_what_is_no_statistics_counts_as_none(wire):
    """They are for people, so a ledger line that lacks them is read all the same."""
    assert {} == statistics_from_wire(wire)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_counts_as_none(value):
    """A figure that is not finite would not be JSON."""
    assert {} == statistics_from_wire({"a": {"count": 1, "mean": value, "m2": 0.0, "largest": 0.0}})


@pytest.mark.parametrize(
    "changed",
    [
        {"count": -1},
        {"count": 1.5},
        {"count": "1"},
        {"count": True},
        {"count": 1 << 63},
        {"m2": -1.0},
        {"largest": -1.0},
        {"mean": "0"},
    ],
    ids=str,
)
def test_impossible_figures_count_as_none(changed):
    """A negative count or spread would end in an error where a producer adds up its ledger."""
    wire = {"count": 1, "mean": 0.5, "m2": 0.25, "largest": 1.0}

    assert {"a": TapStatistics(**wire)} == statistics_from_wire({"a": wire})
    assert {} == statistics_from_wire({"a": {**wire, **changed}})


def test_figures_near_the_largest_float_merge_without_an_error():
    """Whatever a ledger holds, adding it up ends in figures."""
    wire = {"count": 2, "mean": 1e308, "m2": 1e308, "largest": 1e308}
    (huge,) = statistics_from_wire({"a": wire}).values()
    (other,) = statistics_from_wire({"a": {**wire, "mean": -1e308}}).values()

    assert huge.merged(other).rms == math.inf
    assert pytest.approx(1e308, rel=1e-6) == huge.rms


def test_sums_beyond_float32_are_told_from_figures():
    """An infinite variance makes statistics that are none, without a warning."""
    infinite, one = np.array([np.inf, 1], np.float32), np.array([1, 1], np.float32)

    assert not TapStatistics.of_tokens(one, infinite, one, width=WIDTH).is_finite
    assert not TapStatistics.of_tokens(infinite, one, one, width=WIDTH).is_finite
    assert TapStatistics.of_tokens(one, one, one, width=WIDTH).is_finite
