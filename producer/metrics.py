"""Every series of the producer."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from hiddenstream.chassis.version import program_version
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.worker_report import WORKER_STATES
from hiddenstream.status_page.disk import look_at_disk
from hiddenstream.status_page.parts import DiskStatus
from hiddenstream.status_page.totals import LedgerTotals
from producer.dispatch import DispatchState

# of contracts.commit.Quarantined
QUARANTINE_REASONS = ("non_finite", "overflow", "all_zero", "constant", "out_of_memory", "kills_engine")
_RUN_LABELS = ("run", "model", "fingerprint", "compute_dtype", "stored_dtype", "taps")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerMetrics:
    """Every series the producer exports. Declared here, nowhere else.

    All are gauges read from plan, ledger and queue, so a restarted producer shows the same values.
    """

    samples_planned: Gauge
    samples_committed: Gauge
    samples_quarantined: Gauge
    rows_rejected: Gauge
    rows_merged: Gauge
    tokens_planned: Gauge
    tokens_committed: Gauge
    shards_planned: Gauge
    shards_committed: Gauge
    shards_stuck: Gauge
    bytes_planned: Gauge
    bytes_committed: Gauge
    queue_shards: Gauge
    queue_bytes: Gauge
    shards_in_work: Gauge
    redeliveries: Gauge
    last_commit: Gauge
    is_redis_reachable: Gauge
    oldest_job_age: Gauge
    workers: Gauge
    workers_live: Gauge
    shards_to_do: Gauge
    is_complete: Gauge
    rows_read: Gauge
    token_slots_planned: Gauge
    redis_memory_used: Gauge
    redis_memory_limit: Gauge
    disk_free: Gauge
    disk_total: Gauge
    disk_reserve: Gauge
    tap_rms: Gauge
    tap_mean: Gauge
    tap_largest: Gauge
    run_info: Gauge
    build_info: Gauge

    @classmethod
    def in_registry(cls, registry: CollectorRegistry) -> ProducerMetrics:
        """Declare the series in *registry*."""

        def gauge(name: str, about: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"hiddenstream_producer_{name}", about, labels, registry=registry)

        made = cls(
            samples_planned=gauge("samples_planned", "Samples in the plan."),
            samples_committed=gauge("samples_committed", "Samples durably stored."),
            samples_quarantined=gauge("samples_quarantined", "Planned samples left out, by reason.", ("reason",)),
            rows_rejected=gauge("rows_rejected", "Input rows rejected at planning, by reason.", ("reason",)),
            rows_merged=gauge("rows_merged", "Input rows that repeat another row."),
            tokens_planned=gauge("tokens_planned", "Tokens in the plan."),
            tokens_committed=gauge("tokens_committed", "Tokens durably stored."),
            shards_planned=gauge("shards_planned", "Shards in the plan."),
            shards_committed=gauge("shards_committed", "Shards durably stored."),
            shards_stuck=gauge("shards_stuck", "Shards given up on, since their deliveries kept failing."),
            bytes_planned=gauge("state_bytes_planned", "Bytes of states in the plan."),
            bytes_committed=gauge("shard_bytes_committed", "Bytes of shard files durably stored."),
            queue_shards=gauge("queue_depth_shards", "Shards waiting on the queue."),
            queue_bytes=gauge("queue_depth_bytes", "Bytes of jobs waiting on the queue."),
            shards_in_work=gauge("shards_in_work", "Shards in workers' hands, by their leases."),
            redeliveries=gauge("redeliveries", "Deliveries beyond the first, since this producer started."),
            last_commit=gauge("last_commit_timestamp_seconds", "Unix time of the newest commit; 0 before the first."),
            is_redis_reachable=gauge("is_redis_reachable", "1 while Redis answers; no number before it was asked."),
            oldest_job_age=gauge(
                "oldest_job_age_seconds",
                "Since the shard that waits longest was first seen on the queue; 0 when none waits.",
            ),
            workers=gauge("workers", "Workers that report themselves, by state.", ("state",)),
            workers_live=gauge("workers_live", "Workers that report themselves."),
            shards_to_do=gauge("shards_to_do", "Shards planned and not committed."),
            is_complete=gauge("is_complete", "1 when every shard is committed."),
            rows_read=gauge("rows_read", "Rows read while planning; 0 once a plan was there."),
            token_slots_planned=gauge("token_slots_planned", "Token slots of all forward batches, padding included."),
            redis_memory_used=gauge("redis_memory_used_bytes", "Memory that Redis uses."),
            redis_memory_limit=gauge("redis_memory_limit_bytes", "Redis' maxmemory; 0 is no limit."),
            disk_free=gauge("disk_free_bytes", "Free space of the run directory's disk, reserve included."),
            disk_total=gauge("disk_total_bytes", "Size of the run directory's disk."),
            disk_reserve=gauge("disk_reserve_bytes", "Free bytes below which no new shards are delivered."),
            tap_rms=gauge("tap_rms", "Root mean square of all committed states, by tap.", ("tap",)),
            tap_mean=gauge("tap_mean", "Mean of all committed states, by tap.", ("tap",)),
            tap_largest=gauge("tap_largest", "Largest magnitude in all committed states, by tap.", ("tap",)),
            run_info=gauge("run_info", "Always 1; the labels name the run.", _RUN_LABELS),
            build_info=gauge("build_info", "Always 1; the labels name the program.", ("version", "python")),
        )
        made.build_info.labels(version=program_version(), python=platform.python_version()).set(1)
        for reason in QUARANTINE_REASONS:
            made.samples_quarantined.labels(reason=reason)  # so that each series exists before its first sample
        made.is_redis_reachable.set(math.nan)
        made.show_workers({})
        return made

    def watch_disk(self, folder: Path, reserve_bytes: int) -> None:
        """Look at the run directory's disk whenever its series are asked for."""

        def look() -> DiskStatus:
            nothing = DiskStatus(free_bytes=0, total_bytes=0, reserve_bytes=0, to_come_bytes=0)
            return look_at_disk(folder, reserve_bytes) or nothing

        self.disk_free.set_function(lambda: look().free_bytes)
        self.disk_total.set_function(lambda: look().total_bytes)
        self.disk_reserve.set(reserve_bytes)

    def show_plan(self, record: RunRecord) -> None:
        """Set what the plan fixes."""
        self.samples_planned.set(record.samples)
        self.tokens_planned.set(record.tokens)
        self.token_slots_planned.set(record.token_slots)
        self.shards_planned.set(record.shards)
        self.bytes_planned.set(record.tokens * record.identity.bytes_per_token)
        self.rows_merged.set(record.merged)
        for reason, rows in record.rejected.items():
            self.rows_rejected.labels(reason).set(rows)
        identity = record.identity
        self.run_info.labels(
            run=record.run,
            model=record.model,
            fingerprint=identity.fingerprint,
            compute_dtype=identity.compute_dtype,
            stored_dtype=identity.stored_dtype,
            taps=",".join(identity.taps),
        ).set(1)

    def show_commits(self, record: RunRecord, totals: LedgerTotals) -> None:
        """Set what the ledger says."""
        committed, quarantined, last_commit = totals.counts()
        self.shards_committed.set(committed.shards)
        self.samples_committed.set(committed.samples)
        self.tokens_committed.set(committed.tokens)
        self.bytes_committed.set(committed.bytes)
        self.shards_to_do.set(record.shards - committed.shards)
        self.is_complete.set(committed.shards >= record.shards)
        self.last_commit.set(last_commit or 0)
        described = totals.statistics()
        for tap in record.identity.taps:
            statistics = described.get(tap)
            if statistics is None:
                continue
            self.tap_rms.labels(tap=tap).set(statistics.rms)
            self.tap_mean.labels(tap=tap).set(statistics.mean)
            self.tap_largest.labels(tap=tap).set(statistics.largest)
        for reason in {*QUARANTINE_REASONS, *quarantined}:
            self.samples_quarantined.labels(reason=reason).set(quarantined.get(reason, 0))

    def show_queue(self, state: DispatchState) -> None:
        """Set what a round of the dispatcher saw."""
        self.queue_shards.set(state.queued)
        self.queue_bytes.set(state.queued_bytes)
        self.oldest_job_age.set(state.oldest_seconds)
        self.shards_in_work.set(state.in_work)
        self.redeliveries.set(state.redelivered)
        self.shards_stuck.set(len(state.stuck))

    def show_redis(self, used_bytes: int, limit_bytes: int) -> None:
        """Set Redis' memory: it answers."""
        self.is_redis_reachable.set(1)
        self.redis_memory_used.set(used_bytes)
        self.redis_memory_limit.set(limit_bytes)

    def show_workers(self, by_state: Mapping[str, int]) -> None:
        """Set how many workers report each state."""
        for state in WORKER_STATES:
            self.workers.labels(state=state).set(by_state.get(state, 0))
        self.workers_live.set(sum(by_state.values()))
