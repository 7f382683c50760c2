"""The supervisor: claims GPUs, keeps an engine running, its leases alive, and an eye on its progress. No torch here.

It is a process of its own because a held interpreter lock or a hung GPU stops every thread of the engine, but not
this one: a living engine is never taken for dead, and a hung one is killed. What a worker goes through:

    waiting for sink, queue and GPUs ─▶ engine loading ─▶ engine working ─▶ (engine died ─▶ engine loading) ─▶
    complete or refused ─▶ (with --stay: showing that) ─▶ stopped
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import time

from prometheus_client import CollectorRegistry

from gpu_worker.gpu_claim import claim_gpus
from gpu_worker.gpu_locks import GpuClaim
from gpu_worker.leases import LeaseKeeper
from gpu_worker.log_lines import LogLines
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.nvml import GpuPoll
from gpu_worker.orders import EngineOrders
from gpu_worker.report import ReportThread
from gpu_worker.settings import WorkerSettings
from gpu_worker.sink_client import RunState, SinkClient, SinkUnavailable
from gpu_worker.standing import Standing
from gpu_worker.watch import EngineWatch
from hiddenstream.chassis.lifecycle import StopRequest, backoff
from hiddenstream.chassis.logs import log
from hiddenstream.chassis.metrics import MetricsServer
from hiddenstream.chassis.redis_connection import make_client, wait_for_redis
from hiddenstream.chassis.settings import secret
from hiddenstream.contracts.errors import HiddenstreamError
from hiddenstream.contracts.queue import queue_name
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.worker_report import WorkerReport

WORKER_STARTED = "worker_started"
WORKER_REFUSED = "worker_refused"
WORKER_STAYED = "worker_stayed"
WORKER_STOPPED = "worker_stopped"
SINK_WAITED_FOR = "sink_waited_for"
ENGINE_DIED = "engine_died"
RUN_COMPLETE = "run_complete"
_ASK_SINK_SECONDS = 2.0
_REFUSED_EXIT = 2  # the engine said that it cannot serve this run; another engine would say the same
_LOGGER = logging.getLogger("gpu_worker.supervisor")


class Supervisor:
    """Runs one worker until its run is complete or it is asked to stop."""

    def __init__(self, settings: WorkerSettings, stop: StopRequest) -> None:
        self._settings, self._stop = settings, stop
        self._token = secret(settings.token, settings.token_file)
        self._sink = SinkClient(settings.sink, settings.run, self._token)
        self._redis = make_client(settings.redis)
        registry = CollectorRegistry()
        self._metrics = WorkerMetrics.in_registry(registry)
        self._standing = Standing(settings.name, self._metrics)
        LogLines(self._standing.add_line).install()
        self._watch: EngineWatch | None = None
        self._claim, self._gpu_poll = GpuClaim(), GpuPoll(())
        self._server = MetricsServer(registry, listen=settings.metrics_listen, is_healthy=self._is_healthy)

    def run(self) -> int:
        """Work; return the exit code."""
        log(_LOGGER, WORKER_STARTED, {"worker": self._settings.name, "metrics_port": self._server.port})
        self._report = ReportThread(self._redis, self._settings.name, self._look)
        try:
            code = self._work_or_refuse()
            if self._settings.stay and not self._stop.is_set():
                log(_LOGGER, WORKER_STAYED, {"state": self._standing.state, "exit_code": code})
                while not self._stop.wait(3600):
                    pass
            return code
        finally:
            self._report.close()
            log(_LOGGER, WORKER_STOPPED)

    def _work_or_refuse(self) -> int:
        try:
            return self._work()
        except HiddenstreamError as error:
            log(_LOGGER, WORKER_REFUSED, {"reason": error.reason, "message": str(error)}, level=logging.ERROR)
            self._standing.now_is("refused", str(error))
            return error.exit_code
        finally:
            self._gpu_poll.close()
            self._gpu_poll = GpuPoll(())
            self._claim.release()

    def _work(self) -> int:
        state = self._wait_for_run()
        if state is None:
            return 0
        queue = queue_name(state.record.run, state.record.identity.fingerprint)
        self._report.tell_queue(queue)
        if state.is_complete:
            self._standing.now_is("complete")
            return 0
        self._standing.now_is("waiting_for_queue")
        if not wait_for_redis(self._redis, self._stop):
            return 0
        if not self._claim_gpus():
            return 0
        leases = LeaseKeeper(self._redis, queue)
        try:
            return self._keep_an_engine(self._orders(state.record), leases)
        finally:
            leases.release_all()
            leases.close()
            self._standing.shards_are_held(())

    def _wait_for_run(self) -> RunState | None:
        for pause_seconds in backoff():
            state = self._ask_sink()
            if state is not None:
                return state
            if self._stop.wait(pause_seconds):
                return None
        raise AssertionError("backoff never ends")

    def _ask_sink(self) -> RunState | None:
        try:
            state = self._sink.fetch_run()
        except SinkUnavailable as error:
            log(_LOGGER, SINK_WAITED_FOR, {"message": str(error)}, level=logging.WARNING)
            if self._standing.state == "waiting_for_sink":
                self._standing.now_is("waiting_for_sink", str(error))
            return None
        if state.is_complete:
            log(_LOGGER, RUN_COMPLETE, {"run": state.record.run})
        return state

    def _is_complete(self) -> bool:
        state = self._ask_sink()
        return state is not None and state.is_complete

    def _claim_gpus(self) -> bool:
        """Claim what the settings ask for; return False where the run ended, or we are to stop, meanwhile."""
        asked_sink = time.monotonic()

        def wait(seconds: float) -> bool:
            nonlocal asked_sink
            if self._stop.wait(seconds):
                return True
            if time.monotonic() - asked_sink < _ASK_SINK_SECONDS:
                return False
            asked_sink = time.monotonic()
            if self._is_complete():
                self._standing.now_is("complete")
                return True
            return False

        claim = claim_gpus(
            self._settings,
            wait=wait,
            on_wait=lambda message: self._standing.now_is("waiting_for_gpu", message),
        )
        if claim is None:
            return False
        self._claim, self._gpu_poll = claim, GpuPoll(claim.gpus)
        return True

    def _orders(self, record: RunRecord) -> EngineOrders:
        settings = self._settings
        return EngineOrders(
            worker=settings.name,
            redis=settings.redis,
            sink=settings.sink,
            token=self._token,
            device="cuda" if self._claim.gpus and settings.device.startswith("cuda") else settings.device,
            gpus=settings.gpus,
            claimed=tuple(gpu.uuid for gpu in self._claim.gpus),
            token_budget=settings.token_budget,
            model=settings.model or record.model,
            record=record.to_json(),
        )

    def _keep_an_engine(self, orders: EngineOrders, leases: LeaseKeeper) -> int:
        waits = backoff(first_seconds=0.5, most_seconds=30.0)
        why = ""
        while True:
            self._standing.now_is("loading", why)
            watch = self._watch = EngineWatch(
                self._settings,
                self._stop,
                leases,
                self._standing,
                self._metrics,
                ask_is_complete=self._is_complete,
            )
            code = watch.run(orders)
            self._watch = None
            orders = dataclasses.replace(orders, is_model_checked=orders.is_model_checked or watch.is_loaded)
            is_end = self._is_end(code, watch)
            self._standing.engine_has_ended(is_death=not is_end)
            if is_end:
                return max(code, 0)
            why = f"the engine ended unasked with exit code {code}; another one is started"
            facts = {"exit_code": code, "shards_in_hand": leases.held()}
            log(_LOGGER, ENGINE_DIED, facts, level=logging.ERROR)
            self._metrics.engine_deaths.inc()
            leases.release_all()
            if watch.computing_shard is not None:  # those only waiting for the sink have done nothing wrong
                leases.count_failure(watch.computing_shard)
            self._standing.shards_are_held(())
            if watch.has_worked:  # it was well once: no reason to wait long
                waits = backoff(first_seconds=0.5, most_seconds=30.0)
            if self._stop.wait(next(waits)):
                return 1

    def _is_end(self, code: int, watch: EngineWatch) -> bool:
        """Whether an engine's end is the worker's, too."""
        if code == _REFUSED_EXIT:
            self._standing.now_is("refused", watch.refusal)
            return True
        if code == 0 and watch.is_run_complete:
            self._standing.now_is("complete")
            return True
        # a negative one: it had not come to its own handler of the signal
        return self._stop.is_set() and code in (0, -signal.SIGTERM)

    def _look(self) -> WorkerReport:
        self._claim.touch()
        return self._standing.look(self._gpu_poll.reports)

    def _is_healthy(self) -> bool:
        watch = self._watch
        return self._standing.state == "complete" or (watch is not None and watch.is_loaded)
