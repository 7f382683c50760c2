"""What workers report of themselves through Redis. It is shown and counted; it decides nothing."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import redis

from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.queue import report_key, workers_key
from hiddenstream.contracts.worker_report import REPORT_SECONDS, WORKER_STATES, WorkerReport
from hiddenstream.status_page.log_lines import parsed
from hiddenstream.status_page.parts import GONE, LogLine, WorkerStatus
from producer.run_queue import as_text

GONE_SECONDS = 300.0  # a worker that vanished is shown for so long
_MOST_NAMES = 1024


@dataclass(slots=True)
class _Heard:
    report: WorkerReport
    at: float
    is_live: bool = True


class WorkerBoard:
    """Remembers each worker's last report. One thread reads Redis, others look.

    Attributes:
        malformed: reports that could not be read, each counted once.
    """

    def __init__(self, queue: str) -> None:
        self.malformed = 0
        self._queue = queue
        self._lock = threading.Lock()
        self._heard: dict[str, _Heard] = {}
        self._malformed: dict[str, bytes] = {}

    def read(self, client: redis.Redis, now: float) -> None:
        """Read all reports; take names whose report is gone off the set. Raises what redis-py raises.

        Args:
            now: a clock that only goes forward.
        """
        members = client.smembers(workers_key(self._queue))
        names = sorted(as_text(name) for name in members)[:_MOST_NAMES]
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.get(report_key(self._queue, name))
            pipeline.pttl(report_key(self._queue, name))
        answers = pipeline.execute()
        lost = [name for name, data in zip(names, answers[::2], strict=True) if data is None]
        if lost:
            client.srem(workers_key(self._queue), *lost)
        with self._lock:
            fresh = dict(self._reports(names, answers, now))
            for name, heard in self._heard.items():
                heard.is_live = name in fresh
            self._heard |= fresh
            self._heard = {n: heard for n, heard in self._heard.items() if now - heard.at < GONE_SECONDS}

    def _reports(self, names: list[str], answers: list[bytes | int | None], now: float) -> Iterator[tuple[str, _Heard]]:
        for name, data, left_ms in zip(names, answers[::2], answers[1::2], strict=True):
            if not isinstance(data, bytes) or not isinstance(left_ms, int):
                continue
            try:
                report = WorkerReport.decode(data)
                if report.worker != name:
                    raise WireError(f"the report of {name!r:.80} names {report.worker!r:.80}")
            except WireError:
                self.malformed += self._malformed.get(name) != data
                self._malformed[name] = data
                continue
            age_seconds = max(0.0, REPORT_SECONDS - left_ms / 1000) if left_ms > 0 else 0.0
            yield name, _Heard(report, now - age_seconds)

    def by_state(self) -> Counter[str]:
        """Count the workers that report, by state."""
        with self._lock:
            live = Counter(heard.report.state for heard in self._heard.values() if heard.is_live)
        return Counter({state: live[state] for state in WORKER_STATES})

    def workers(self, now: float) -> tuple[WorkerStatus, ...]:
        """Return the workers by name, those that are gone last."""
        with self._lock:
            heard = sorted(self._heard.values(), key=lambda one: (not one.is_live, _natural(one.report.worker)))
            total = sum(one.report.tokens_per_second for one in heard if one.is_live)
            return tuple(_status(one, total, now) for one in heard)

    def log_lines(self) -> list[LogLine]:
        """Return the workers' latest log lines."""
        with self._lock:
            reports = [heard.report for heard in self._heard.values()]
        return [line for report in reports for line in parsed(report.log_lines, source=report.worker)]


def _status(heard: _Heard, total_tokens_per_second: float, now: float) -> WorkerStatus:
    report = heard.report
    rate = report.tokens_per_second if heard.is_live else 0.0
    return WorkerStatus(
        worker=report.worker,
        state=report.state if heard.is_live else GONE,
        message=report.message[:300] if heard.is_live else f"was {report.state.replace('_', ' ')}",
        device=report.device[:80],
        tokens_per_second=rate,
        share=rate / total_tokens_per_second if total_tokens_per_second else 0.0,
        gpus=report.gpus,
        allocated_bytes=report.allocated_bytes,
        bottleneck=report.bottleneck,
        shards_in_hand=len(report.shards_in_hand) if heard.is_live else 0,
        shards=report.shards,
        tokens=report.tokens,
        failures=report.failures,
        engine_deaths=report.engine_deaths,
        heard_seconds=round(max(0.0, now - heard.at), 1),
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort worker-10 after worker-9."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]
