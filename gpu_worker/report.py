"""Telling how the worker stands, once a second: to /metrics always, and to Redis once the run is known."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import redis

from hiddenstream.chassis.logs import log
from hiddenstream.contracts.queue import report_key, workers_key
from hiddenstream.contracts.worker_report import REPORT_SECONDS, WorkerReport

REPORT_NOT_WRITTEN = "report_not_written"
_EVERY_SECONDS = 1.0
_NAMES_KEPT_SECONDS = 60  # of the workers of a run whose workers have all died; each report renews it
_LOGGER = logging.getLogger("gpu_worker.report")


class ReportThread:
    """Looks once a second, and writes what it saw to Redis; a Redis that is away costs nothing but the report."""

    def __init__(self, client: redis.Redis, worker: str, look: Callable[[], WorkerReport]) -> None:
        self._client, self._worker, self._look = client, worker, look
        self._queue: str | None = None
        self._is_written = True
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="report", daemon=True)
        self._thread.start()

    def tell_queue(self, queue: str) -> None:
        """Write reports to a run's queue from now on."""
        self._queue = queue

    def close(self) -> None:
        """Stop, and take the report back."""
        self._stopped.set()
        self._thread.join()
        if self._queue is not None and self._is_written:
            try:
                self._client.delete(report_key(self._queue, self._worker))
                self._client.srem(workers_key(self._queue), self._worker)
            except redis.RedisError:
                return  # it runs out by itself

    def _tell(self) -> None:
        while not self._stopped.wait(_EVERY_SECONDS):
            report = self._look()
            if self._queue is not None:
                self._write(self._queue, report)

    def _write(self, queue: str, report: WorkerReport) -> None:
        try:
            with self._client.pipeline() as pipeline:
                pipeline.set(report_key(queue, self._worker), report.encode(), px=int(REPORT_SECONDS * 1000))
                pipeline.sadd(workers_key(queue), self._worker)
                pipeline.expire(workers_key(queue), _NAMES_KEPT_SECONDS)
                pipeline.execute()
        except redis.RedisError as error:
            if self._is_written:
                log(_LOGGER, REPORT_NOT_WRITTEN, {"message": str(error)}, level=logging.WARNING)
            self._is_written = False
        else:
            self._is_written = True
