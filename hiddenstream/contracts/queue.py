"""Names of what hiddenstream keeps in Redis, and the serializer of its RQ jobs. No I/O here.

Everything of a run carries its queue's name, so it can be found and deleted when the run ends.
"""

from __future__ import annotations

import re
from typing import Any

import msgpack

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # safe as part of a key, a URL and a job id
_JOB_ID = re.compile(r".+-([0-9]{6,18})-[A-Za-z0-9_]+")
LEASE_SECONDS = 5.0  # with SUSPECT_SECONDS and a scan, a dead worker's shard is back on the queue in 8 s
LEASE_REFRESH_SECONDS = 1.0
SUSPECT_SECONDS = 2.0  # longer than a refresh: leases that an emptied Redis lost are back by then


class MsgpackSerializer:
    """RQ serializer without pickle: who can write to Redis still cannot run code in a worker."""

    @staticmethod
    def dumps(value: object) -> bytes:
        """Return *value* (plain data and bytes) as msgpack."""
        return bytes(msgpack.packb(value, datetime=False))

    @staticmethod
    def loads(data: bytes) -> Any:
        """Return what *data* holds; raises ValueError on anything malformed."""
        return msgpack.unpackb(data)


def queue_name(run: str, fingerprint: str) -> str:
    """Return the name of the one queue that this run's producer fills and its workers listen to."""
    return f"hiddenstream-{run}-{fingerprint}"


def job_id(queue: str, shard: int, delivery: str) -> str:
    """Return the RQ job id of one delivery of one shard. RQ allows letters, digits, '_' and '-'."""
    return f"{queue}-{shard:06d}-{delivery}"


def shard_of_job(identifier: str) -> int:
    """Return the shard that a job id of :func:`job_id` names. Raises ValueError on any other id."""
    matched = _JOB_ID.fullmatch(identifier)
    if not matched:
        raise ValueError(f"{identifier!r} names no delivery of a shard")
    return int(matched[1])


def lease_key(queue: str, shard: int) -> str:
    """Return the key of the lease on *shard*; its value names the worker and delivery that hold it."""
    return f"{queue}:lease:{shard}"


def failures_key(queue: str) -> str:
    """Return the key of the hash that counts, per shard, deliveries that ended in a worker's failure."""
    return f"{queue}:failures"


def workers_key(queue: str) -> str:
    """Return the key of the set of names of workers that report; those whose report is gone are to be removed."""
    return f"{queue}:workers"


def report_key(queue: str, worker: str) -> str:
    """Return the key of a worker's :class:`~hiddenstream.contracts.worker_report.WorkerReport`."""
    return f"{queue}:report:{worker}"
