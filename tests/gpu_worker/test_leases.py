"""Leases on a real Redis: kept, taken again, given up, and never another's."""

from __future__ import annotations

import pytest

from gpu_worker.leases import LEASES_NOT_REFRESHED, LeaseKeeper, set_lease
from hiddenstream.chassis.redis_connection import make_client
from hiddenstream.contracts.queue import LEASE_SECONDS, failures_key, lease_key
from tests.conftest import wait_until

QUEUE = "hiddenstream-test-0"
KEY = lease_key(QUEUE, 7)


@pytest.fixture
def client(redis_server):
    return make_client(redis_server.url)


@pytest.fixture
def keeper(client):
    """A keeper with a connection of its own."""
    made = LeaseKeeper(client, QUEUE)
    yield made
    made.close()


def test_a_lease_names_its_holder_and_runs_out(client):
    """A lease that nobody refreshes ends by itself within its lifetime."""
    set_lease(client, QUEUE, 7, "w:1")

    assert b"w:1" == client.get(KEY)
    assert 0 < client.pttl(KEY) <= LEASE_SECONDS * 1000


def test_the_lease_is_taken_from_whoever_had_it(client):
    """The last to take a shard holds its lease."""
    set_lease(client, QUEUE, 7, "w:1")
    set_lease(client, QUEUE, 7, "v:1")

    assert b"v:1" == client.get(KEY)


def test_a_held_lease_is_refreshed(client, keeper):
    """A lease near its end has its whole lifetime again a beat later, so it outlives it."""
    set_lease(client, QUEUE, 7, "w:1")
    keeper.hold(7, "w:1")

    client.pexpire(KEY, 1500)
    wait_until(lambda: client.pttl(KEY) > 4000)

    assert b"w:1" == client.get(KEY)


def test_leases_that_an_emptied_redis_lost_are_back_within_two_seconds(client, keeper):
    """FLUSHALL costs a lease no longer than the producer's patience; the scripts are loaded anew."""
    for shard in (7, 8):
        set_lease(client, QUEUE, shard, "w:1")
        keeper.hold(shard, "w:1")

    client.flushall()
    client.script_flush()

    wait_until(lambda: 2 == client.exists(KEY, lease_key(QUEUE, 8)), deadline_seconds=2)


def test_another_s_lease_is_not_refreshed(client, keeper):
    """A keeper that finds its shard in another's hand lets go of it, and leaves the other's lifetime alone."""
    set_lease(client, QUEUE, 7, "w:1")
    keeper.hold(7, "w:1")

    client.set(KEY, "v:1", px=60_000)
    wait_until(lambda: [] == keeper.held())

    assert b"v:1" == client.get(KEY)
    assert client.pttl(KEY) > LEASE_SECONDS * 1000


def test_another_s_lease_is_not_released(client, keeper):
    """Giving a shard up deletes the lease only where it is one's own."""
    set_lease(client, QUEUE, 7, "v:1")
    keeper.hold(7, "w:1")

    keeper.release(7)

    assert b"v:1" == client.get(KEY)
    assert [] == keeper.held()


def test_releasing_deletes(client, keeper):
    """A shard given up is free at once; one that was never held is no error."""
    set_lease(client, QUEUE, 7, "w:1")
    keeper.hold(7, "w:1")

    keeper.release(8)
    released = keeper.release_all()

    assert [7] == released
    assert [] == client.keys("*")


def test_a_delivery_taken_while_an_older_one_is_refreshed_stays_held(client, keeper):
    """The refresh of an older delivery of the same shard, underway when the newer is taken, drops the older only."""
    keeper.hold(7, "w:1")
    set_lease(client, QUEUE, 7, "w:2")
    client.client_pause(3000, all=False)  # writes wait, so the refresh of w:1 does
    wait_until(lambda: client.info("clients")["blocked_clients"])

    keeper.hold(7, "w:2")
    client.client_unpause()
    client.pexpire(KEY, 1500)
    wait_until(lambda: client.pttl(KEY) > 4000)

    assert [7] == keeper.held()


def test_an_outage_of_redis_is_survived(redis_server, client, keeper, caplog):
    """While Redis is away the keeper says so and goes on; once it is back, so are the leases."""
    set_lease(client, QUEUE, 7, "w:1")
    keeper.hold(7, "w:1")
    keeper.hold(9, "w:1")
    redis_server.kill()
    wait_until(lambda: LEASES_NOT_REFRESHED in caplog.messages)
    keeper.release(9)
    keeper.count_failure(9)

    redis_server.start()

    wait_until(lambda: client.exists(KEY))
    assert not client.exists(lease_key(QUEUE, 9))


def test_failures_are_counted_by_shard(client, keeper):
    """The producer reads how many deliveries of each shard ended badly."""
    for shard in (7, 7, 9):
        keeper.count_failure(shard)

    assert {b"7": b"2", b"9": b"1"} == client.hgetall(failures_key(QUEUE))
