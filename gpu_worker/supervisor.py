"""The supervisor: keeps an engine running, its leases alive, and an eye on its progress. No torch here.

It is a process of its own because a held interpreter lock or a hung GPU stops every thread of the engine, but not
this one: a living engine is never taken for dead, and a hung one is killed. States of a worker:

    waiting for sink and Redis ─▶ engine loading ─▶ engine working ─▶ (engine died ─▶ engine loading) ─▶ stopped
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import threading
import time

from prometheus_client import CollectorRegistry

from gpu_worker.engine_process import EngineProcess
from gpu_worker.facts import SHARD_EXTRACTED, ShardExtracted
from gpu_worker.leases import LeaseKeeper
from gpu_worker.messages import BEAT, COMPUTED, COMPUTING, DONE, LOADED, TOOK, facts_of
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.orders import EngineOrders
from gpu_worker.settings import WorkerSettings
from gpu_worker.sink_client import RunState, SinkClient, SinkUnavailable
from hiddenstream.chassis.lifecycle import StopRequest, backoff
from hiddenstream.chassis.logs import log
from hiddenstream.chassis.metrics import MetricsServer
from hiddenstream.chassis.redis_connection import make_client, wait_for_redis
from hiddenstream.chassis.settings import secret
from hiddenstream.contracts.queue import queue_name
from hiddenstream.contracts.run import RunRecord

WORKER_STARTED = "worker_started"
WORKER_STOPPED = "worker_stopped"
SINK_WAITED_FOR = "sink_waited_for"
ENGINE_DIED = "engine_died"
ENGINE_STALLED = "engine_stalled"
RUN_COMPLETE = "run_complete"
_LOOK_SECONDS = 0.2
_ASK_SINK_SECONDS = 2.0
_REFUSED_EXIT = 2  # the engine said that it cannot serve this run; another engine would say the same
_LOGGER = logging.getLogger("gpu_worker.supervisor")


class Supervisor:
    """Runs one worker until its run is complete or it is asked to stop."""

    def __init__(self, settings: WorkerSettings, stop: StopRequest) -> None:
        self._settings = settings
        self._stop = stop
        self._token = secret(settings.token, settings.token_file)
        self._sink = SinkClient(settings.sink, settings.run, self._token)
        self._redis = make_client(settings.redis)
        self._last_progress = time.monotonic()
        self._is_loaded = self._has_worked = self._is_run_complete = False
        self._taken_shard: int | None = None
        self._computing_shard: int | None = None
        registry = CollectorRegistry()
        self._metrics = WorkerMetrics.in_registry(registry)
        self._server = MetricsServer(registry, listen=settings.metrics_listen, is_healthy=lambda: self._is_loaded)

    def run(self) -> int:
        """Work; return the exit code.

        Raises:
            HiddenstreamError: sink, queue or settings refuse for good.
        """
        log(_LOGGER, WORKER_STARTED, {"worker": self._settings.name, "metrics_port": self._server.port})
        record = self._wait_for_run()
        if record is None:
            return 0
        if not wait_for_redis(self._redis, self._stop):
            return 0
        self._leases = LeaseKeeper(self._redis, queue_name(record.run, record.identity.fingerprint))
        try:
            return self._keep_an_engine(self._orders(record))
        finally:
            self._leases.release_all()
            self._leases.close()
            log(_LOGGER, WORKER_STOPPED)

    def _wait_for_run(self) -> RunRecord | None:
        for pause_seconds in backoff():
            state = self._ask_sink()
            if state is not None:
                return None if state.is_complete else state.record
            if self._stop.wait(pause_seconds):
                return None
        raise AssertionError("backoff never ends")

    def _ask_sink(self) -> RunState | None:
        try:
            state = self._sink.fetch_run()
        except SinkUnavailable as error:
            log(_LOGGER, SINK_WAITED_FOR, {"message": str(error)}, level=logging.WARNING)
            return None
        if state.is_complete:
            log(_LOGGER, RUN_COMPLETE, {"run": state.record.run})
        return state

    def _orders(self, record: RunRecord) -> EngineOrders:
        return EngineOrders(
            worker=self._settings.name,
            redis=self._settings.redis,
            sink=self._settings.sink,
            token=self._token,
            device=self._settings.device,
            token_budget=self._settings.token_budget,
            model=self._settings.model or record.model,
            record=record.to_json(),
        )

    def _keep_an_engine(self, orders: EngineOrders) -> int:
        waits = backoff(first_seconds=0.5, most_seconds=30.0)
        while True:
            code = self._run_one_engine(orders)
            orders = dataclasses.replace(orders, is_model_checked=orders.is_model_checked or self._is_loaded)
            if code == _REFUSED_EXIT or (code == 0 and (self._stop.is_set() or self._is_run_complete)):
                return code
            if code == -signal.SIGTERM and self._stop.is_set():  # it had not come to its own handler
                return 0
            facts = {"exit_code": code, "shards_in_hand": self._leases.held()}
            log(_LOGGER, ENGINE_DIED, facts, level=logging.ERROR)
            self._metrics.engine_deaths.inc()
            self._leases.release_all()
            if self._computing_shard is not None:  # those only waiting for the sink have done nothing wrong
                self._leases.count_failure(self._computing_shard)
            if self._has_worked:  # it was well once: no reason to wait long
                waits = backoff(first_seconds=0.5, most_seconds=30.0)
            if self._stop.wait(next(waits)):
                return 1

    def _run_one_engine(self, orders: EngineOrders) -> int:
        self._is_loaded = self._has_worked = self._is_run_complete = False
        self._computing_shard = None
        self._last_progress = time.monotonic()
        self._metrics.engine_starts.inc()
        engine = EngineProcess(orders)
        reading = threading.Thread(target=self._read_messages, args=(engine,), name="messages", daemon=True)
        reading.start()
        self._watch(engine)
        reading.join()
        self._metrics.is_ready.set(0)
        return engine.wait()

    def _watch(self, engine: EngineProcess) -> None:
        """Look after the engine until it has ended."""
        asked_sink = time.monotonic()
        is_told_to_stop = False
        while engine.is_alive():
            if self._is_stalled():
                log(_LOGGER, ENGINE_STALLED, {"shards_in_hand": self._leases.held()}, level=logging.ERROR)
                engine.send(signal.SIGKILL)
            is_idle = self._is_loaded and not is_told_to_stop and not self._leases.held()
            if is_idle and time.monotonic() - asked_sink > _ASK_SINK_SECONDS:
                asked_sink = time.monotonic()
                state = self._ask_sink()
                self._is_run_complete = state is not None and state.is_complete
            if (self._stop.is_set() or self._is_run_complete) and not is_told_to_stop:
                is_told_to_stop = True
                engine.send(signal.SIGTERM)
            if self._stop.is_urgent:
                engine.send(signal.SIGKILL)
            engine.wait_briefly(_LOOK_SECONDS)

    def _is_stalled(self) -> bool:
        silent_seconds = time.monotonic() - self._last_progress
        if not self._is_loaded:
            return silent_seconds > self._settings.load_seconds
        return self._computing_shard is not None and silent_seconds > self._settings.stall_seconds

    def _read_messages(self, engine: EngineProcess) -> None:
        for message in engine.messages():
            kind = message["kind"]
            self._last_progress = time.monotonic()
            self._metrics.last_progress.set_to_current_time()
            if kind == LOADED:
                self._is_loaded = True
                self._metrics.is_ready.set(1)
            elif kind == TOOK:
                self._taken_shard = message["shard"]
                self._leases.hold(message["shard"], f"{self._settings.name}:{message['delivery']}")
            elif kind in (COMPUTING, COMPUTED):
                self._computing_shard = self._taken_shard if kind == COMPUTING else None
            elif kind == BEAT:
                self._has_worked = True
                self._metrics.batches.inc()
            elif kind == DONE:
                self._on_done(facts_of(message))
            self._metrics.shards_in_hand.set(len(self._leases.held()))

    def _on_done(self, facts: ShardExtracted) -> None:
        level = logging.ERROR if facts.outcome in ("failed", "refused") else logging.INFO
        log(_LOGGER, SHARD_EXTRACTED, facts, level=level)
        self._metrics.count(facts)
        if facts.outcome == "failed":
            self._leases.count_failure(facts.shard)
        if facts.outcome != "in_hand":
            self._leases.release(facts.shard)
