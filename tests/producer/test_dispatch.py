"""The queue of a planned run on a real Redis, filled, watched and filled again."""

from __future__ import annotations

import pytest
from rq import Queue

from gpu_worker.leases import set_lease
from hiddenstream.chassis.redis_connection import make_client
from hiddenstream.contracts.job import ExtractionJob
from hiddenstream.contracts.queue import SUSPECT_SECONDS, MsgpackSerializer, failures_key, lease_key, shard_of_job
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.plan import Plan
from producer.dispatch import Dispatcher, DispatchLimits, queue_of
from producer.run_queue import RunQueue
from tests.factories import a_run, store_shard

SHARDS = [[4, 2], [6], [1, 1, 1], [20], [3], [9, 9], [2], [5]]
BYTES = [5 * sum(lengths) for lengths in SHARDS]
A_LOT = 1 << 30


class Dispatched:
    """A dispatcher on a queue, and the queue as a worker sees it."""

    def __init__(self, paths, url, *, high_water_bytes=A_LOT, most_failures=3):
        self.paths, self.client = paths, make_client(url)
        record = paths.read_record()
        self.name = queue_of(record)
        self.queue = RunQueue(self.client, self.name)
        limits = DispatchLimits(high_water_bytes=high_water_bytes, most_failures=most_failures)
        self.dispatcher = Dispatcher(record, Plan(paths), LedgerReader(paths.ledger), self.queue, limits=limits)
        self._rq = Queue(self.name, connection=self.client, serializer=MsgpackSerializer)

    def ids(self):
        """Return the waiting job ids, next first."""
        return [identifier.decode() for identifier in self.client.lrange(self._rq.key, 0, -1)]

    def shards(self):
        return [shard_of_job(identifier) for identifier in self.ids()]

    def take(self, *, holder="w:1"):
        """Take the next job off the queue as an engine does, and set its lease; return the job."""
        identifier = self.client.lpop(self._rq.key).decode()
        job = self._rq.fetch_job(identifier)
        if holder:
            set_lease(self.client, self.name, shard_of_job(identifier), holder)
        job.delete()
        return ExtractionJob.decode(job.args[0])

    def commit(self, shard):
        """Store a shard as the sink does, and give its lease up."""
        store_shard(self.paths, shard)
        self.client.delete(lease_key(self.name, shard))


@pytest.fixture
def paths(tmp_path):
    """A planned run of eight shards."""
    return a_run(tmp_path / "run", SHARDS)


@pytest.fixture
def dispatched(paths, redis_server):
    """Return a maker of dispatchers on one queue."""
    return lambda **changed: Dispatched(paths, redis_server.url, **changed)


def test_every_shard_is_delivered_once_in_order(dispatched, paths):
    """Where nothing is lost, each shard is enqueued once, and its job is exactly what is planned."""
    run = dispatched()
    record, plan = paths.read_record(), Plan(paths)

    run.dispatcher.round(0.0)
    for number in range(len(SHARDS)):
        job = run.take()
        state = run.dispatcher.round(number * 0.5)
        run.commit(job.shard)

        assert (number, record.run, record.identity.fingerprint) == (job.shard, job.run, job.fingerprint)
        assert record.settings.token_budget == job.token_budget
        assert plan.samples_of(number).digest() == job.samples.digest()
        assert plan.ids_of(number) == job.samples.ids
        assert (1, 0) == (state.in_work, state.redelivered)

    assert 0 == run.dispatcher.round(100.0).to_do
    assert [] == run.ids()


@pytest.mark.parametrize("mark", [1, 31, 100, sum(BYTES)])
def test_the_queue_stays_below_the_mark_but_for_one_shard(dispatched, mark):
    """The queue is filled until it holds the mark's bytes, by no more than its last shard above it."""
    run = dispatched(high_water_bytes=mark)

    for now in range(len(SHARDS)):
        state = run.dispatcher.round(float(now))
        waiting = [BYTES[shard] for shard in run.shards()]

        assert state.queued_bytes == sum(waiting)
        assert sum(waiting[:-1]) < mark
        assert sum(waiting) >= mark or state.to_do == len(waiting)
        run.commit(run.take().shard)


def test_nothing_is_added_while_the_disk_is_short(dispatched):
    """Shards are held back while they could not be stored."""
    run = dispatched()

    run.dispatcher.round(0.0, may_add=False)
    held_back = run.ids()
    run.dispatcher.round(0.5)

    assert [] == held_back
    assert list(range(len(SHARDS))) == run.shards()


def test_a_lost_shard_comes_back_in_front(dispatched):
    """A shard whose worker died is delivered again before all others, under an id of its own."""
    run = dispatched()
    run.dispatcher.round(0.0)
    first = run.ids()[0]
    run.take(holder=None)
    run.dispatcher.round(1.0)
    assert 0 not in run.shards()

    state = run.dispatcher.round(1.0 + SUSPECT_SECONDS)

    assert [0, 1] == run.shards()[:2]
    assert first not in run.ids()
    assert 1 == state.redelivered
    assert 1 == run.shards().count(0)


