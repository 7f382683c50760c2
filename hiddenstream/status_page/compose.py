"""Putting a run's status together from what was read and seen. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hiddenstream.chassis.version import program_version
from hiddenstream.contracts.run import RunRecord
from hiddenstream.status_page.bottleneck import bottleneck_of
from hiddenstream.status_page.parts import (
    GONE,
    Amount,
    DiskStatus,
    FailureGroup,
    LogLine,
    QueueStatus,
    Speed,
    WorkerStatus,
)
from hiddenstream.status_page.status import RunStatus
from hiddenstream.status_page.totals import Totals
from hiddenstream.status_page.words import counted, duration

MOST_WORKERS = 256
TOKEN_AND_MASK_BYTES = 5  # a shard holds them beside the states
PHASES = ("planning", "refused", "delivering", "stopping", "ended", "unwatched")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of a run besides plan and ledger.

    Attributes:
        phase: one of PHASES; ``unwatched`` where the run directory is all that one looks at.
        run: its name, before there is a plan.
        refusal: why there will be none, for people.
        disk: without to_come_bytes and full_in_seconds, which are told here.
        stuck_shards: shards given up on.
        failures: stuck and rejected ones; those in quarantine come from the ledger.
        workers: those that report, and those that lately did.
    """

    phase: str
    run: str
    rows_read: int = 0
    refusal: str = ""
    queue: QueueStatus | None = None
    disk: DiskStatus | None = None
    stuck_shards: int = 0
    failures: tuple[FailureGroup, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    log: tuple[LogLine, ...] = ()


def compose(record: RunRecord | None, totals: Totals, seen: Seen, *, now: float) -> RunStatus:
    """Return the status at the Unix time *now*.

    Args:
        record: the run's record, or None while it is planned.
    """
    if record is None or seen.refusal:
        return _without_run(seen, now)
    planned = Amount(
        samples=record.samples,
        tokens=record.tokens,
        shards=record.shards,
        bytes=record.tokens * (record.identity.bytes_per_token + TOKEN_AND_MASK_BYTES),
    )
    to_do_shards = planned.shards - totals.committed.shards
    speed = _speed(planned, totals, now)
    disk = _disk(seen.disk, planned, totals, speed)
    live = [worker for worker in seen.workers if worker.state != GONE]
    word, sentence = bottleneck_of(
        live, to_do_shards=to_do_shards - seen.stuck_shards, queue=seen.queue, disk=disk, recent=totals.recent
    )
    state, message = _state(seen, totals, to_do_shards, live, disk, now)
    if seen.phase == "unwatched":
        word, sentence = "none", ""
    return RunStatus(
        time=now,
        version=program_version(),
        run=record.run,
        model=record.model,
        taps=record.identity.taps,
        compute_dtype=record.identity.compute_dtype,
        stored_dtype=record.identity.stored_dtype,
        fingerprint=record.identity.fingerprint,
        state=state,
        message=message,
        exit_code=_exit_code(totals, to_do_shards) if seen.phase == "ended" else None,
        planned=planned,
        committed=totals.committed,
        quarantined_samples=totals.quarantined_samples,
        first_commit=totals.first_commit,
        last_commit=totals.last_commit,
        speed=speed,
        bottleneck=word,
        bottleneck_message=sentence,
        workers=seen.workers[:MOST_WORKERS],
        live_workers=len(live),
        queue=seen.queue,
        disk=disk,
        failures=(*totals.quarantined, *seen.failures),
        log=seen.log,
    )


def _without_run(seen: Seen, now: float) -> RunStatus:
    return RunStatus(
        time=now,
        version=program_version(),
        run=seen.run,
        state="refused" if seen.refusal else "planning",
        message=seen.refusal or "The data is read, tokenized where need be, and cut into shards.",
        planned=Amount(),
        committed=Amount(),
        rows_read=seen.rows_read,
        workers=seen.workers[:MOST_WORKERS],
        disk=seen.disk,
        log=seen.log,
    )


def _exit_code(totals: Totals, to_do_shards: int) -> int:
    if to_do_shards:
        return 4
    return 3 if totals.quarantined_samples else 0


def _speed(planned: Amount, totals: Totals, now: float) -> Speed:
    recent = totals.recent
    rest_tokens = planned.tokens - totals.committed.tokens
    is_complete = totals.committed.shards >= planned.shards
    rates: list[float | None] = [None, None, None]
    if recent.seconds > 0:
        rates = [count / recent.seconds for count in (recent.tokens, recent.samples, recent.bytes)]
    eta = 0.0 if is_complete else max(0, rest_tokens) / rates[0] if rates[0] else None
    return Speed(
        tokens_per_second=rates[0],
        samples_per_second=rates[1],
        bytes_per_second=rates[2],
        eta_seconds=eta,
        ends_at=None if eta is None or is_complete else now + eta,
        points=totals.points,
        point_seconds=totals.point_seconds,
    )


def _disk(disk: DiskStatus | None, planned: Amount, totals: Totals, speed: Speed) -> DiskStatus | None:
    if disk is None:
        return None
    share = 1 - totals.committed.tokens / planned.tokens if planned.tokens else 0.0
    is_complete = totals.committed.shards >= planned.shards
    to_come_bytes = 0 if is_complete else max(0, round(planned.bytes * share))
    left_bytes = max(0, disk.free_bytes - disk.reserve_bytes)
    return DiskStatus(
        free_bytes=disk.free_bytes,
        total_bytes=disk.total_bytes,
        reserve_bytes=disk.reserve_bytes,
        to_come_bytes=to_come_bytes,
        full_in_seconds=left_bytes / speed.bytes_per_second if to_come_bytes and speed.bytes_per_second else None,
    )


def _state(
    seen: Seen, totals: Totals, to_do_shards: int, live: list[WorkerStatus], disk: DiskStatus | None, now: float
) -> tuple[str, str]:
    if to_do_shards <= 0:
        return _complete(totals)
    if seen.phase == "ended" and seen.stuck_shards:
        return "stuck", f"{counted(seen.stuck_shards, 'shard')} could not be computed; all others are stored."
    if seen.phase == "ended":
        return "not_complete", f"Stopped with {counted(to_do_shards, 'shard')} to do; start it again to continue."
    if seen.phase == "stopping":
        return "stopping", "The producer was asked to stop."
    if seen.phase == "unwatched":
        silence = None if totals.last_commit is None else now - totals.last_commit
        told = "nothing is stored yet" if silence is None else f"the last commit was {duration(max(0, silence))} ago"
        return ("running" if silence is not None and silence < 120 else "not_complete"), f"{told.capitalize()}."
    if seen.queue is not None and not seen.queue.is_reachable:
        return "waiting_for_redis", "Redis cannot be reached; it is waited for."
    if disk is not None and disk.free_bytes < disk.reserve_bytes:
        return "waiting_for_disk", "The disk is full up to its reserve; free some space, and the run goes on."
    if live and all(worker.state == "waiting_for_sink" for worker in live):
        return "waiting_for_sink", "Every worker waits for the sink."
    if not live and not (seen.queue is not None and seen.queue.in_work):
        return "waiting_for_workers", "No worker reports itself; start one."
    return "running", f"{counted(to_do_shards, 'shard')} to do."


def _complete(totals: Totals) -> tuple[str, str]:
    if totals.quarantined_samples:
        left_out = counted(totals.quarantined_samples, "sample")
        return "complete_with_quarantined", f"Everything is stored but {left_out} in quarantine."
    return "complete", "Every sample is stored."
