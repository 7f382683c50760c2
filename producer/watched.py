"""What shows a producer to people and to Prometheus: its metrics, and its status page.

Everything here looks on: the dispatcher tells it what it saw, and never waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

import redis
from prometheus_client import CollectorRegistry

from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.logs import RecentLines, log
from hiddenstream.chassis.metrics import MetricsServer
from hiddenstream.chassis.redis_connection import make_client
from hiddenstream.contracts.errors import HiddenstreamError, UsageError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.status_page.compose import Seen, compose
from hiddenstream.status_page.disk import look_at_disk
from hiddenstream.status_page.failures import rejected_groups, stuck_group
from hiddenstream.status_page.log_lines import newest, parsed, tails
from hiddenstream.status_page.parts import FailureGroup, QueueStatus
from hiddenstream.status_page.server import StatusServer
from hiddenstream.status_page.status import RunStatus
from hiddenstream.status_page.totals import LedgerTotals, Totals
from producer.dispatch import DispatchState
from producer.metrics import ProducerMetrics
from producer.worker_board import WorkerBoard

STATUS_PAGE_SERVED = "status_page_served"
STATUS_PORT_TAKEN = "status_port_taken"
DEFAULT_STATUS_LISTEN = ("127.0.0.1", 8080)
_LOOK_SECONDS = 1.0
_LINGER_SECONDS = 3.0  # more than the page's two seconds between questions
_LOGGER = logging.getLogger("producer")


class Watched:
    """A producer's metrics and status page, from its start to its end.

    Attributes:
        metrics: the producer's series.
        metrics_port: where they are served.
    """

    def __init__(
        self,
        paths: RunPaths,
        recent: RecentLines,
        *,
        reserve_bytes: int,
        metrics_listen: tuple[str, int],
        status_listen: tuple[str, int] | None,
        status_hosts: tuple[str, ...] = (),
    ) -> None:
        """Start serving.

        Args:
            status_listen: where the page is to be, or None for the usual port or, where that is taken, a free one.
            status_hosts: names under which the page may be asked for, besides addresses and this machine's names.

        Raises:
            UsageError: an address cannot be listened on.
        """
        self._paths, self._recent, self._reserve_bytes = paths, recent, reserve_bytes
        self._phase, self._rows_read = "planning", 0
        self._record: RunRecord | None = None
        self._totals: LedgerTotals | None = None
        self._board: WorkerBoard | None = None
        self._round: DispatchState | None = None
        self._is_redis_reachable = True
        self._redis_bytes = (0, 0)
        self._most_failures = 0
        self._rejected: tuple[FailureGroup, ...] | None = None
        self._end = threading.Event()
        self._looking: threading.Thread | None = None
        registry = CollectorRegistry()
        self.metrics = ProducerMetrics.in_registry(registry)
        self.metrics.watch_disk(paths.root, reserve_bytes)
        self._refusal = ""
        self._metrics_server = MetricsServer(registry, listen=metrics_listen, is_healthy=lambda: not self._refusal)
        self.metrics_port = self._metrics_server.port
        try:
            self._page = _serve_page(self.status, status_listen, status_hosts)
        except UsageError:
            self._metrics_server.close()
            raise
        log(_LOGGER, STATUS_PAGE_SERVED, {"url": self._page.url})

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        if self._looking is not None:
            self._looking.join(_LOOK_SECONDS)
        self._page.close()
        self._metrics_server.close()

    def show_rows(self, rows: int) -> None:
        """Planning has read so many rows."""
        self._rows_read = rows
        self.metrics.rows_read.set(rows)

    def show_run(
        self, record: RunRecord, totals: LedgerTotals, *, queue: str, redis_url: str, most_failures: int
    ) -> None:
        """The plan is there: from now on show the run, and look at its workers once a second."""
        self.metrics.show_plan(record)
        self.metrics.show_commits(record, totals)
        self._board = WorkerBoard(queue)
        self._totals, self._record, self._most_failures = totals, record, most_failures
        self._phase = "delivering"
        self._looking = threading.Thread(
            target=self._look, args=(make_client(redis_url), self._board), name="look-at-workers", daemon=True
        )
        self._looking.start()

    def show_round(self, state: DispatchState) -> None:
        """The dispatcher has looked around."""
        self._round, self._is_redis_reachable = state, True
        self.metrics.show_queue(state)
        if self._record is not None and self._totals is not None:
            self.metrics.show_commits(self._record, self._totals)

    def show_redis_lost(self) -> None:
        """Redis is away."""
        self._is_redis_reachable = False
        self.metrics.is_redis_reachable.set(0)

    def show_stopping(self) -> None:
        """Stopping was asked for."""
        self._phase = "stopping"

    def show_end(self, stop: StopRequest, *, stays: bool) -> None:
        """Show how the run ended: until *stop* where the producer stays, else until open pages have seen it."""
        self._phase = "ended"
        if self._record is not None and self._totals is not None:
            self.metrics.show_commits(self._record, self._totals)
        self._page.refresh()
        if stays:
            while not stop.wait(_LOOK_SECONDS):
                pass
        elif self._page.is_watched():
            stop.wait(_LINGER_SECONDS)

    def show_refusal(self, message: str, stop: StopRequest) -> None:
        """Show why there is no run, until *stop*."""
        self._refusal, self._phase = message, "refused"
        self._page.refresh()
        while not stop.wait(_LOOK_SECONDS):
            pass

    def status(self) -> RunStatus:
        """Return the run's status; in any thread."""
        now, record = time.time(), self._record
        board, last_round = self._board, self._round
        lines = [*parsed(self._recent.lines()), *tails(self._paths.logs, but=frozenset({"producer"}))]
        stuck = last_round.stuck if last_round is not None else frozenset()
        seen = Seen(
            phase=self._phase,
            run=self._paths.root.absolute().name,
            rows_read=self._rows_read,
            refusal=self._refusal,
            queue=None if record is None else self._queue(last_round, board),
            disk=look_at_disk(self._paths.root, self._reserve_bytes),
            stuck_shards=len(stuck),
            failures=(*stuck_group(stuck, self._most_failures), *self._rejected_rows(record)),
            workers=() if board is None else board.workers(time.monotonic()),
            log=newest([*lines, *(board.log_lines() if board else ())]),
        )
        totals = Totals() if self._totals is None else self._totals.snapshot(now)
        return compose(record, totals, seen, now=now)

    def _queue(self, state: DispatchState | None, board: WorkerBoard | None) -> QueueStatus:
        return QueueStatus(
            is_reachable=self._is_redis_reachable,
            waiting=state.queued if state else 0,
            waiting_bytes=state.queued_bytes if state else 0,
            in_work=state.in_work if state else 0,
            oldest_seconds=state.oldest_seconds if state else 0.0,
            redelivered=state.redelivered if state else 0,
            redis_used_bytes=self._redis_bytes[0],
            redis_limit_bytes=self._redis_bytes[1],
            malformed_reports=board.malformed if board else 0,
        )

    def _rejected_rows(self, record: RunRecord | None) -> tuple[FailureGroup, ...]:
        if self._rejected is None and record is not None:
            try:
                self._rejected = rejected_groups(self._paths, record.rejected)
            except HiddenstreamError:  # counts without examples are still worth showing
                self._rejected = tuple(
                    FailureGroup(kind="rejected", reason=reason, count=count)
                    for reason, count in record.rejected.items()
                )
        return self._rejected or ()

    def _look(self, client: redis.Redis, board: WorkerBoard) -> None:
        """Read workers' reports and Redis' memory once a second, in a thread of its own."""
        while not self._end.wait(_LOOK_SECONDS):
            try:
                board.read(client, time.monotonic())
                memory = client.info("memory")
            except (redis.RedisError, OSError):
                self.show_redis_lost()
                continue
            self._is_redis_reachable = True
            self._redis_bytes = (int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0)))
            self.metrics.show_redis(*self._redis_bytes)
            self.metrics.show_workers(board.by_state())
        client.close()


def _serve_page(
    status: Callable[[], RunStatus], listen: tuple[str, int] | None, hosts: tuple[str, ...]
) -> StatusServer:
    if listen is not None:
        return StatusServer(status, listen=listen, hosts=hosts)
    try:
        return StatusServer(status, listen=DEFAULT_STATUS_LISTEN, hosts=hosts)
    except UsageError:
        log(_LOGGER, STATUS_PORT_TAKEN, {"port": DEFAULT_STATUS_LISTEN[1]})
        return StatusServer(status, listen=(DEFAULT_STATUS_LISTEN[0], 0), hosts=hosts)
