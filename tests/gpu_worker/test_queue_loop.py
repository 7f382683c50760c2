"""RQ's loop on a real Redis, with all of it off that would lose, repeat or run what it should not."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
from rq import Queue
from rq.serializers import DefaultSerializer

from gpu_worker.queue_loop import work_on
from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.redis_connection import make_client
from hiddenstream.contracts.queue import MsgpackSerializer, job_id, shard_of_job
from tests.conftest import wait_until
from tests.gpu_worker import jobs

QUEUE = "hiddenstream-test-0"


class Loop:
    """A loop in a thread, and what it took."""

    def __init__(self, url):
        self.client, self.stop, self.taken = make_client(url), StopRequest(), []
        self._intermediate = Queue(QUEUE, connection=self.client).intermediate_queue_key
        arguments = (make_client(url), QUEUE, "w", self.stop, self._on_take)
        self.thread = threading.Thread(target=work_on, args=arguments, daemon=True)

    def _on_take(self, identifier):
        shard_of_job(identifier)
        self.taken.append((identifier, identifier.encode() in self.client.lrange(self._intermediate, 0, -1)))

    def end(self):
        self.stop.set()
        self.thread.join(timeout=20)
        assert not self.thread.is_alive()


@contextmanager
def a_loop(url):
    """Run a loop; end it when the block ends."""
    loop = Loop(url)
    loop.thread.start()
    try:
        yield loop
    finally:
        loop.end()


@pytest.fixture(autouse=True)
def ran():
    """What the jobs of one test noted."""
    jobs.ran.clear()
    return jobs.ran


def put(client, shard, name="note", *, serializer=MsgpackSerializer, argument=None):
    """Enqueue one job as the producer does; return its id."""
    identifier = job_id(QUEUE, shard, "a_1")
    queue = Queue(QUEUE, connection=client, serializer=serializer)
    argument = identifier.encode() if argument is None else argument
    data = Queue.prepare_data(
        func=f"tests.gpu_worker.jobs.{name}", args=(argument,), job_id=identifier, timeout=-1, result_ttl=0
    )
    queue.enqueue_many([data])
    return identifier


def test_jobs_run_in_order_and_leave_nothing(redis_server, ran):
    """Each job runs once, and when the loop has ended Redis holds no key of it but the list of queues."""
    client = make_client(redis_server.url)
    ids = [put(client, shard) for shard in range(5)]

    with a_loop(redis_server.url):
        wait_until(lambda: len(ran) == 5)

    assert [identifier.encode() for identifier in ids] == ran
    assert [b"rq:queues"] == client.keys("*")


def test_the_lease_is_set_before_rq_lets_go(redis_server):
    """When a job is taken its id is on the intermediate list still, so the producer always sees it somewhere."""
    with a_loop(redis_server.url) as loop:
        identifier = put(loop.client, 3)
        wait_until(lambda: loop.taken)

    assert [(identifier, True)] == loop.taken


def test_a_job_that_raises_ends_nothing(redis_server, ran):
    """A job that raises is not run again, and the next one runs."""
    with a_loop(redis_server.url) as loop:
        first, second = put(loop.client, 0, "fail"), put(loop.client, 1)
        wait_until(lambda: len(ran) == 2)

    assert [first.encode(), second.encode()] == ran


@pytest.mark.parametrize("is_argument_hostile", [False, True])
def test_a_pickled_job_is_not_executed(redis_server, ran, is_argument_hostile):
    """What RQ's default serializer wrote is neither called nor unpickled; the next job runs."""
    with a_loop(redis_server.url) as loop:
        argument = jobs.RunsWhenUnpickled() if is_argument_hostile else None
        put(loop.client, 0, serializer=DefaultSerializer, argument=argument)
        second = put(loop.client, 1)
        wait_until(lambda: ran)

    assert [second.encode()] == ran


def test_a_job_that_names_no_shard_is_not_executed(redis_server, ran):
    """A foreign id is not run, and does not end the loop."""
    with a_loop(redis_server.url) as loop:
        data = Queue.prepare_data(func="tests.gpu_worker.jobs.note", args=(b"foreign",), job_id="foreign")
        Queue(QUEUE, connection=loop.client, serializer=MsgpackSerializer).enqueue_many([data])
        second = put(loop.client, 1)
        wait_until(lambda: ran)

    assert [second.encode()] == ran


def test_an_outage_of_redis_ends_nothing(redis_server, ran):
    """A loop whose Redis was killed and came back empty takes the next job."""
    with a_loop(redis_server.url) as loop:
        put(loop.client, 0)
        wait_until(lambda: ran)
        redis_server.kill()
        redis_server.start()
        put(loop.client, 1)
        wait_until(lambda: len(ran) == 2)


def test_an_idle_loop_stops_within_three_seconds(redis_server):
    """A request to stop is seen while there is no job."""
    with a_loop(redis_server.url) as loop:
        wait_until(lambda: loop.client.smembers("rq:workers"))

        asked = time.monotonic()
        loop.end()

    assert time.monotonic() - asked < 3
    assert [] == loop.client.keys("*")


def test_a_loop_without_redis_stops_within_three_seconds(redis_server):
    """A request to stop is seen while Redis is away."""
    redis_server.kill()
    with a_loop(redis_server.url) as loop:
        asked = time.monotonic()
        loop.end()

    assert time.monotonic() - asked < 3