def test_an_emptied_redis_is_filled_again(dispatched):
    """After FLUSHALL all that was delivered is delivered again, but for what is stored or under a new lease."""
    run = dispatched()
    run.dispatcher.round(0.0)
    run.commit(run.take().shard)
    run.take()
    run.dispatcher.round(0.5)

    run.client.flushall()
    set_lease(run.client, run.name, 1, "w:1")
    run.dispatcher.round(1.0)
    run.dispatcher.round(1.0 + SUSPECT_SECONDS)

    assert [2, 3, 4, 5, 6, 7] == sorted(run.shards())


def test_a_successor_adopts_what_is_there(dispatched):
    """A restarted producer delivers nothing that waits, is held or is stored already, and the rest once."""
    former = dispatched(high_water_bytes=sum(BYTES[:3]))
    former.dispatcher.round(0.0)
    former.commit(former.take().shard)
    former.take()
    before = former.ids()

    run = dispatched()
    run.dispatcher.adopt()
    run.dispatcher.round(0.0)

    assert before == run.ids()[: len(before)]
    assert [2, 3, 4, 5, 6, 7] == sorted(run.shards())
    assert len(run.ids()) == len(set(run.ids()))


def test_a_shard_that_keeps_failing_is_stuck(dispatched):
    """After so many failures a shard is no longer delivered, and the run ends without it; a commit frees it."""
    run = dispatched(most_failures=2)
    run.dispatcher.round(0.0)
    run.take(holder=None)
    run.client.hincrby(failures_key(run.name), "0", 2)

    stuck = run.dispatcher.round(10.0)
    later = run.dispatcher.round(20.0)
    run.commit(0)
    freed = run.dispatcher.round(30.0)

    assert {0} == stuck.stuck == later.stuck
    assert len(SHARDS) - 1 == later.to_do == freed.to_do
    assert 0 not in run.shards()
    assert frozenset() == freed.stuck


def test_failures_of_what_is_not_planned_are_none_of_our_business(dispatched):
    """Counts that anybody else left under our key neither end the producer nor change what is to do."""
    run = dispatched(most_failures=2)
    run.client.hset(failures_key(run.name), mapping={"99999": 7, "word": "x", "1": "many"})

    state = run.dispatcher.round(0.0)

    assert len(SHARDS) == state.to_do
    assert frozenset() == state.stuck


def test_a_successor_does_not_deliver_what_is_stuck(dispatched):
    """Failures counted before a restart count after it."""
    run = dispatched(most_failures=2)
    run.client.hincrby(failures_key(run.name), "0", 2)

    state = run.dispatcher.round(0.0)

    assert {0} == state.stuck
    assert [1, 2, 3, 4, 5, 6, 7] == run.shards()


def test_room_is_made_by_taking_half_of_the_queue_back(dispatched):
    """Withdrawn shards leave nothing in Redis, and are delivered later, when those before them are done."""
    run = dispatched()
    run.dispatcher.round(0.0)

    run.dispatcher.make_room()
    kept, keys = run.shards(), len(run.client.keys("rq:job:*"))
    run.dispatcher.round(0.5)
    still = run.shards()
    order = []
    for now in range(len(SHARDS)):
        order.append(run.take().shard)
        run.commit(order[-1])
        run.dispatcher.round(1.0 + now)

    assert [0, 1, 2, 3] == kept
    assert 4 == keys
    assert BYTES[4] + BYTES[5] + BYTES[6] + BYTES[7] > sum(BYTES[shard] for shard in still[:-1])
    assert list(range(len(SHARDS))) == order


def test_a_foreign_job_is_none_of_our_business(dispatched):
    """An id that names no planned shard is neither counted nor touched, and stops nobody."""
    run = dispatched()
    for identifier in ("foreign", f"{run.name}-999999-a_1"):
        run.client.rpush(run._rq.key, identifier)
        run.client.rpush(run._rq.intermediate_queue_key, identifier)

    run.dispatcher.adopt()
    state = run.dispatcher.round(0.0)
    run.dispatcher.round(60.0)

    assert len(SHARDS) == state.to_do
    assert sum(BYTES) == state.queued_bytes
    assert "foreign" in run.ids()


def test_the_end_leaves_nothing(dispatched):
    """Every key of an ended run is gone, RQ's own included; another run's stay."""
    run = dispatched()
    run.dispatcher.round(0.0)
    run.take()
    run.client.hincrby(failures_key(run.name), "0", 1)
    run.client.set("another", "1")

    run.queue.delete_everything()

    assert [b"another"] == run.client.keys("*")
