"""The producer as a process, from its start to its exit code."""

from __future__ import annotations

import signal
import urllib.request

import pytest
from rq import Queue

from gpu_worker.leases import set_lease
from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.queue import shard_of_job
from tests.conftest import wait_until
from tests.factories import a_run, a_shard, store_shard
from tests.pipeline.services import Services
from tests.run_helpers import commit_shard

SHARDS = [[4, 2], [6], [1, 1, 1], [20]]
NOWHERE = "unix:///nonexistent/redis.sock"


@pytest.fixture
def paths(tmp_path):
    """A planned run of four shards, in the directory that the services work on."""
    return a_run(tmp_path / "run", SHARDS)


def queued(services):
    """Return the shards that wait on the queue."""
    ids = services.client().lrange(Queue(services.queue(), connection=services.client()).key, 0, -1)
    return [shard_of_job(identifier.decode()) for identifier in ids]


def scraped(producer, name):
    """Return one series of a running producer."""
    port = producer.events("producer_started")[0]["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"hiddenstream_producer_{name} "))


def test_an_evicting_redis_is_refused(paths, services):
    """A Redis that may throw jobs away ends the producer with exit code 1, and the log says what to set."""
    services.client().config_set("maxmemory-policy", "allkeys-lru")

    producer = services.producer("--reserve-bytes", "0")

    assert 2 == producer.wait(30)
    refused = producer.events("producer_refused")[0]
    assert "queue" == refused["reason"]
    assert "set it to 'noeviction'" in refused["message"]


def test_a_run_has_one_producer(paths, services):
    """A second producer of a run directory refuses with exit code 1; the first goes on."""
    first = services.producer("--reserve-bytes", "0")
    wait_until(lambda: len(SHARDS) == len(queued(services)))

    second = services.start("second", "producer", str(paths.root), "--redis", services.redis_url)

    assert 1 == second.wait(30)
    assert "has a producer already" in second.events("producer_refused")[0]["message"]
    assert first.process.poll() is None
    assert [0, 1, 2, 3] == queued(services)


def test_a_complete_run_needs_no_redis(paths, tmp_path):
    """A run whose every shard is stored ends with exit code 0 although Redis cannot be reached."""
    for shard in range(len(SHARDS)):
        store_shard(paths, shard)
    services = Services(tmp_path, NOWHERE)

    assert 0 == services.producer().wait(30)


def test_quarantined_samples_show_in_the_exit_code(paths, tmp_path):
    """A complete run that left samples out ends with exit code 3."""
    commit_shard(paths, a_shard(paths, 0, quarantined=[Quarantined(id="s1", reason="all_zero", detail="")]))
    for shard in range(1, len(SHARDS)):
        store_shard(paths, shard)
    services = Services(tmp_path, NOWHERE)

    producer = services.producer()

    assert 3 == producer.wait(30)
    assert 1 == producer.events("run_ended")[0]["samples_quarantined"]


def test_a_producer_that_waits_for_redis_stops_when_asked(paths, tmp_path):
    """SIGTERM during an outage of Redis ends the producer with exit code 4."""
    services = Services(tmp_path, NOWHERE)
    producer = services.producer("--reserve-bytes", "0")
    wait_until(lambda: producer.events("redis_waited_for"))

    producer.process.send_signal(signal.SIGTERM)

    assert 4 == producer.wait(10)


def test_a_stopped_producer_leaves_its_queue_to_the_next(paths, services):
    """SIGTERM ends it with 4 and leaves the queue; its successor doubles nothing, and ends with 0."""
    producer = services.producer("--reserve-bytes", "0")
    wait_until(lambda: len(SHARDS) == len(queued(services)))
    producer.process.send_signal(signal.SIGTERM)

    assert 4 == producer.wait(10)
    assert [0, 1, 2, 3] == queued(services)

    again = services.start("again", "producer", str(paths.root), "--redis", services.redis_url, "--reserve-bytes", "0")
    store_shard(paths, 2)
    wait_until(lambda: again.events("producer_started") and 1 == scraped(again, "shards_committed"))
    assert [0, 1, 2, 3] == queued(services)
    assert (4, 35) == (scraped(again, "shards_planned"), scraped(again, "tokens_planned"))
    set_lease(services.client(), services.queue(), 0, "w:1")
    wait_until(lambda: 1 == scraped(again, "shards_in_work"))

    for shard in (0, 1, 3):
        store_shard(paths, shard)

    assert 0 == again.wait(30)
    assert [] == services.client().keys("*")


def test_a_shard_given_up_on_ends_the_run_incomplete(paths, services):
    """A shard whose deliveries keep failing is named in the log, the others are done, and the exit code is 4."""
    producer = services.producer("--reserve-bytes", "0", "--most-failures", "2")
    wait_until(lambda: len(SHARDS) == len(queued(services)))

    services.client().hincrby(f"{services.queue()}:failures", "1", 2)
    for shard in (0, 2, 3):
        store_shard(paths, shard)

    assert 4 == producer.wait(30)
    assert 1 == producer.events("shard_stuck")[0]["shard"]


def test_a_redis_that_comes_later_is_waited_for(paths, services, redis_server):
    """A producer started before Redis fills the queue once it is there."""
    redis_server.kill()
    producer = services.producer("--reserve-bytes", "0")
    wait_until(lambda: producer.events("redis_waited_for"))

    redis_server.start()

    wait_until(lambda: len(SHARDS) == len(queued(services)))
