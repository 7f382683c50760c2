"""Every series that the sink exports, and the facts that they and the log are fed from."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hiddenstream.chassis.version import program_version
from hiddenstream.contracts.commit import CommitLine
from hiddenstream.contracts.sink_api import SHARD_REFUSALS
from sink.disk import DiskSpace
from sink.served_run import Progress

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCommitted:
    """What storing one shard did. Logged and counted from this object, so the two cannot disagree.

    Attributes:
        receive_seconds: from the first byte of the body to the last, checks included.
        fsync_seconds: making the file durable.
        commit_seconds: giving it its name and writing the ledger line.
    """

    shard: int
    delivery: str
    worker: str
    file_bytes: int
    tokens: int
    samples: int
    quarantined: int
    receive_seconds: float
    fsync_seconds: float
    commit_seconds: float

    @classmethod
    def of(cls, line: CommitLine, *, commit_seconds: float) -> ShardCommitted:
        """Return the facts of a ledger line that was just written."""
        return cls(
            shard=line.shard,
            delivery=line.delivery,
            worker=str(line.made_by.get("worker")),
            file_bytes=line.file_bytes,
            tokens=line.tokens,
            samples=line.samples,
            quarantined=len(line.quarantined),
            receive_seconds=line.receive_seconds,
            fsync_seconds=line.fsync_seconds,
            commit_seconds=round(commit_seconds, 6),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMetrics:
    """Every series the sink exports. Declared here, nowhere else."""

    shards_committed: Counter
    shards_duplicate: Counter
    shards_recovered: Counter
    refusals: Counter
    uploads_aborted: Counter
    bytes_written: Counter
    tokens_committed: Counter
    samples_committed: Counter
    samples_quarantined: Counter
    receive_seconds: Histogram
    fsync_seconds: Histogram
    commit_seconds: Histogram
    connections: Gauge
    uploads_in_flight: Gauge
    disk_free_bytes: Gauge
    disk_total_bytes: Gauge
    disk_reserve_bytes: Gauge
    shards_planned: Gauge
    samples_planned: Gauge
    tokens_planned: Gauge
    run_shards_committed: Gauge
    run_samples_committed: Gauge
    run_samples_quarantined: Gauge
    run_tokens_committed: Gauge
    build_info: Gauge

    @classmethod
    def in_registry(cls, registry: CollectorRegistry) -> SinkMetrics:
        """Declare all series."""

        def counter(name: str, means: str) -> Counter:
            return Counter(f"hiddenstream_sink_{name}_total", means, registry=registry)

        def gauge(name: str, means: str) -> Gauge:
            return Gauge(f"hiddenstream_sink_{name}", means, registry=registry)

        def histogram(name: str, means: str) -> Histogram:
            return Histogram(f"hiddenstream_sink_{name}", means, buckets=_SECONDS, registry=registry)

        refusals = Counter(
            "hiddenstream_sink_refusals_total", "Requests refused, by reason.", ["reason"], registry=registry
        )
        for reason in SHARD_REFUSALS:
            refusals.labels(reason=reason)  # so that each series exists before its first refusal
        build_info = Gauge(
            "hiddenstream_sink_build_info",
            "Always 1; the labels name the program.",
            ["version", "python"],
            registry=registry,
        )
        build_info.labels(version=program_version(), python=platform.python_version()).set(1)
        return cls(
            shards_committed=counter("shards_committed", "Shards this sink has stored durably."),
            shards_duplicate=counter("shards_duplicate", "Uploads of shards that were there already."),
            shards_recovered=counter("shards_recovered", "Shards found at start in no ledger, and brought into it."),
            refusals=refusals,
            uploads_aborted=counter("uploads_aborted", "Uploads whose client went away or fell silent."),
            bytes_written=counter("bytes_written", "Bytes of the shard files this sink has committed."),
            tokens_committed=counter("tokens_committed", "Tokens whose states this sink has committed."),
            samples_committed=counter("samples_committed", "Samples whose states this sink has committed."),
            samples_quarantined=counter("samples_quarantined", "Samples that committed shards leave out."),
            receive_seconds=histogram("receive_seconds", "Receiving one shard, checks included."),
            fsync_seconds=histogram("fsync_seconds", "Making one shard's file durable."),
            commit_seconds=histogram("commit_seconds", "Giving one shard its name and its ledger line."),
            connections=gauge("connections", "Open connections."),
            uploads_in_flight=gauge("uploads_in_flight", "Shards being received or made durable now."),
            disk_free_bytes=gauge("disk_free_bytes", "Free space of the run directory's disk, reserve included."),
            disk_total_bytes=gauge("disk_total_bytes", "Size of the run directory's disk."),
            disk_reserve_bytes=gauge("disk_reserve_bytes", "Free bytes that this sink never uses."),
            shards_planned=gauge("shards_planned", "Shards of the run."),
            samples_planned=gauge("samples_planned", "Samples of the run."),
            tokens_planned=gauge("tokens_planned", "Tokens of the run."),
            run_shards_committed=gauge("run_shards_committed", "Shards that all sinks have committed, ever."),
            run_samples_committed=gauge("run_samples_committed", "Samples that all sinks have committed, ever."),
            run_samples_quarantined=gauge(
                "run_samples_quarantined", "Samples that the run's shards leave out, so far."
            ),
            run_tokens_committed=gauge("run_tokens_committed", "Tokens that all sinks have committed, ever."),
            build_info=build_info,
        )

    def watch_disk(self, disk: DiskSpace, reserve_bytes: int) -> None:
        """Look at the disk whenever its series are asked for."""
        self.disk_free_bytes.set_function(disk.free_bytes)
        self.disk_total_bytes.set_function(disk.total_bytes)
        self.disk_reserve_bytes.set(reserve_bytes)
        self.uploads_in_flight.set_function(disk.claims)

    def count_commit(self, facts: ShardCommitted) -> None:
        """Count one stored shard."""
        self.shards_committed.inc()
        self.bytes_written.inc(facts.file_bytes)
        self.tokens_committed.inc(facts.tokens)
        self.samples_committed.inc(facts.samples)
        self.samples_quarantined.inc(facts.quarantined)
        self.receive_seconds.observe(facts.receive_seconds)
        self.fsync_seconds.observe(facts.fsync_seconds)
        self.commit_seconds.observe(facts.commit_seconds)

    def show_progress(self, progress: Progress) -> None:
        """Show how far the run is, over all sinks."""
        self.shards_planned.set(progress.shards_planned)
        self.samples_planned.set(progress.samples_planned)
        self.tokens_planned.set(progress.tokens_planned)
        self.run_shards_committed.set(progress.shards_committed)
        self.run_samples_committed.set(progress.samples_committed)
        self.run_samples_quarantined.set(progress.samples_quarantined)
        self.run_tokens_committed.set(progress.tokens_committed)
