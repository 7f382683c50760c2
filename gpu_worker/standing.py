"""What a worker is at, for people: kept from what its supervisor does and its engine says, shown in /metrics and Redis.

Decides nothing. Written by the supervisor's main thread and the one that reads messages, read by the report's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from gpu_worker.activity import ActivityAccount, LastMinute, bottleneck_of, shares_of
from gpu_worker.facts import BatchDone, ModelReady, ShardExtracted
from gpu_worker.log_lines import new_ring
from gpu_worker.messages import MAIN_THREAD
from gpu_worker.metrics import WorkerMetrics
from hiddenstream.contracts.worker_report import GpuReport, WorkerReport

_IDLE_SECONDS = 1.0  # a shorter wait for a job is the way from one to the next


class Standing:
    """One worker, as it stands now."""

    def __init__(self, worker: str, metrics: WorkerMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._worker, self._metrics, self._clock = worker, metrics, clock
        self._lock = threading.Lock()
        self._state, self._message, self._device = "waiting_for_sink", "", ""
        self._accounts: dict[str, ActivityAccount] = {MAIN_THREAD: ActivityAccount()}
        self._told_seconds: dict[str, float] = {}
        self._window = LastMinute()
        self._held: tuple[int, ...] = ()
        self._has_had_job = False
        self._shards = self._samples = self._tokens = self._failures = self._engine_deaths = 0
        self._allocated_bytes = self._reserved_bytes = 0
        self._lines = new_ring()

    @property
    def state(self) -> str:
        """One of WORKER_STATES, but never ``idle``, which is told from the engine's activity."""
        return self._state

    def now_is(self, state: str, message: str = "") -> None:
        """Note what the worker is at, and why it waits or refuses."""
        with self._lock:
            self._state, self._message = state, message
        self._metrics.show_state(state)

    def model_is_ready(self, ready: ModelReady) -> None:
        """Note that the engine can work; one that is told to stop meanwhile stays so."""
        if self._state == "loading":
            self.now_is("working")
        self._device = ready.device
        self._metrics.show_model(ready)

    def engine_is_at(self, thread: str, activity: str, at: float) -> None:
        """Note what a thread of the engine is at."""
        with self._lock:
            self._accounts.setdefault(thread, ActivityAccount()).enter(activity, at)

    def engine_has_ended(self, *, is_death: bool) -> None:
        """Note that there is no engine any more."""
        with self._lock:
            self._engine_deaths += is_death
            self._allocated_bytes = self._reserved_bytes = 0
            for account in self._accounts.values():
                account.enter(None, self._clock())
        self._metrics.gpu_memory_allocated.set(0)
        self._metrics.gpu_memory_reserved.set(0)

    def batch_is_done(self, batch: BatchDone) -> None:
        """Note a forward batch."""
        self._allocated_bytes, self._reserved_bytes = batch.allocated_bytes, batch.reserved_bytes
        self._metrics.count_batch(batch)

    def shards_are_held(self, shards: Iterable[int]) -> None:
        """Note the shards in hand."""
        with self._lock:
            self._held = tuple(shards)
            if self._held and not self._has_had_job:
                self._has_had_job = True
                self._window = LastMinute()  # what was before is not part of its speed
                self._window.add(self._clock(), self._spent(self._clock()))
        self._metrics.shards_in_hand.set(len(self._held))

    def delivery_has_ended(self, facts: ShardExtracted) -> None:
        """Note how a delivery ended."""
        self._metrics.count(facts)
        with self._lock:
            self._failures += facts.outcome == "failed"
            if facts.outcome == "committed":
                self._shards += 1
                self._samples += facts.samples
                self._tokens += facts.tokens

    def add_line(self, line: str) -> None:
        """Keep a log line."""
        self._lines.append(line)

    def look(self, gpus: tuple[GpuReport, ...]) -> WorkerReport:
        """Bring the metrics up to now, and return the report. To be called about once a second."""
        with self._lock:
            now = self._clock()
            main = self._accounts[MAIN_THREAD]
            is_waiting = main.now_at == "wait_for_job" and main.seconds_in_it(now) > _IDLE_SECONDS
            is_idle = self._state == "working" and is_waiting and not self._held
            state = "idle" if is_idle else self._state
            seconds = main.seconds(now)
            self._window.add(now, self._spent(now))
            report = self._report(state, gpus)
            told = self._told_seconds
            more = {name: max(0.0, value - told.get(name, 0.0)) for name, value in seconds.items()}
            self._told_seconds = {name: told.get(name, 0.0) + value for name, value in more.items()}
        self._metrics.add_activity(more)
        self._metrics.show_state(state)
        self._metrics.show_bottleneck(report.bottleneck)
        self._metrics.show_gpus(gpus)
        return report

    def _spent(self, now: float) -> dict[str, float]:
        """Return what the last minute is told from: seconds by activity of all threads, and tokens, since the start."""
        uploads = [account.seconds(now) for name, account in self._accounts.items() if name != MAIN_THREAD]
        spent = {f"main {name}": value for name, value in self._accounts[MAIN_THREAD].seconds(now).items()}
        for phase in ("send", "answer"):
            spent[phase] = sum(one.get(phase, 0.0) for one in uploads)
        return {**spent, "tokens": float(self._tokens)}

    def _report(self, state: str, gpus: tuple[GpuReport, ...]) -> WorkerReport:
        grown = self._window.grown()
        main = {name.removeprefix("main "): value for name, value in grown.items() if name.startswith("main ")}
        shares = shares_of(main) if self._has_had_job else {}
        return WorkerReport(
            worker=self._worker,
            state=state,
            message=self._message[:1000],
            device=self._device,
            gpus=gpus,
            allocated_bytes=self._allocated_bytes,
            reserved_bytes=self._reserved_bytes,
            shards_in_hand=self._held,
            shards=self._shards,
            samples=self._samples,
            tokens=self._tokens,
            failures=self._failures,
            engine_deaths=self._engine_deaths,
            tokens_per_second=grown["tokens"] / max(1.0, self._window.seconds),
            activity_shares=shares,
            bottleneck=bottleneck_of(shares, send_seconds=grown["send"], answer_seconds=grown["answer"]),
            log_lines=tuple(self._lines),
        )
