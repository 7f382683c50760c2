"""A run that never was: half an hour of four workers, with what goes wrong in real ones.

Minute 1: the model is loaded. Minute 14: worker 3 is killed, and comes back at another address in minute 16. Minute 19:
an engine of worker 2 dies. Minutes 22 to 25: the disk is slow. Now and then a sample is quarantined.
"""

from __future__ import annotations

import random

from hiddenstream.contracts.worker_report import ACTIVITIES, BOTTLENECKS, WAYS, WORKER_STATES
from tests.monitoring.made_services import MadeService

STEP_SECONDS = 5
WORKERS = 4
SHARD_TOKENS, SAMPLE_TOKENS, BYTES_PER_TOKEN = 26_000, 1_200, 40_960
SHARDS_PLANNED = 3_654
DISK_BYTES = 7.68e12
TAPS = ("2", "10", "18", "26", "33")
KILLED, BACK, ENGINE_DIES, SLOW_FROM, SLOW_TO = 840, 960, 1140, 1320, 1500
USUAL = dict(zip(ACTIVITIES, (0.86, 0.03, 0.02, 0.04, 0.02, 0.0, 0.01, 0.02), strict=True))
SLOW = dict(zip(ACTIVITIES, (0.58, 0.03, 0.02, 0.03, 0.30, 0.02, 0.0, 0.02), strict=True))
LOADING = dict.fromkeys(ACTIVITIES, 0.0)


