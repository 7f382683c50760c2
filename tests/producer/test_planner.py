"""The planner alone: lengths in, plan out."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hiddenstream.contracts.batches import SampleTooLong, cut_batches
from producer import planner
from producer.planner import MAX_SHARD_TOKENS, ShardPlan, plan_shards

BUDGET = 40
lengths_lists = st.lists(st.integers(1, BUDGET), min_size=1, max_size=200)


def a_plan(lengths: list[int], *, shard_bytes: int = 1000, bytes_per_token: int = 10) -> ShardPlan:
    return plan_shards(
        np.array(lengths, dtype=np.int64),
        token_budget=BUDGET,
        shard_bytes=shard_bytes,
        bytes_per_token=bytes_per_token,
    )


def shards_of(plan: ShardPlan) -> list[list[int]]:
    """Return the samples of each shard, by place."""
    shards: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for sample, (shard, place) in enumerate(zip(plan.shard.tolist(), plan.place.tolist(), strict=True)):
        shards[shard].append((place, sample))
    assert list(range(plan.shards)) == sorted(shards)
    assert all([*range(len(members))] == sorted(place for place, _ in members) for members in shards.values())
    return [[sample for _, sample in sorted(shards[shard])] for shard in range(plan.shards)]


@given(lengths_lists)
def test_every_sample_is_in_one_shard_at_one_place(lengths):
    """Planning never loses or repeats a sample, and places in a shard have no gaps."""
    shards = shards_of(a_plan(lengths))

    assert [*range(len(lengths))] == sorted(sample for shard in shards for sample in shard)


@given(lengths_lists, st.integers(1, 60))
def test_worker_that_cuts_a_shard_alone_gets_the_planned_batches(lengths, window):
    """Cutting each shard by itself gives as many batches and token slots as the plan counts, none over budget."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "WINDOW_SAMPLES", window)
        plan = a_plan(lengths)

    slots = []
    for shard in shards_of(plan):
        inside = [lengths[sample] for sample in shard]
        batches = list(cut_batches(inside, max_token_slots=BUDGET))
        slots += [len(batch) * max(inside[place] for place in batch) for batch in batches]
    assert plan.batches == len(slots)
    assert plan.token_slots == sum(slots)
    assert max(slots) <= BUDGET


@given(lengths_lists, st.integers(1, 3000))
def test_shard_stays_within_its_limits_unless_it_is_one_batch(lengths, shard_bytes):
    """A shard over the bytes asked for, or over a 64th of the run, holds a single batch."""
    plan = a_plan(lengths, shard_bytes=shard_bytes)

    limit = min(shard_bytes // 10, -(-sum(lengths) // 64))
    for shard in shards_of(plan):
        inside = [lengths[sample] for sample in shard]
        assert sum(inside) <= limit or len(list(cut_batches(inside, max_token_slots=BUDGET))) == 1


@given(lengths_lists)
def test_first_shard_holds_the_longest_sample(lengths):
    """The sample that needs most memory is met first, not at the end of the night."""
    plan = a_plan(lengths)

    assert max(lengths) == max(lengths[sample] for sample in shards_of(plan)[0])


@given(lengths_lists)
def test_equal_input_gives_an_equal_plan(lengths):
    """Nothing but lengths and settings decides the plan."""
    once, again = a_plan(lengths), a_plan(lengths)

    assert np.array_equal(once.shard, again.shard)
    assert np.array_equal(once.place, again.place)


def test_shard_is_as_large_as_batches_allow():
    """Batches are added to a shard until the next one would exceed the bytes asked for."""
    plan = a_plan([40] * 639, shard_bytes=1200, bytes_per_token=10)

    assert {3} == {len(shard) for shard in shards_of(plan)}


def test_shard_never_has_more_than_131072_tokens():
    """However small the states, a job must fit the queue."""
    lengths = np.full(40_000, 1000, dtype=np.int64)

    plan = plan_shards(lengths, token_budget=16_000, shard_bytes=2**40, bytes_per_token=1)

    assert 128_000 == max(np.bincount(plan.shard) * 1000) <= MAX_SHARD_TOKENS


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_windows_keep_padding_small(seed):
    """Sorting inside windows leaves little padding on lengths as chats have them."""
    lengths = np.random.default_rng(seed).lognormal(6, 1, 20_000).clip(1, 4096).astype(np.int64)

    plan = plan_shards(lengths, token_budget=12_288, shard_bytes=2**30, bytes_per_token=51_200)

    assert 1 - lengths.sum() / plan.token_slots < 0.02


def test_shards_are_not_in_order_of_length():
    """Whoever reads the first tenth of the shards meets short and long samples."""
    lengths = list(range(1, 41)) * 50

    shards = shards_of(a_plan(lengths, shard_bytes=400))

    early = [lengths[sample] for shard in shards[: len(shards) // 10] for sample in shard]
    assert min(early) <= 4
    assert max(early) >= 37


def test_sample_over_the_budget_is_an_error():
    """What cannot be batched is never left out in silence."""
    with pytest.raises(SampleTooLong):
        a_plan([3, BUDGET + 1])
