"""RQ's loop on a real Redis, with all of it off that would lose, repeat or run what it should not."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
from rq import Callback, Queue
from rq.serializers import DefaultSerializer

from gpu_worker.queue_loop import work_on
from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.redis_connection import make_client
from hiddenstream.contracts.job import TASK
from hiddenstream.contracts.queue import MsgpackSerializer, job_id, shard_of_job
from tests.conftest import wait_until
from tests.gpu_worker import jobs

QUEUE = "hiddenstream-test-0"


class Loop:
    """A loop in a thread, and what it took."""

    def __init__(self, url):
        self.client, self.stop, self.taken = make_client(url), StopRequest(), []
        self.before_task = lambda: None  # something that happens to Redis in the moment between lease and task
        self._intermediate = Queue(QUEUE, connection=self.client).intermediate_queue_key
        arguments = (make_client(url), QUEUE, "w", self.stop)
        calls = {"on_take": self._on_take, "do_task": jobs.note}
        self.thread = threading.Thread(target=work_on, args=arguments, kwargs=calls, daemon=True)

    def _on_take(self, identifier):
        shard_of_job(identifier)
        self.taken.append((identifier, identifier.encode() in self.client.lrange(self._intermediate, 0, -1)))
        self.before_task()

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


def put(client, shard, task=TASK, *, serializer=MsgpackSerializer, argument=None):
    """Enqueue one job as the producer does; return its id."""
    identifier = job_id(QUEUE, shard, "a_1")
    queue = Queue(QUEUE, connection=client, serializer=serializer)
    argument = identifier.encode() if argument is None else argument
    data = Queue.prepare_data(func=task, args=(argument,), job_id=identifier, timeout=-1, result_ttl=0)
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


@pytest.mark.parametrize("task", ["tests.gpu_worker.jobs.note", "os.system"])
def test_a_job_that_names_a_function_is_not_executed(redis_server, ran, task):
    """A worker does its one task and calls nothing by name; the foreign job is dropped and the next one runs."""
    with a_loop(redis_server.url) as loop:
        put(loop.client, 0, task)
        second = put(loop.client, 1)
        wait_until(lambda: ran)

    assert [second.encode()] == ran
    assert [b"rq:queues"] == loop.client.keys("*")


def test_callbacks_are_not_executed(redis_server, ran):
    """A job of our task that names functions for its success or failure is done; they are not called."""
    queue = Queue(QUEUE, connection=make_client(redis_server.url), serializer=MsgpackSerializer)
    after = Callback("tests.gpu_worker.jobs.fail")
    with a_loop(redis_server.url):
        queue.enqueue_call(TASK, args=(b"x",), job_id=job_id(QUEUE, 0, "a_1"), on_success=after, on_failure=after)
        wait_until(lambda: ran)
        put(queue.connection, 1)
        wait_until(lambda: len(ran) == 2)

    assert b"x" == ran[0]


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
        data = Queue.prepare_data(func=TASK, args=(b"foreign",), job_id="foreign")
        Queue(QUEUE, connection=loop.client, serializer=MsgpackSerializer).enqueue_many([data])
        second = put(loop.client, 1)
        wait_until(lambda: ran)

    assert [second.encode()] == ran


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_job_in_hand_is_done_whatever_happens_to_redis(redis_server, ran, is_killed):
    """Redis emptied or killed between lease and task: the task is done, since only its end gives the lease up."""
    with a_loop(redis_server.url) as loop:
        loop.before_task = redis_server.kill if is_killed else loop.client.flushall
        identifier = put(loop.client, 0)
        wait_until(lambda: ran)

    assert [identifier.encode()] == ran


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


def test_suspending_all_of_rq_stops_nothing(redis_server, ran):
    """`rq suspend` by whoever shares this Redis neither stops the loop nor keeps it from ending."""
    client = make_client(redis_server.url)
    client.set("rq:suspended", 1)
    with a_loop(redis_server.url):
        put(client, 0)
        wait_until(lambda: ran)
