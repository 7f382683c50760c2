"""Filling the queue from the plan, and filling it again with what got lost."""

from __future__ import annotations

import logging
import secrets
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

import redis

from hiddenstream.chassis.logs import log
from hiddenstream.contracts.job import ExtractionJob
from hiddenstream.contracts.queue import queue_name
from hiddenstream.contracts.run import RunRecord
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.plan import Plan
from producer.reconcile import Reconciler, Sighting
from producer.run_queue import RunQueue, delivery_of

SHARDS_REDELIVERED = "shards_redelivered"
SHARD_STUCK = "shard_stuck"
QUEUE_SHRUNK = "queue_shrunk"
_CHUNK_BYTES = 4 * 1024 * 1024  # of jobs sent in one round trip
_LOGGER = logging.getLogger("producer.dispatch")


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """When to stop enqueueing, and when to give up on a shard.

    Attributes:
        high_water_bytes: payload bytes that may wait on the queue.
        most_failures: deliveries of one shard that may end in a worker's failure.
    """

    high_water_bytes: int
    most_failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchState:
    """Where the run stands after one round.

    Attributes:
        to_do: shards neither committed nor stuck.
        queued, in_work: shards on the queue and in workers' hands.
        queued_bytes: payloads on the queue.
        redelivered: deliveries beyond the first, of this producer.
        stuck: shards whose deliveries kept failing.
        oldest_seconds: since the shard that waits longest was first seen on the queue; 0 when none waits.
    """

    to_do: int
    queued: int
    in_work: int
    queued_bytes: int
    redelivered: int
    stuck: frozenset[int]
    oldest_seconds: float


