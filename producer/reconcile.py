"""Deciding what is lost. Pure: what Redis and the ledger say comes in, shards to deliver again come out.

A living delivery is, at every moment, in one of four places, which it passes in this order: the queue, RQ's
intermediate list, a lease, the ledger. They are read in that order, so it can move on while they are read and is still
seen. What is in none of them for SUSPECT_SECONDS is lost: its worker died, or Redis was emptied.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from hiddenstream.contracts.queue import LEASE_SECONDS, SUSPECT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Where shards were seen, in one reading.

    Attributes:
        queued: waiting on the queue.
        intermediate: taken from the queue, lease not known to be set yet.
        leased: in a worker's hand.
    """

    queued: Set[int]
    intermediate: Set[int]
    leased: Set[int]

    @property
    def everywhere(self) -> Set[int]:
        """All shards seen."""
        return self.queued | self.intermediate | self.leased


class Reconciler:
    """Remembers since when each delivered shard has not been seen."""

    def __init__(self) -> None:
        self._unseen_since: dict[int, float] = {}
        self._intermediate_since: dict[int, float] = {}

    def forget(self) -> None:
        """Redis was away: start every suspicion anew, since leases ran out while they could not be refreshed."""
        self._unseen_since.clear()
        self._intermediate_since.clear()

    def lost(self, delivered: Set[int], sighting: Sighting, committed: Set[int], now_seconds: float) -> list[int]:
        """Return the shards to deliver again, ascending.

        Args:
            delivered: shards that were enqueued at some time.
            committed: read from the ledger after the sighting.
            now_seconds: a clock that only goes forward.
        """
        moving = sighting.intermediate - sighting.leased
        self._intermediate_since = {shard: self._intermediate_since.get(shard, now_seconds) for shard in moving}
        stuck = {s for s, since in self._intermediate_since.items() if now_seconds - since > LEASE_SECONDS}
        seen = sighting.queued | sighting.leased | (sighting.intermediate - stuck)
        unseen = delivered - seen - committed
        self._unseen_since = {shard: self._unseen_since.get(shard, now_seconds) for shard in unseen}
        lost = {
            shard
            for shard, since in self._unseen_since.items()
            if shard in stuck or now_seconds - since >= SUSPECT_SECONDS
        }
        for shard in lost:
            del self._unseen_since[shard]
            self._intermediate_since.pop(shard, None)
        return sorted(lost)
