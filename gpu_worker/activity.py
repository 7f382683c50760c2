"""Where an engine's time goes, and what that says about what holds it back. No I/O here."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from hiddenstream.contracts.worker_report import BOTTLENECKS

UPLOADING = ("nothing", "send", "answer")  # what an upload thread is at; between two attempts it is at ``answer``
WINDOW_SECONDS = 60.0
_RESOURCES = {
    "forward": "gpu",
    "copy": "copy",
    "check": "host",
    "hash": "host",
    "other": "host",
    "wait_for_sink": "sink",
    "wait_for_job": "queue",
}


class ActivityAccount:
    """Seconds of one thread by activity; what it is at is counted as it goes on."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._now_at: str | None = None
        self._since = 0.0

    @property
    def now_at(self) -> str | None:
        """What the thread is at; None where there is no such thread."""
        return self._now_at

    def enter(self, activity: str | None, at: float) -> None:
        """Note what the thread is at from a moment on; None at its end."""
        if self._now_at is not None:
            self._seconds[self._now_at] = self.seconds(at)[self._now_at]
        self._now_at, self._since = activity, at

    def seconds_in_it(self, now: float) -> float:
        """Return for how long the thread has been at what it is at."""
        return max(0.0, now - self._since)

    def seconds(self, now: float) -> dict[str, float]:
        """Return the seconds of each activity so far."""
        totals = dict(self._seconds)
        if self._now_at is not None:
            totals[self._now_at] = totals.get(self._now_at, 0.0) + self.seconds_in_it(now)
        return totals


class LastMinute:
    """How much some totals have grown in the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque()

    def add(self, now: float, totals: Mapping[str, float]) -> None:
        """Remember totals that never shrink."""
        self._samples.append((now, dict(totals)))
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def seconds(self) -> float:
        """How long the time is that is looked back on."""
        return self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0

    def grown(self) -> dict[str, float]:
        """Return by how much each total has grown."""
        if not self._samples:
            return {}
        first, last = self._samples[0][1], self._samples[-1][1]
        return {name: max(0.0, total - first.get(name, 0.0)) for name, total in last.items()}


def shares_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return each activity's share of all that were spent; empty where none was."""
    whole = sum(seconds.values())
    return {name: part / whole for name, part in seconds.items()} if whole > 0 else {}


def bottleneck_of(shares: Mapping[str, float], *, send_seconds: float, answer_seconds: float) -> str:
    """Return what of BOTTLENECKS holds a worker back: the resource that most of its time goes to.

    Args:
        shares: of ACTIVITIES, over the same time as the seconds.
        send_seconds, answer_seconds: what the upload threads spent. A worker that waits for a free buffer waits for the
            wire where they mostly send, and for the sink where they mostly wait for its answer.
    """
    by_resource = dict.fromkeys(BOTTLENECKS, 0.0)
    for activity, share in shares.items():
        if activity == "wait_for_buffer":
            by_resource["upload" if send_seconds > answer_seconds else "sink"] += share
        else:
            by_resource[_RESOURCES[activity]] += share
    return max(BOTTLENECKS, key=by_resource.__getitem__) if any(by_resource.values()) else "none"
