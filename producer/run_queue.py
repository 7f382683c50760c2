"""The run's queue in Redis, as the producer uses it: looking, adding, and leaving nothing behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import redis
from rq import Queue
from rq.job import Job

from hiddenstream.contracts.job import TASK, ExtractionJob
from hiddenstream.contracts.queue import MsgpackSerializer, failures_key, job_id, lease_key, shard_of_job
from producer.reconcile import Sighting

_FAILED_JOB_SECONDS = 3600  # the run's end deletes them anyway
_FULL_SHARE = 0.9  # of maxmemory


class RunQueue:
    """One run's queue. Every method talks to Redis and raises what redis-py raises."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.name = name
        self._client = client
        self._queue = Queue(name, connection=client, serializer=MsgpackSerializer)

    def look(self, delivered: Iterable[int]) -> Sighting:
        """Read queue, intermediate list and leases, in that order.

        Args:
            delivered: shards whose leases are asked for.
        """
        queued = self._listed(self._queue.key)
        intermediate = self._listed(self._queue.intermediate_queue_key)
        shards = sorted({*delivered, *_shards(intermediate)})
        holders = self._client.mget([lease_key(self.name, shard) for shard in shards]) if shards else []
        leased = frozenset(shard for shard, holder in zip(shards, holders, strict=True) if holder is not None)
        return Sighting(queued=_shards(queued), intermediate=_shards(intermediate), leased=leased)

    def add(self, jobs: Mapping[str, bytes], *, in_front: bool) -> None:
        """Enqueue deliveries: job id to payload. One round trip for all of them."""
        prepared = [
            Queue.prepare_data(
                func=TASK,
                args=(payload,),
                job_id=identifier,
                timeout=-1,  # RQ's time-outs are off: they cannot stop native code
                result_ttl=0,
                failure_ttl=_FAILED_JOB_SECONDS,
                description=identifier,  # RQ would print the payload
                at_front=in_front,
            )
            for identifier, payload in jobs.items()
        ]
        self._queue.enqueue_many(prepared)

    def drop_intermediate(self, shards: Iterable[int]) -> None:
        """Take deliveries that died before their lease off the intermediate list."""
        lost = frozenset(shards)
        for identifier in self._listed(self._queue.intermediate_queue_key):
            if _shard_named_by(identifier) in lost:
                self._client.lrem(self._queue.intermediate_queue_key, 0, identifier)

    def withdraw_half(self) -> list[int]:
        """Take the later half of the waiting deliveries back, at least one; return their shards in order."""
        count = max(1, int(self._client.llen(self._queue.key)) // 2)
        popped = self._client.rpop(self._queue.key, count)
        identifiers = [as_text(identifier) for identifier in popped] if isinstance(popped, list) else []
        for identifier in identifiers:
            self._client.delete(Job.key_for(identifier))
        named = [_shard_named_by(identifier) for identifier in reversed(identifiers)]
        return [shard for shard in named if shard is not None]

    def is_memory_short(self) -> bool:
        """Whether Redis is so full that it may refuse what workers write when they take a job."""
        memory = self._client.info("memory")
        limit_bytes = int(memory.get("maxmemory", 0))
        return 0 < limit_bytes * _FULL_SHARE <= int(memory["used_memory"])

    def _listed(self, key: str) -> list[str]:
        return [as_text(identifier) for identifier in self._client.lrange(key, 0, -1)]

    def failures(self) -> dict[int, int]:
        """Return how many deliveries of each shard ended in a worker's failure; what is no such count is left out."""
        counted = self._client.hgetall(failures_key(self.name))
        return {int(s): int(count) for s, count in counted.items() if s.isdigit() and count.isdigit()}

    def delete_everything(self) -> int:
        """Remove every key of this run, RQ's book-keeping of it included; return how many."""
        workers = self._client.smembers(f"rq:workers:{self.name}")
        if workers:
            self._client.srem("rq:workers", *workers)
        self._client.srem("rq:queues", self._queue.key)
        deleted = 0
        for key in self._client.scan_iter(match=f"*{self.name}*", count=1000):
            deleted += int(self._client.delete(key))
        return deleted


def delivery_of(queue: str, job: ExtractionJob) -> tuple[str, bytes]:
    """Return the job id and payload of one delivery."""
    return job_id(queue, job.shard, job.delivery), job.encode()


def _shards(identifiers: Iterable[str]) -> frozenset[int]:
    named = map(_shard_named_by, identifiers)
    return frozenset(shard for shard in named if shard is not None)


def _shard_named_by(identifier: str) -> int | None:
    """Return the shard of a job, or None for one that is not ours: no worker runs it, and it must stop nobody."""
    try:
        return shard_of_job(identifier)
    except ValueError:
        return None


def as_text(identifier: bytes | str) -> str:
    """Return what Redis gave as text."""
    return identifier.decode(errors="replace") if isinstance(identifier, bytes) else identifier
