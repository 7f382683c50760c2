"""Every series of the producer."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge

from hiddenstream.contracts.run import RunRecord
from hiddenstream.run_directory.ledger import LedgerReader
from producer.dispatch import DispatchState


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

    @classmethod
    def in_registry(cls, registry: CollectorRegistry) -> ProducerMetrics:
        """Declare the series in *registry*."""

        def gauge(name: str, about: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"hiddenstream_producer_{name}", about, labels, registry=registry)

        return cls(
            samples_planned=gauge("samples_planned", "Samples in the plan."),
            samples_committed=gauge("samples_committed", "Samples durably stored."),
            samples_quarantined=gauge("samples_quarantined", "Planned samples left out with a reason."),
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
            last_commit=gauge("last_commit_timestamp_seconds", "Unix time at which a new commit was last seen."),
            is_redis_reachable=gauge("is_redis_reachable", "1 while Redis answers."),
        )

    def show_plan(self, record: RunRecord) -> None:
        """Set what the plan fixes."""
        self.samples_planned.set(record.samples)
        self.tokens_planned.set(record.tokens)
        self.shards_planned.set(record.shards)
        self.bytes_planned.set(record.tokens * record.identity.bytes_per_token)
        self.rows_merged.set(record.merged)
        for reason, rows in record.rejected.items():
            self.rows_rejected.labels(reason).set(rows)

    def show_commits(self, ledger: LedgerReader) -> None:
        """Set what the ledger says."""
        commits = ledger.commits.values()
        if len(commits) != self.shards_committed._value.get():
            self.last_commit.set_to_current_time()
        self.shards_committed.set(len(commits))
        self.samples_committed.set(sum(commit.samples for commit in commits))
        self.samples_quarantined.set(sum(len(commit.quarantined) for commit in commits))
        self.tokens_committed.set(sum(commit.tokens for commit in commits))
        self.bytes_committed.set(sum(commit.file_bytes for commit in commits))

    def show_queue(self, state: DispatchState) -> None:
        """Set what a round of the dispatcher saw."""
        self.is_redis_reachable.set(1)
        self.queue_shards.set(state.queued)
        self.queue_bytes.set(state.queued_bytes)
        self.shards_in_work.set(state.in_work)
        self.redeliveries.set(state.redelivered)
        self.shards_stuck.set(len(state.stuck))
