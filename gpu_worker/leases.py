"""Leases on the shards in hand. The supervisor refreshes them, so that no held interpreter lock can stop the beat.

A lease says "somebody is at it" to the producer's reconciler, nothing more: two holders of one shard cost time,
never data. Its value names worker and delivery, so nobody refreshes or drops another's.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import redis

from hiddenstream.chassis.logs import log
from hiddenstream.contracts.queue import LEASE_REFRESH_SECONDS, LEASE_SECONDS, failures_key, lease_key

LEASES_NOT_REFRESHED = "leases_not_refreshed"
LEASE_LOST = "lease_lost"
_LOGGER = logging.getLogger("gpu_worker.leases")
_FAILURES_KEPT_SECONDS = 7 * 24 * 3600  # the producer deletes them at the run's end; this is for one that never ends
_LIFETIME_MS = int(LEASE_SECONDS * 1000)


def set_lease(client: redis.Redis, queue: str, shard: int, holder: str) -> None:
    """Take the lease on *shard*, from whoever has it. The engine does this before anything else."""
    client.set(lease_key(queue, shard), holder, px=_LIFETIME_MS)


class LeaseKeeper:
    """Keeps the leases of one worker alive from a thread of its own."""

    def __init__(self, client: redis.Redis, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._held: dict[int, str] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        folder = Path(__file__).parent
        self._refresh = client.register_script((folder / "refresh_lease.lua").read_text())
        self._release = client.register_script((folder / "release_lease.lua").read_text())
        self._thread = threading.Thread(target=self._beat, name="leases", daemon=True)
        self._thread.start()

    def hold(self, shard: int, holder: str) -> None:
        """Refresh this lease from now on."""
        with self._lock:
            self._held[shard] = holder

    def release(self, shard: int) -> None:
        """Give a lease up; where Redis is away it runs out by itself."""
        with self._lock:
            holder = self._held.pop(shard, None)
        if holder is not None:
            try:
                self._release(keys=[lease_key(self._queue, shard)], args=[holder])
            except redis.RedisError as error:
                log(_LOGGER, LEASES_NOT_REFRESHED, {"message": str(error)}, level=logging.WARNING)

    def release_all(self) -> list[int]:
        """Give every lease up; return their shards."""
        shards = self.held()
        for shard in shards:
            self.release(shard)
        return shards

    def held(self) -> list[int]:
        """Return the shards in hand."""
        with self._lock:
            return sorted(self._held)

    def count_failure(self, shard: int) -> None:
        """Tell the producer that a delivery of *shard* ended in a failure of this worker."""
        try:
            self._client.hincrby(failures_key(self._queue), str(shard), 1)
            self._client.expire(failures_key(self._queue), _FAILURES_KEPT_SECONDS)
        except redis.RedisError as error:
            log(_LOGGER, LEASES_NOT_REFRESHED, {"message": str(error)}, level=logging.WARNING)

    def close(self) -> None:
        """Stop refreshing."""
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stopped.wait(LEASE_REFRESH_SECONDS):
            try:
                self._refresh_all()
            except redis.RedisError as error:
                log(_LOGGER, LEASES_NOT_REFRESHED, {"message": str(error)}, level=logging.WARNING)

    def _refresh_all(self) -> None:
        with self._lock:
            held = dict(self._held)
        for shard, holder in held.items():
            is_ours = self._refresh(keys=[lease_key(self._queue, shard)], args=[holder, _LIFETIME_MS])
            with self._lock:
                is_held = self._held.get(shard) == holder  # it may be done, or delivered anew, meanwhile
                if is_held and not is_ours:
                    del self._held[shard]
            if not is_ours:
                log(_LOGGER, LEASE_LOST, {"shard": shard}, level=logging.WARNING)
            elif not is_held:
                self._release(keys=[lease_key(self._queue, shard)], args=[holder])
