"""Looking after one engine, from its start to its end: its messages, its leases, its progress. No torch here."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from gpu_worker.engine_process import EngineProcess
from gpu_worker.facts import SHARD_EXTRACTED, BatchDone, ModelReady, ShardExtracted
from gpu_worker.leases import LeaseKeeper
from gpu_worker.messages import (
    ACTIVITY,
    BEAT,
    COMPUTED,
    COMPUTING,
    DONE,
    LOADED,
    LOGGED,
    REFUSED,
    TOOK,
    facts_of,
)
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.orders import EngineOrders
from gpu_worker.settings import WorkerSettings
from gpu_worker.standing import Standing
from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.logs import log

ENGINE_STALLED = "engine_stalled"
_LOOK_SECONDS = 0.2
_ASK_SINK_SECONDS = 2.0
_LOGGER = logging.getLogger("gpu_worker.supervisor")


class EngineWatch:
    """One engine under its supervisor's eye.

    Attributes:
        is_loaded: whether its model is ready. has_worked: whether it has finished a forward batch.
        is_run_complete: whether it was told to stop since the run is complete.
        computing_shard: the shard in its forward passes, also after its death.
        refusal: why it refused the run; empty where it did not.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        stop: StopRequest,
        leases: LeaseKeeper,
        standing: Standing,
        metrics: WorkerMetrics,
        *,
        ask_is_complete: Callable[[], bool],
    ) -> None:
        self._settings, self._stop, self._leases = settings, stop, leases
        self._standing, self._metrics = standing, metrics
        self._ask_is_complete = ask_is_complete
        self.is_loaded = self.has_worked = self.is_run_complete = False
        self.refusal = ""
        self.computing_shard: int | None = None
        self._taken_shard: int | None = None
        self._last_progress = time.monotonic()

    def run(self, orders: EngineOrders) -> int:
        """Start an engine and look after it until it has ended; return its exit code."""
        self._metrics.engine_starts.inc()
        engine = EngineProcess(orders)
        reading = threading.Thread(target=self._read_messages, args=(engine,), name="messages", daemon=True)
        reading.start()
        try:
            self._look_after(engine)
        except BaseException:  # it must not go on without leases
            engine.send(signal.SIGKILL)
            engine.wait()
            raise
        finally:
            reading.join()
            self._metrics.is_ready.set(0)
        return engine.wait()

    def _look_after(self, engine: EngineProcess) -> None:
        asked_sink = time.monotonic()
        is_told_to_stop = False
        while engine.is_alive():
            if self._is_stalled():
                log(_LOGGER, ENGINE_STALLED, {"shards_in_hand": self._leases.held()}, level=logging.ERROR)
                engine.send(signal.SIGKILL)
            is_idle = self.is_loaded and not is_told_to_stop and not self._leases.held()
            if is_idle and time.monotonic() - asked_sink > _ASK_SINK_SECONDS:
                asked_sink = time.monotonic()
                self.is_run_complete = self._ask_is_complete()
            if (self._stop.is_set() or self.is_run_complete) and not is_told_to_stop:
                is_told_to_stop = True
                self._standing.now_is("draining")
                engine.send(signal.SIGTERM)
            if self._stop.is_urgent:
                engine.send(signal.SIGKILL)
            engine.wait_briefly(_LOOK_SECONDS)

    def _is_stalled(self) -> bool:
        silent_seconds = time.monotonic() - self._last_progress
        if not self.is_loaded:
            return silent_seconds > self._settings.load_seconds
        return self.computing_shard is not None and silent_seconds > self._settings.stall_seconds

    def _read_messages(self, engine: EngineProcess) -> None:
        for message in engine.messages():
            if message["kind"] == ACTIVITY:
                self._standing.engine_is_at(message["thread"], message["activity"], message["at"])
            elif message["kind"] == LOGGED:
                self._standing.add_line(message["line"])
            elif message["kind"] == REFUSED:
                self.refusal = message["message"]
                self._metrics.show_gate(message["gate"])
            else:
                self._on_progress(message)

    def _on_progress(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        self._last_progress = time.monotonic()
        self._metrics.last_progress.set_to_current_time()
        if kind == LOADED:
            self.is_loaded = True
            self._metrics.is_ready.set(1)
            self._standing.model_is_ready(ModelReady(**message["facts"]))
        elif kind == TOOK:
            self._taken_shard = message["shard"]
            self._leases.hold(message["shard"], f"{self._settings.name}:{message['delivery']}")
        elif kind in (COMPUTING, COMPUTED):
            self.computing_shard = self._taken_shard if kind == COMPUTING else None
        elif kind == BEAT:
            self.has_worked = True
            self._standing.batch_is_done(BatchDone(**message["facts"]))
        elif kind == DONE:
            self._on_done(facts_of(message))
        self._standing.shards_are_held(self._leases.held())

    def _on_done(self, facts: ShardExtracted) -> None:
        level = logging.ERROR if facts.outcome in ("failed", "refused") else logging.INFO
        log(_LOGGER, SHARD_EXTRACTED, facts, level=level)
        self._standing.delivery_has_ended(facts)
        if facts.outcome == "failed":
            self._leases.count_failure(facts.shard)
        if facts.outcome != "in_hand":
            self._leases.release(facts.shard)
