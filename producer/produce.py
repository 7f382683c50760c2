"""The producer's main path: plan once, then keep the queue filled until every shard is in the ledger.

    dataset ─▶ plan (once) ─▶ rounds of: look at queue and ledger ─▶ redeliver what is lost ─▶ top up ─▶ done

The plan and the ledger are the truth; Redis may be emptied or lost at any time, and the next round mends it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import redis

from hiddenstream.chassis.disk import disk_room
from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.logs import RecentLines, log, start_logging
from hiddenstream.chassis.redis_connection import make_client, refuse_unfit_if_reachable, wait_for_redis
from hiddenstream.chassis.settings import address, from_process, is_on, setting, whole_number
from hiddenstream.contracts.errors import HiddenstreamError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.paths import RunPaths, producer_lock
from hiddenstream.run_directory.plan import Plan
from hiddenstream.status_page.totals import LedgerTotals
from producer.dispatch import Dispatcher, DispatchLimits, queue_of
from producer.resume import ensure_plan
from producer.run_queue import RunQueue
from producer.settings import PageFlags
from producer.watched import Watched

PRODUCER_REFUSED = "producer_refused"
PRODUCER_STARTED = "producer_started"
REDIS_LOST = "redis_lost"
DISK_SHORT = "disk_short"
RUN_ENDED = "run_ended"
COMPLETE, COMPLETE_WITH_QUARANTINE, NOT_COMPLETE = 0, 3, 4
_ROUND_SECONDS = 0.5
_LOGGER = logging.getLogger("producer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceSettings(PageFlags):
    """Plan a run if that is still to be done, then deliver its shards until every one is stored."""

    redis: str = setting(means="URL of the queue: redis://[USER:PASSWORD@]HOST:PORT/DB, rediss:// or unix://PATH")
    queue_high_water_bytes: int = setting(
        64 * 1024 * 1024,
        parse=whole_number(least=1),
        means="bytes of jobs that may wait in Redis; enough to keep all workers busy for a minute",
    )
    most_failures: int = setting(
        5,
        parse=whole_number(least=1),
        means="failures of workers on one shard after which it is reported stuck instead of delivered again",
    )
    reserve_bytes: int = setting(
        1024**3,
        parse=whole_number(least=0),
        means="free bytes on the run directory's disk below which no new shards are delivered",
    )
    metrics_listen: tuple[str, int] = setting(
        ("127.0.0.1", 9101), parse=address, means="HOST:PORT of /metrics and /healthz; port 0 takes a free one"
    )
    stay: bool = setting(
        False,
        parse=is_on,
        means="when the run has ended or was refused, go on serving metrics and status page until SIGTERM; the exit"
        " code stays the same",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan and deliver; return the command's exit code."""
    settings = from_process(ProduceSettings, command="hiddenstream produce", arguments=arguments)
    recent = RecentLines("producer")
    start_logging("producer", recent=recent)
    paths = RunPaths(settings.run_directory)
    try:
        refuse_unfit_if_reachable(make_client(settings.redis))
        with (
            producer_lock(paths),
            Watched(
                paths,
                recent,
                reserve_bytes=settings.reserve_bytes,
                metrics_listen=settings.metrics_listen,
                status_listen=settings.status_listen,
                status_hosts=settings.status_hosts,
            ) as watched,
        ):
            return _plan_and_produce(paths, settings, watched)
    except HiddenstreamError as error:
        return _refused(error)


def _plan_and_produce(paths: RunPaths, settings: ProduceSettings, watched: Watched) -> int:
    try:
        # a signal may end it at once: the plan counts when run.json is there
        record = ensure_plan(settings, on_rows=watched.show_rows)
        return produce(paths, record, settings, StopRequest().install(), watched)
    except HiddenstreamError as error:
        code = _refused(error)
        if settings.stay:
            watched.show_refusal(str(error), StopRequest().install())
        return code


def _refused(error: HiddenstreamError) -> int:
    log(_LOGGER, PRODUCER_REFUSED, {"reason": error.reason, "message": str(error)}, level=logging.ERROR)
    return error.exit_code


