"""What counts as lost, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hiddenstream.contracts.queue import LEASE_SECONDS, SUSPECT_SECONDS
from producer.reconcile import Reconciler, Sighting

NOWHERE: frozenset[int] = frozenset()
ROUND_SECONDS = 0.5


def seen(*, queued=NOWHERE, intermediate=NOWHERE, leased=NOWHERE):
    return Sighting(queued=queued, intermediate=intermediate, leased=leased)


def lost_over(sighting, *, seconds, committed=NOWHERE, delivered=frozenset({1})):
    """Return (time, shard) of every loss while the same sighting is read again and again."""
    reconciler = Reconciler()
    times = [step * ROUND_SECONDS for step in range(int(seconds / ROUND_SECONDS) + 1)]
    return [(now, shard) for now in times for shard in reconciler.lost(delivered, sighting, committed, now)]


@pytest.mark.parametrize(
    ("sighting", "committed"),
    [
        (seen(queued={1}), NOWHERE),
        (seen(leased={1}), NOWHERE),
        (seen(intermediate={1}, leased={1}), NOWHERE),
        (seen(intermediate={1}, queued={1}), NOWHERE),
        (seen(), {1}),
        (seen(intermediate={1}), {1}),
    ],
    ids=["queued", "leased", "taken and leased", "queued again", "committed", "committed, id left behind"],
)
def test_what_is_somewhere_is_never_lost(sighting, committed):
    """A shard on the queue, under a lease or in the ledger is not lost, however long it stays there."""
    assert [] == lost_over(sighting, seconds=60, committed=committed)


def test_what_was_never_delivered_is_not_lost():
    """Shards that are still to be enqueued are no loss."""
    assert [] == lost_over(seen(), seconds=60, delivered=NOWHERE)


def test_an_unseen_shard_is_lost_once_the_suspicion_is_old_enough():
    """A shard that is nowhere for SUSPECT_SECONDS is lost then, once; its next delivery has as much time."""
    assert [(SUSPECT_SECONDS, 1)] == lost_over(seen(), seconds=SUSPECT_SECONDS * 2)


def test_a_shard_taken_without_a_lease_is_lost_after_a_lease_s_life():
    """An engine that died between taking a shard and its lease loses it for LEASE_SECONDS, and no longer."""
    losses = lost_over(seen(intermediate={1}), seconds=LEASE_SECONDS + ROUND_SECONDS)

    assert [(LEASE_SECONDS + ROUND_SECONDS, 1)] == losses


def test_a_suspicion_ends_when_the_shard_is_seen():
    """A shard seen in between has all of SUSPECT_SECONDS again."""
    reconciler = Reconciler()

    losses = [
        reconciler.lost({1}, seen(leased={1} if step == 3 else NOWHERE), NOWHERE, step * ROUND_SECONDS)
        for step in range(3 + int(SUSPECT_SECONDS / ROUND_SECONDS))
    ]

    assert not any(losses)


def test_forgetting_begins_every_suspicion_anew():
    """After an outage of Redis, shards are given the whole time again, on the queue's way and off it."""
    reconciler = Reconciler()
    sighting = seen(intermediate={2})
    reconciler.lost({1, 2}, sighting, NOWHERE, 0.0)

    reconciler.forget()
    at_once = reconciler.lost({1, 2}, sighting, NOWHERE, LEASE_SECONDS * 2)
    later = reconciler.lost({1, 2}, sighting, NOWHERE, LEASE_SECONDS * 3 + 1)

    assert [] == at_once
    assert [1, 2] == later


def test_lost_shards_come_in_order():
    """Shards lost at one time are told in ascending order."""
    assert [3, 5, 9] == [shard for _, shard in lost_over(seen(), seconds=2, delivered={9, 3, 5})]


class LivingDeliveries(RuleBasedStateMachine):
    """Deliveries that move on at any moment, also between two of the producer's reads."""

    places = ("queue", "intermediate", "lease", "ledger")

    def __init__(self) -> None:
        super().__init__()
        self.reconciler, self.now = Reconciler(), 0.0
        self.place = dict.fromkeys(range(4), 0)
        self.taken_at: dict[int, float] = {}
        self.losses: list[int] = []

    def move(self, shard):
        self.place[shard] = min(self.place[shard] + 1, 3)
        if self.place[shard] == 1:
            self.taken_at[shard] = self.now

    def at(self, *names):
        return frozenset(shard for shard, place in self.place.items() if self.places[place] in names)

    @rule(
        pause=st.floats(0.0, 3600.0),
        moves=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8),
    )
    def look(self, pause, moves):
        """Read the four places in order; each (read, shard) of *moves* happens just before that read."""
        self.now += pause
        for shard in self.at("intermediate"):  # a living engine sets its lease at once
            self.move(shard)

        def before(read):
            for when, shard in moves:
                if when == read:
                    self.move(shard)

        before(0)
        queued = self.at("queue")
        before(1)
        intermediate = self.at("intermediate", "lease") - self.long_leased()
        before(2)
        leased = self.at("lease")
        before(3)
        sighting = Sighting(queued=queued, intermediate=intermediate, leased=leased)
        self.losses += self.reconciler.lost(self.place.keys(), sighting, self.at("ledger"), self.now)

    def long_leased(self):
        """RQ lets go of an id some time after its lease is set."""
        return frozenset(shard for shard in self.at("lease") if self.now > self.taken_at[shard])

    @invariant()
    def nothing_living_is_lost(self):
        assert [] == self.losses


LivingDeliveries.TestCase.settings = settings(max_examples=100, stateful_step_count=12, deadline=None)
TestLivingDeliveries = LivingDeliveries.TestCase
TestLivingDeliveries.__doc__ = "A delivery that moves from place to place while it is looked for is never called lost."
