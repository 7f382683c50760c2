"""Waiting for a real Redis, and refusing one that would lose jobs."""

from __future__ import annotations

import logging
import socket
import threading
import time

import pytest
import redis

from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.redis_connection import REDIS_REACHED, REDIS_WAITED_FOR, make_client, wait_for_redis
from hiddenstream.contracts.errors import QueueError, UsageError
from tests.conftest import wait_until

EVICTING = [f"{keys}-{how}" for keys in ("allkeys", "volatile") for how in ("lru", "lfu", "random")] + ["volatile-ttl"]


def test_a_server_that_answers_is_taken_at_once(redis_server, caplog):
    """Nothing is logged where nothing was waited for."""
    assert wait_for_redis(make_client(redis_server.url), StopRequest())
    assert caplog.records == []


@pytest.mark.parametrize("policy", EVICTING)
def test_a_server_that_evicts_is_refused(redis_server, policy):
    """Jobs and leases must not vanish when memory is short; the error says what to set."""
    redis.Redis.from_url(redis_server.url).config_set("maxmemory-policy", policy)

    with pytest.raises(QueueError, match=f"'{policy}' .* set it to 'noeviction'"):
        wait_for_redis(make_client(redis_server.url), StopRequest())


def test_refused_credentials_are_not_waited_for(redis_server):
    """A wrong password will not get better."""
    redis.Redis.from_url(redis_server.url).config_set("requirepass", "secret")

    with pytest.raises(QueueError, match="--redis"):
        wait_for_redis(make_client(redis_server.url), StopRequest())


def test_a_server_that_comes_later_is_waited_for(redis_server, caplog):
    """The wait is told in the log while it lasts, and again when it ends."""
    caplog.set_level(logging.INFO)
    redis_server.kill()
    answers = []
    waiting = threading.Thread(
        target=lambda: answers.append(wait_for_redis(make_client(redis_server.url), StopRequest()))
    )
    waiting.start()
    wait_until(lambda: REDIS_WAITED_FOR in caplog.messages)

    redis_server.start()
    waiting.join(timeout=20)

    assert answers == [True]
    assert caplog.messages[-1] == REDIS_REACHED
    assert "cannot reach Redis" in caplog.records[0].facts["message"]


def test_waiting_ends_when_asked_to_stop(caplog):
    """A port that refuses everyone keeps nobody from stopping, within a second."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        client = make_client(f"redis://127.0.0.1:{taken.getsockname()[1]}")
        stop, answers = StopRequest(), []
        waiting = threading.Thread(target=lambda: answers.append(wait_for_redis(client, stop)))
        waiting.start()
        wait_until(lambda: REDIS_WAITED_FOR in caplog.messages)

        asked = time.monotonic()
        stop.set()
        waiting.join(timeout=20)

    assert answers == [False]
    assert time.monotonic() - asked < 1


@pytest.mark.parametrize("url", ["", "localhost", "http://host", "redis://host:port"])
def test_a_malformed_url_is_a_usage_error(url):
    """The error names the flag."""
    with pytest.raises(UsageError, match="--redis"):
        make_client(url)
