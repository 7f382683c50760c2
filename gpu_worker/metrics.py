"""Every series of the worker. Served by the supervisor, so that counts outlive an engine."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpu_worker.facts import GATE_TESTS, GATE_VERDICTS, OUTCOMES, BatchDone, ModelReady, ShardExtracted
from hiddenstream.chassis.version import program_version
from hiddenstream.contracts.statistics import statistics_from_wire
from hiddenstream.contracts.worker_report import ACTIVITIES, BOTTLENECKS, WAYS, WORKER_STATES, GpuReport

_STAGES = ("wait", "forward", "copy", "check", "hash", "upload", "send", "answer")
_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetrics:
    """Every series the worker exports. Declared here, nowhere else."""

    shards: Counter
    samples: Counter
    tokens: Counter
    token_slots: Counter
    computed_tokens: Counter
    sent_bytes: Counter
    quarantined: Counter
    out_of_memory_splits: Counter
    overflowed_values: Counter
    stage_seconds: Histogram
    upload_attempts: Counter
    batches: Counter
    engine_starts: Counter
    engine_deaths: Counter
    is_ready: Gauge
    shards_in_hand: Gauge
    last_progress: Gauge
    activity_seconds: Counter
    bottleneck: Gauge
    state: Gauge
    exactness_gate: Gauge
    batching_way: Gauge
    exactness_difference: Gauge
    tap_rms: Gauge
    tap_mean: Gauge
    tap_largest: Gauge
    model_load_seconds: Gauge
    model_warm_seconds: Gauge
    gpus_claimed: Gauge
    gpu_info: Gauge
    gpu_memory_used: Gauge
    gpu_memory_total: Gauge
    gpu_utilization: Gauge
    gpu_power: Gauge
    gpu_temperature: Gauge
    gpu_memory_allocated: Gauge
    gpu_memory_reserved: Gauge
    build_info: Gauge

    @classmethod
    def in_registry(cls, registry: CollectorRegistry) -> WorkerMetrics:
        """Declare the series in *registry*."""

        def counter(name: str, about: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"hiddenstream_worker_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"hiddenstream_worker_{name}", about, labels, registry=registry)

        metrics = cls(
            shards=counter("deliveries_total", "Deliveries of shards, by how they ended.", ("outcome",)),
            samples=counter("samples_total", "Samples in shards that this worker committed."),
            tokens=counter("tokens_total", "Real tokens in shards that this worker committed."),
            token_slots=counter("token_slots_total", "Token slots computed, padding included."),
            computed_tokens=counter(
                "computed_tokens_total", "Real tokens computed, as token_slots_total counts slots."
            ),
            sent_bytes=counter("sent_bytes_total", "Bytes of shard files that the sink accepted."),
            quarantined=counter("samples_quarantined_total", "Samples left out with a reason."),
            out_of_memory_splits=counter("out_of_memory_splits_total", "Forward batches split for lack of memory."),
            overflowed_values=counter(
                "overflowed_values_total", "Values, in samples left out for it, that the stored dtype cannot hold."
            ),
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
            activity_seconds=counter(
                "activity_seconds_total",
                "What the engine's main thread spends its time at, one thing at a time.",
                ("activity",),
            ),
            bottleneck=gauge("bottleneck", "1 for what held this worker back in the last minute.", ("resource",)),
            state=gauge("state", "1 for what this worker is at.", ("state",)),
            exactness_gate=gauge(
                "exactness_gate",
                "1 for what the last engine's check of batches against single samples said.",
                ("verdict",),
            ),
            batching_way=gauge("batching_way", "1 for how the last engine batches samples.", ("way",)),
            exactness_difference=gauge(
                "exactness_difference", "Largest relative difference that the last engine's check found.", ("test",)
            ),
            tap_rms=gauge("tap_rms", "Root mean square of the last shard's states, by tap.", ("tap",)),
            tap_mean=gauge("tap_mean", "Mean of the last shard's states, by tap.", ("tap",)),
            tap_largest=gauge("tap_largest", "Largest magnitude in the last shard's states, by tap.", ("tap",)),
            model_load_seconds=gauge("model_load_seconds", "Time in which the last engine read the model's weights."),
            model_warm_seconds=gauge("model_warm_seconds", "Time of the last engine's first forward passes."),
            gpus_claimed=gauge("gpus_claimed", "GPUs that this worker has claimed."),
            gpu_info=gauge(
                "gpu_info", "1 for each claimed GPU; gpu is its place in this worker.", ("gpu", "uuid", "name")
            ),
            gpu_memory_used=gauge("gpu_memory_used_bytes", "Memory in use on the GPU, by whomever.", ("gpu",)),
            gpu_memory_total=gauge("gpu_memory_total_bytes", "Memory of the GPU.", ("gpu",)),
            gpu_utilization=gauge("gpu_utilization_ratio", "Share of the time in which a kernel ran.", ("gpu",)),
            gpu_power=gauge("gpu_power_watts", "Power that the GPU draws.", ("gpu",)),
            gpu_temperature=gauge("gpu_temperature_celsius", "Temperature of the GPU.", ("gpu",)),
            gpu_memory_allocated=gauge(
                "gpu_memory_allocated_bytes", "Memory in the engine's tensors, on all its GPUs."
            ),
            gpu_memory_reserved=gauge(
                "gpu_memory_reserved_bytes", "Memory that the engine's allocator keeps, likewise."
            ),
            build_info=gauge(
                "build_info", "1, with versions; torch is the last engine's.", ("version", "python", "torch")
            ),
        )
        for outcome in OUTCOMES:
            metrics.shards.labels(outcome)
        for stage in _STAGES:
            metrics.stage_seconds.labels(stage)
        for activity in ACTIVITIES:
            metrics.activity_seconds.labels(activity)
        metrics.show_state("waiting_for_sink")
        metrics.show_bottleneck("none")
        metrics.show_gate("not_run")
        metrics.show_build(torch="")
        return metrics

    def show_state(self, state: str) -> None:
        """Show the one state that holds."""
        _show_one(self.state, WORKER_STATES, state)

    def show_bottleneck(self, resource: str) -> None:
        """Show the one resource that holds the worker back."""
        _show_one(self.bottleneck, BOTTLENECKS, resource)

    def show_gate(self, verdict: str) -> None:
        """Show the exactness gate's verdict."""
        _show_one(self.exactness_gate, GATE_VERDICTS, verdict)

    def show_build(self, *, torch: str) -> None:
        """Show what this worker is made of."""
        self.build_info.clear()
        self.build_info.labels(program_version(), platform.python_version(), torch).set(1)

    def show_model(self, ready: ModelReady) -> None:
        """Show an engine's model."""
        self.show_gate(ready.gate)
        _show_one(self.batching_way, WAYS, ready.way)
        for test in GATE_TESTS:
            self.exactness_difference.labels(test).set(ready.gate_differences.get(test, math.nan))
        self.show_build(torch=ready.torch)
        self.model_load_seconds.set(ready.load_seconds)
        self.model_warm_seconds.set(ready.warm_seconds)

    def show_gpus(self, gpus: tuple[GpuReport, ...]) -> None:
        """Show how the claimed GPUs do; what the driver does not say is not a number."""
        self.gpus_claimed.set(len(gpus))
        figures = {
            self.gpu_memory_used: "memory_used_bytes",
            self.gpu_memory_total: "memory_total_bytes",
            self.gpu_utilization: "utilization",
            self.gpu_power: "power_watts",
            self.gpu_temperature: "temperature_celsius",
        }
        if not gpus:
            for gauge in (self.gpu_info, *figures):
                gauge.clear()
        for place, gpu in enumerate(gpus):
            self.gpu_info.labels(str(place), gpu.uuid, gpu.name).set(1)
            for gauge, field in figures.items():
                value = getattr(gpu, field)
                gauge.labels(str(place)).set(math.nan if value is None else value)

    def add_activity(self, more_seconds: Mapping[str, float]) -> None:
        """Count time."""
        for activity, seconds in more_seconds.items():
            self.activity_seconds.labels(activity).inc(seconds)

    def count_batch(self, batch: BatchDone) -> None:
        """Count one forward batch."""
        self.batches.inc()
        self.computed_tokens.inc(batch.tokens)
        self.token_slots.inc(batch.token_slots)
        self.gpu_memory_allocated.set(batch.allocated_bytes)
        self.gpu_memory_reserved.set(batch.reserved_bytes)

    def count(self, facts: ShardExtracted) -> None:
        """Count one delivery."""
        self.shards.labels(facts.outcome).inc()
        self.upload_attempts.inc(facts.upload_attempts)
        self.out_of_memory_splits.inc(facts.out_of_memory_splits)
        if facts.outcome not in ("committed", "duplicate"):
            return
        for tap, statistics in statistics_from_wire(facts.statistics).items():
            self.tap_rms.labels(tap).set(statistics.rms)
            self.tap_mean.labels(tap).set(statistics.mean)
            self.tap_largest.labels(tap).set(statistics.largest)
        for stage in _STAGES:
            self.stage_seconds.labels(stage).observe(getattr(facts, f"{stage}_seconds"))
        if facts.outcome == "committed":
            self.samples.inc(facts.samples)
            self.tokens.inc(facts.tokens)
            self.sent_bytes.inc(facts.file_bytes)
            self.quarantined.inc(facts.quarantined)
            self.overflowed_values.inc(facts.overflowed_values)


def _show_one(gauge: Gauge, names: tuple[str, ...], chosen: str) -> None:
    for name in names:
        gauge.labels(name).set(name == chosen)