def produce(paths: RunPaths, record: RunRecord, settings: ProduceSettings, stop: StopRequest, watched: Watched) -> int:
    """Deliver a planned run's shards until all are stored, or stopping is asked for.

    Returns:
        0 complete, 3 complete with quarantined samples, 4 not complete.

    Raises:
        QueueError: Redis would lose jobs, or refuses us.
    """
    totals = LedgerTotals()
    ledger = LedgerReader(paths.ledger, on_commit=totals.add)
    ledger.poll()
    queue = RunQueue(make_client(settings.redis), queue_of(record))
    watched.show_run(record, totals, queue=queue.name, redis_url=settings.redis, most_failures=settings.most_failures)
    log(_LOGGER, PRODUCER_STARTED, {"run": record.run, "shards": record.shards, "metrics_port": watched.metrics_port})
    if len(ledger.commits) < record.shards:
        limits = DispatchLimits(high_water_bytes=settings.queue_high_water_bytes, most_failures=settings.most_failures)
        dispatcher = Dispatcher(record, Plan(paths), ledger, queue, limits=limits)
        _deliver_all(make_client(settings.redis), dispatcher, stop, _Round(paths, settings, watched))
    if stop.is_set():
        watched.show_stopping()
    _clean_up(queue, stop)  # of a complete run, too: an earlier producer may have died before it could
    code = _verdict(record, totals)
    watched.show_end(stop, stays=settings.stay)
    return code


@dataclass(slots=True)
class _Round:
    """What a round looks at and shows besides the queue."""

    paths: RunPaths
    settings: ProduceSettings
    watched: Watched
    is_disk_short: bool = False

    def has_room(self) -> bool:
        free_bytes = disk_room(self.paths.root).free_bytes
        was_short, self.is_disk_short = self.is_disk_short, free_bytes < self.settings.reserve_bytes
        if self.is_disk_short and not was_short:
            facts = {"free_bytes": free_bytes, "reserve_bytes": self.settings.reserve_bytes}
            log(_LOGGER, DISK_SHORT, facts, level=logging.WARNING)
        return not self.is_disk_short


def _deliver_all(client: redis.Redis, dispatcher: Dispatcher, stop: StopRequest, each: _Round) -> None:
    """Run rounds until nothing is to do; an outage of Redis is waited out."""
    has_adopted = False
    while wait_for_redis(client, stop):
        try:
            if not has_adopted:
                dispatcher.adopt()
                has_adopted = True
            while not stop.is_set():
                if _run_round(dispatcher, each):
                    return
                stop.wait(_ROUND_SECONDS)
        except redis.RedisError as error:
            log(_LOGGER, REDIS_LOST, {"message": str(error)}, level=logging.WARNING)
            each.watched.show_redis_lost()
            dispatcher.forget_suspicions()
            stop.wait(_ROUND_SECONDS)


def _run_round(dispatcher: Dispatcher, each: _Round) -> bool:
    """Run one round; return whether nothing is left to do."""
    try:
        state = dispatcher.round(time.monotonic(), may_add=each.has_room())
    except redis.OutOfMemoryError:
        dispatcher.make_room()
        return False
    each.watched.show_round(state)
    return state.to_do == 0


def _clean_up(queue: RunQueue, stop: StopRequest) -> None:
    """Leave nothing of an ended run in Redis; one that was stopped keeps its queue."""
    if stop.is_set():
        return
    try:
        queue.delete_everything()
    except redis.RedisError as error:
        log(_LOGGER, REDIS_LOST, {"message": f"keys of the ended run remain: {error}"}, level=logging.WARNING)


def _verdict(record: RunRecord, totals: LedgerTotals) -> int:
    committed, by_reason, _ = totals.counts()
    quarantined = sum(by_reason.values())
    facts = {
        "shards": record.shards,
        "shards_committed": committed.shards,
        "samples": record.samples,
        "samples_quarantined": quarantined,
    }
    log(_LOGGER, RUN_ENDED, facts)
    if committed.shards < record.shards:
        return NOT_COMPLETE
    return COMPLETE_WITH_QUARANTINE if quarantined else COMPLETE