class MadeRun:
    """The services of the made run, and what they have done so far.

    Attributes:
        seconds: since the run's start.
        services: those that answer now.
    """

    def __init__(self) -> None:
        self.seconds = 0
        self._random = random.Random(7)
        self._stored = self._tokens = self._queued_bytes = 0
        self._under_way = [0.0] * WORKERS
        self._loaded_at = [60] * WORKERS
        self._producer, self._sink = MadeService("producer", "10.0.0.2:9100"), MadeService("sink", "10.0.0.3:9100")
        self._workers: list[MadeService | None] = [
            MadeService("gpu_worker", f"10.0.0.{11 + place}:9100") for place in range(WORKERS)
        ]
        self._quarantined = self._redelivered = 0
        self._plan()
        for worker in self._live():
            self._begin(worker)

    @property
    def services(self) -> list[MadeService]:
        return [self._producer, self._sink, *self._live()]

    def step(self, now: float) -> None:
        """Let five seconds pass, at the end of which it is *now*, in Unix time."""
        self.seconds += STEP_SECONDS
        self._suffer()
        for place, worker in enumerate(self._workers):
            if worker is not None:
                self._work(place, worker, now)
        self._show_producer(now)
        self._show_sink()

    def _live(self) -> list[MadeService]:
        return [worker for worker in self._workers if worker is not None]

    def _plan(self) -> None:
        tokens = SHARDS_PLANNED * SHARD_TOKENS
        for service in (self._producer, self._sink):
            service.show("shards_planned", SHARDS_PLANNED)
            service.show("tokens_planned", tokens)
            service.show("samples_planned", tokens // SAMPLE_TOKENS)
        producer = self._producer
        producer.show("state_bytes_planned", tokens * BYTES_PER_TOKEN)
        producer.show("token_slots_planned", tokens * 1.06)
        producer.show("rows_read", 81_340)
        producer.show("rows_merged", 12)
        producer.show("rows_rejected", 41, reason="over_long")
        producer.show("rows_rejected", 7, reason="malformed_messages")
        run = {"run": "conversations", "model": "Qwen/Qwen3.5-9B", "fingerprint": "9f3c61e0a7d24b18"}
        run |= {"compute_dtype": "bfloat16", "stored_dtype": "bfloat16", "taps": ",".join(TAPS)}
        producer.show("run_info", 1, **run)
        producer.show("build_info", 1, version="0.1.0", python="3.12.8")
        self._sink.show("build_info", 1, version="0.1.0", python="3.12.8")

    def _begin(self, worker: MadeService) -> None:
        """Show what a worker knows at its start."""
        gpu = worker.instance.split(".")[3].split(":")[0]
        worker.add("engine_starts_total", 1)
        worker.show("gpus_claimed", 1)
        worker.show("gpu_info", 1, gpu="0", uuid=f"GPU-5c0e{gpu}-71d2", name="NVIDIA H200")
        worker.show("gpu_memory_total_bytes", 150_754_820_096, gpu="0")
        worker.show_one("exactness_gate", "verdict", ("not_run", "passed", "failed"), "not_run")
        worker.show("build_info", 1, version="0.1.0", python="3.12.8", torch="2.13.0+cu130")

    def _suffer(self) -> None:
        """Let go wrong what goes wrong now."""
        if self.seconds == KILLED:
            self._workers[3] = None
        if self.seconds == KILLED + 15:
            self._redelivered += 2
            self._sink.add("shards_duplicate_total", 1)
            self._sink.add("uploads_aborted_total", 1)
        if self.seconds == BACK:
            self._workers[3] = back = MadeService("gpu_worker", "10.0.0.17:9100")
            self._loaded_at[3] = BACK + 40
            self._begin(back)
            self._sink.add("refusals_total", 3, reason="not_ready")
        if self.seconds == ENGINE_DIES and (dying := self._workers[2]) is not None:
            dying.add("engine_deaths_total", 1)
            dying.add("engine_starts_total", 1)
            dying.add("deliveries_total", 1, outcome="failed")
            self._loaded_at[2] = ENGINE_DIES + 35
            self._redelivered += 1
        if self.seconds in (420, 1035):
            self._quarantined += 1

    def _is_slow(self) -> bool:
        return SLOW_FROM <= self.seconds < SLOW_TO

    def _work(self, place: int, worker: MadeService, now: float) -> None:
        is_loading = self.seconds <= self._loaded_at[place]
        shares = LOADING if is_loading else SLOW if self._is_slow() else USUAL
        noise = self._random.uniform(0.97, 1.03)
        tokens = 9_300 * STEP_SECONDS * noise * shares["forward"] / USUAL["forward"]
        for activity in ACTIVITIES:
            worker.add("activity_seconds_total", shares[activity] * STEP_SECONDS, activity=activity)
        worker.add("computed_tokens_total", tokens)
        worker.add("token_slots_total", tokens / self._random.uniform(0.91, 0.95))
        worker.add("batches_total", round(tokens / 11_000))
        if self._random.random() < 0.02:
            worker.add("out_of_memory_splits_total", 1)
        self._show_worker(worker, is_loading, shares["forward"] * noise)
        self._under_way[place] += tokens
        while self._under_way[place] > SHARD_TOKENS:
            self._under_way[place] -= SHARD_TOKENS
            self._store(worker)
        if not is_loading:
            worker.show("last_progress_timestamp_seconds", now)

    def _show_worker(self, worker: MadeService, is_loading: bool, busy: float) -> None:
        bottleneck = "none" if is_loading else "sink" if self._is_slow() else "gpu"
        worker.show_one("state", "state", WORKER_STATES, "loading" if is_loading else "working")
        worker.show_one("bottleneck", "resource", BOTTLENECKS, bottleneck)
        worker.show("is_ready", not is_loading)
        worker.show("shards_in_hand", 0 if is_loading else 2)
        worker.show("gpu_memory_used_bytes", 12e9 if is_loading else 118e9 + 4e9 * busy, gpu="0")
        worker.show("gpu_memory_allocated_bytes", 9e9 if is_loading else 92e9 + 5e9 * busy)
        worker.show("gpu_memory_reserved_bytes", 10e9 if is_loading else 112e9)
        worker.show("gpu_utilization_ratio", min(1.0, busy * 1.08), gpu="0")
        worker.show("gpu_power_watts", 120 + 580 * busy, gpu="0")
        worker.show("gpu_temperature_celsius", 38 + 32 * busy, gpu="0")
        if not is_loading:
            worker.show_one("exactness_gate", "verdict", ("not_run", "passed", "failed"), "passed")
            worker.show_one("batching_way", "way", WAYS, "packed")
            for test, difference in (("blocks", 3.1e-3), ("swap", 0.0), ("reference", 8e-3)):
                worker.show("exactness_difference", difference, test=test)
            worker.add("overflowed_values_total", 0)
            worker.show("model_load_seconds", 31.4)
            worker.show("model_warm_seconds", 4.2)

    def _store(self, worker: MadeService) -> None:
        """Send one shard through worker and sink."""
        random_share, size = self._random.uniform, SHARD_TOKENS * BYTES_PER_TOKEN
        fsync = random_share(0.4, 1.6) if self._is_slow() else random_share(0.03, 0.15)
        stages = {
            "forward": 2.4,
            "copy": 0.3,
            "check": 0.05,
            "hash": 0.11,
            "wait": fsync / 2,
            "send": 0.5,
            "answer": fsync,
        }
        for stage, seconds in stages.items():
            worker.observe("stage_seconds", seconds * random_share(0.8, 1.2), stage=stage)
        worker.observe("stage_seconds", stages["send"] + stages["answer"], stage="upload")
        for tap, rms in zip(TAPS, (0.9, 1.7, 2.6, 4.1, 6.8), strict=True):
            worker.show("tap_rms", rms * random_share(0.98, 1.02), tap=tap)
            worker.show("tap_mean", 0.01 * rms * random_share(0.9, 1.1), tap=tap)
            worker.show("tap_largest", 40 * rms * random_share(0.9, 1.1), tap=tap)
        worker.add("deliveries_total", 1, outcome="committed")
        for name, amount in (
            ("tokens", SHARD_TOKENS),
            ("samples", SHARD_TOKENS // SAMPLE_TOKENS),
            ("sent_bytes", size),
        ):
            worker.add(f"{name}_total", amount)
        self._sink.add("shards_committed_total", 1)
        self._sink.add("bytes_written_total", size)
        self._sink.add("tokens_committed_total", SHARD_TOKENS)
        self._sink.add("samples_committed_total", SHARD_TOKENS // SAMPLE_TOKENS)
        self._sink.observe("receive_seconds", random_share(0.35, 0.7))
        self._sink.observe("fsync_seconds", fsync)
        self._sink.observe("commit_seconds", random_share(0.002, 0.02) * (8 if self._is_slow() else 1))
        self._stored += 1

    def _show_states_of_run(self) -> None:
        for tap, rms in zip(TAPS, (0.9, 1.7, 2.6, 4.1, 6.8), strict=True):
            for name, value in (("rms", rms), ("mean", 0.01 * rms), ("largest", 44 * rms)):
                self._producer.show(f"tap_{name}", value, tap=tap)

    def _show_producer(self, now: float) -> None:
        self._show_states_of_run()
        show, live = self._producer.show, self._live()
        loading = sum(self.seconds <= self._loaded_at[place] for place, one in enumerate(self._workers) if one)
        if self._stored:
            show("last_commit_timestamp_seconds", now)
        show("shards_committed", self._stored)
        show("shards_to_do", SHARDS_PLANNED - self._stored)
        show("tokens_committed", self._stored * SHARD_TOKENS)
        show("samples_committed", self._stored * (SHARD_TOKENS // SAMPLE_TOKENS))
        show("shard_bytes_committed", self._stored * SHARD_TOKENS * BYTES_PER_TOKEN)
        show("samples_quarantined", self._quarantined, reason="non_finite")
        show("queue_depth_shards", waiting := self._random.randint(560, 590))
        show("queue_depth_bytes", waiting * 112_000)
        show("oldest_job_age_seconds", 35 + self.seconds % 60 if loading == len(live) else 330 + waiting / 30)
        show("shards_in_work", 2 * (len(live) - loading))
        show("redeliveries", self._redelivered)
        show("shards_stuck", 0)
        show("is_redis_reachable", 1)
        show("is_complete", 0)
        for state in WORKER_STATES:
            show("workers", {"loading": loading, "working": len(live) - loading}.get(state, 0), state=state)
        show("workers_live", len(live))
        show("redis_memory_used_bytes", 3e6 + waiting * 118_000)
        show("redis_memory_limit_bytes", 256 * 1024**2)
        self._show_disk(self._producer)

    def _show_sink(self) -> None:
        self._sink.show("uploads_in_flight", self._random.choice((4, 5, 6) if self._is_slow() else (1, 2, 2, 3)))
        self._sink.show("connections", 2 * len(self._live()))
        self._sink.show("run_shards_committed", self._stored)
        self._sink.show("run_tokens_committed", self._stored * SHARD_TOKENS)
        self._sink.show("run_samples_quarantined", self._quarantined)
        self._show_disk(self._sink)

    def _show_disk(self, service: MadeService) -> None:
        service.show("disk_free_bytes", 5.2e12 - self._stored * SHARD_TOKENS * BYTES_PER_TOKEN)
        service.show("disk_total_bytes", DISK_BYTES)
        service.show("disk_reserve_bytes", 100e9)
