"""Every series of the worker. Served by the supervisor, so that counts outlive an engine."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpu_worker.facts import OUTCOMES, ShardExtracted

_STAGES = ("wait", "forward", "copy", "check", "hash", "upload")
_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetrics:
    """Every series the worker exports. Declared here, nowhere else."""

    shards: Counter
    samples: Counter
    tokens: Counter
    token_slots: Counter
    sent_bytes: Counter
    quarantined: Counter
    out_of_memory_splits: Counter
    stage_seconds: Histogram
    upload_attempts: Counter
    batches: Counter
    engine_starts: Counter
    engine_deaths: Counter
    is_ready: Gauge
    shards_in_hand: Gauge
    last_progress: Gauge

    @classmethod
    def in_registry(cls, registry: CollectorRegistry) -> WorkerMetrics:
        """Declare the series in *registry*."""

        def counter(name: str, about: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"hiddenstream_worker_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(f"hiddenstream_worker_{name}", about, registry=registry)

        metrics = cls(
            shards=counter("deliveries_total", "Deliveries of shards, by how they ended.", ("outcome",)),
            samples=counter("samples_total", "Samples in shards that this worker committed."),
            tokens=counter("tokens_total", "Real tokens in shards that this worker committed."),
            token_slots=counter("token_slots_total", "Token slots computed, padding included."),
            sent_bytes=counter("sent_bytes_total", "Bytes of shard files that the sink accepted."),
            quarantined=counter("samples_quarantined_total", "Samples left out with a reason."),
            out_of_memory_splits=counter("out_of_memory_splits_total", "Forward batches split for lack of memory."),
            stage_seconds=Histogram(
                "hiddenstream_worker_stage_seconds",
                "Time of one shard in each stage.",
                ("stage",),
                buckets=_BUCKETS,
                registry=registry,
            ),
            upload_attempts=counter("upload_attempts_total", "Attempts to send a shard."),
            batches=counter("batches_total", "Forward batches done."),
            engine_starts=counter("engine_starts_total", "Engine processes started; each loads the model once."),
            engine_deaths=counter("engine_deaths_total", "Engine processes that ended unasked."),
            is_ready=gauge("is_ready", "1 while an engine has its model loaded."),
            shards_in_hand=gauge("shards_in_hand", "Shards taken from the queue and not answered yet."),
            last_progress=gauge(
                "last_progress_timestamp_seconds", "Unix time of the last forward batch or answered delivery."
            ),
        )
        for outcome in OUTCOMES:
            metrics.shards.labels(outcome)
        for stage in _STAGES:
            metrics.stage_seconds.labels(stage)
        return metrics

    def count(self, facts: ShardExtracted) -> None:
        """Count one delivery."""
        self.shards.labels(facts.outcome).inc()
        self.token_slots.inc(facts.token_slots)
        self.upload_attempts.inc(facts.upload_attempts)
        self.out_of_memory_splits.inc(facts.out_of_memory_splits)
        if facts.outcome not in ("committed", "duplicate"):
            return
        for stage in _STAGES:
            self.stage_seconds.labels(stage).observe(getattr(facts, f"{stage}_seconds"))
        if facts.outcome == "committed":
            self.samples.inc(facts.samples)
            self.tokens.inc(facts.tokens)
            self.sent_bytes.inc(facts.file_bytes)
            self.quarantined.inc(facts.quarantined)