class Dispatcher:
    """Keeps the queue filled up to a high-water mark until every shard is in the ledger."""

    def __init__(
        self, record: RunRecord, plan: Plan, ledger: LedgerReader, queue: RunQueue, *, limits: DispatchLimits
    ) -> None:
        self._record = record
        self._plan = plan
        self._ledger = ledger
        self._queue = queue
        self._limits = limits
        self._reconciler = Reconciler()
        self._planned = frozenset(range(plan.shards))
        self._fresh = deque(range(plan.shards))
        self._refused: list[int] = []  # what Redis had no memory for
        self._high_water_bytes = limits.high_water_bytes
        self._delivered: set[int] = set()
        self._deliveries: Counter[int] = Counter()
        self._payload_bytes: dict[int, int] = {}
        self._stuck: set[int] = set()
        self._waiting_since: dict[int, float] = {}
        self._epoch = secrets.token_hex(3)  # deliveries of a restarted producer have other ids

    def forget_suspicions(self) -> None:
        """Redis was away for a while."""
        self._reconciler.forget()

    def adopt(self) -> None:
        """Count what an earlier producer left on the queue, and what its workers hold, as delivered."""
        self._delivered |= self._look(self._planned).everywhere

    def make_room(self) -> None:
        """Redis is out of memory: take half of the queue back, and keep less on it from now on.

        Workers cannot take a job from a Redis that is full, so waiting would be for ever.
        """
        withdrawn = [shard for shard in self._queue.withdraw_half() if shard in self._planned]
        self._take_back(withdrawn)
        mark_bytes = sum(self._size_of(shard) for shard in withdrawn)  # half of what was there
        if self._refused:  # half again, for the mark may be passed by a shard
            mark_bytes = (mark_bytes + sum(self._size_of(shard) for shard in self._refused)) // 2
            self._refused = []
        self._high_water_bytes = max(1, min(self._high_water_bytes, mark_bytes))
        facts = {"withdrawn_shards": len(withdrawn), "high_water_bytes": self._high_water_bytes}
        log(_LOGGER, QUEUE_SHRUNK, facts, level=logging.WARNING)

    def round(self, now_seconds: float, *, may_add: bool = True) -> DispatchState:
        """Look, redeliver what is lost, and top the queue up.

        Args:
            now_seconds: a clock that only goes forward.
            may_add: whether new shards may be enqueued, or the disk is too full for them.
        """
        sighting = self._look(self._delivered)
        self._ledger.poll()
        committed = self._ledger.commits.keys()
        self._delivered -= committed
        self._note_stuck()
        lost = self._reconciler.lost(self._delivered - self._stuck, sighting, committed, now_seconds)
        if lost:
            log(_LOGGER, SHARDS_REDELIVERED, {"shards": lost}, level=logging.WARNING)
            self._queue.drop_intermediate(lost)
            self._deliver(lost, in_front=True)
        queued_bytes = sum(self._size_of(shard) for shard in {*sighting.queued, *lost})
        if may_add:
            queued_bytes += self._top_up(queued_bytes, committed)
        self._waiting_since = {s: self._waiting_since.get(s, now_seconds) for s in sighting.queued}
        if len(sighting.queued) > 1 and self._queue.is_memory_short():
            self.make_room()
        return DispatchState(
            to_do=self._plan.shards - len(committed) - len(self._stuck),
            queued=len(sighting.queued),
            in_work=len(sighting.leased),
            queued_bytes=queued_bytes,
            redelivered=sum(count - 1 for count in self._deliveries.values() if count > 1),
            stuck=frozenset(self._stuck),
            oldest_seconds=now_seconds - min(self._waiting_since.values(), default=now_seconds),
        )

    def _top_up(self, queued_bytes: int, committed: Iterable[int]) -> int:
        """Enqueue shards that were never delivered, up to the high-water mark; return the bytes added."""
        done = frozenset(committed)
        added_bytes, chunk, chunk_bytes = 0, [], 0
        while queued_bytes + added_bytes < self._high_water_bytes:
            if not self._fresh:
                break
            shard = self._fresh.popleft()
            if shard in done or shard in self._delivered or shard in self._stuck:
                continue
            chunk.append(shard)
            added_bytes += self._size_of(shard)
            chunk_bytes += self._size_of(shard)
            if chunk_bytes >= _CHUNK_BYTES:
                self._deliver(chunk, in_front=False)
                chunk, chunk_bytes = [], 0
        self._deliver(chunk, in_front=False)
        return added_bytes

    def _deliver(self, shards: list[int], *, in_front: bool) -> None:
        if not shards:
            return
        self._delivered.update(shards)  # before Redis knows: if the call fails, the reconciler finds them lost
        self._deliveries.update(shards)
        jobs = dict(delivery_of(self._queue.name, self._job(shard)) for shard in shards)
        try:
            self._queue.add(jobs, in_front=in_front)
        except redis.OutOfMemoryError:  # it took none of them; called lost, they would come back all at once
            self._deliveries.subtract(shards)
            self._take_back(shards)
            self._refused = shards
            raise

    def _take_back(self, shards: list[int]) -> None:
        self._delivered.difference_update(shards)
        self._fresh.extendleft(reversed(shards))

    def _look(self, shards: Iterable[int]) -> Sighting:
        """Look for planned shards; what anybody else may have put on the queue is none of ours."""
        seen = self._queue.look(shards)
        return Sighting(
            queued=seen.queued & self._planned,
            intermediate=seen.intermediate & self._planned,
            leased=seen.leased & self._planned,
        )

    def _job(self, shard: int) -> ExtractionJob:
        return ExtractionJob(
            run=self._record.run,
            fingerprint=self._record.identity.fingerprint,
            shard=shard,
            delivery=f"{self._epoch}_{self._deliveries[shard]}",
            token_budget=self._record.settings.token_budget,
            samples=self._plan.samples_of(shard),
        )

    def _size_of(self, shard: int) -> int:
        """Bytes of a shard's payload, closely: 5 a token."""
        if shard not in self._payload_bytes:
            self._payload_bytes[shard] = 5 * int(self._plan.token_counts_of(shard).sum())
        return self._payload_bytes[shard]

    def _note_stuck(self) -> None:
        for shard, count in self._queue.failures().items():
            is_committed = shard in self._ledger.commits or shard not in self._planned
            if count >= self._limits.most_failures and shard not in self._stuck and not is_committed:
                self._stuck.add(shard)
                facts = {"shard": shard, "failures": count}
                log(_LOGGER, SHARD_STUCK, facts, level=logging.ERROR)
        self._stuck -= self._ledger.commits.keys()


def queue_of(record: RunRecord) -> str:
    """Return the name of a run's queue."""
    return queue_name(record.run, record.identity.fingerprint)
