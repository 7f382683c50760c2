"""Reaching Redis: waiting for it, and refusing one that would lose jobs."""

from __future__ import annotations

import logging

import redis

from hiddenstream.chassis.lifecycle import StopRequest, backoff
from hiddenstream.chassis.logs import log
from hiddenstream.contracts.errors import QueueError, UsageError

REDIS_WAITED_FOR = "redis_waited_for"
REDIS_REACHED = "redis_reached"
REDIS_ERRORS = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError, redis.ReadOnlyError)
_OLDEST = (6, 2)  # BLMOVE: with an older one RQ takes a job off the queue before it is anywhere else
_LOGGER = logging.getLogger("hiddenstream.redis")


def make_client(url: str) -> redis.Redis:
    """Return a client of *url* (``redis://``, ``rediss://`` or ``unix://``) that gives up on a silent server.

    Raises:
        UsageError: the URL is malformed.
    """
    try:
        return redis.Redis.from_url(url, socket_timeout=15, socket_connect_timeout=5, health_check_interval=15)
    except ValueError as error:
        raise UsageError(f"--redis: {error}") from error


def wait_for_redis(client: redis.Redis, stop: StopRequest) -> bool:
    """Wait until Redis answers, saying so in the log; return False if stopping was asked for meanwhile.

    Raises:
        QueueError: as :func:`refuse_unfit`.
    """
    waits = backoff()
    waited_seconds = 0.0
    while not stop.is_set():
        try:
            refuse_unfit(client)
        except REDIS_ERRORS as error:
            pause = next(waits)
            facts = {"message": f"cannot reach Redis: {error}", "waited_seconds": round(waited_seconds, 1)}
            log(_LOGGER, REDIS_WAITED_FOR, facts, level=logging.WARNING)
            waited_seconds += pause
            stop.wait(pause)
            continue
        if waited_seconds:
            log(_LOGGER, REDIS_REACHED, {"waited_seconds": round(waited_seconds, 1)})
        return True
    return False


def refuse_unfit_if_reachable(client: redis.Redis) -> None:
    """Refuse an unfit Redis before any work; one that is away is waited for when it is needed.

    Raises:
        QueueError: as :func:`refuse_unfit`.
    """
    try:
        refuse_unfit(client)
    except REDIS_ERRORS:
        return


def refuse_unfit(client: redis.Redis) -> None:
    """Refuse a Redis that may throw jobs or leases away, or that refuses us.

    Raises:
        QueueError: its ``maxmemory-policy`` is not ``noeviction``, it is older than 6.2, or the credentials are wrong.
    """
    try:
        server, memory = client.info("server"), client.info("memory")
    except redis.AuthenticationError as error:
        raise QueueError(f"Redis refuses the user or password in --redis: {error}") from error
    version = str(server.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise QueueError(
            f"Redis is of version {version}; 6.2 or newer is needed, since older ones cannot move a job whole"
        )
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise QueueError(
            f"Redis has maxmemory-policy {policy!r} and would drop jobs and leases when memory is short;"
            " set it to 'noeviction'"
        )
