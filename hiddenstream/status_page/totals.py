"""Running sums over the ledger: a run of 88,000 shards is not added up anew twice a second."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from hiddenstream.contracts.commit import CommitLine
from hiddenstream.contracts.statistics import TapStatistics, merge_taps, statistics_from_wire
from hiddenstream.progress import RATE_COMMITS, RATE_WINDOW_SECONDS
from hiddenstream.status_page.parts import Amount, Example, FailureGroup, RatePoint

MOST_EXAMPLES = 20
MOST_POINTS = 120
_MOST_BUCKETS = 480  # when there are more, two become one
_MOST_RECENT = 8192
_GRACE_INTERVALS = 2.0  # of silence, in mean intervals between commits, before the rate sinks


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """Commits of the last minutes, added up.

    Attributes:
        seconds: from the first to the last of them; the first one's tokens were made before and do not count.
        receive_seconds, fsync_seconds: what the sink took for them.
    """

    seconds: float = 0.0
    samples: int = 0
    tokens: int = 0
    bytes: int = 0
    receive_seconds: float = 0.0
    fsync_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the ledger adds up to at one moment; times are Unix times."""

    committed: Amount = Amount()
    quarantined: tuple[FailureGroup, ...] = ()
    first_commit: float | None = None
    last_commit: float | None = None
    recent: Recent = Recent()
    points: tuple[RatePoint, ...] = ()
    point_seconds: float = 0.0

    @property
    def quarantined_samples(self) -> int:
        """Planned samples that are left out."""
        return sum(group.count for group in self.quarantined)


@dataclass(frozen=True, slots=True)
class _Commit:
    time: float
    samples: int
    tokens: int
    bytes: int
    receive_seconds: float
    fsync_seconds: float


class LedgerTotals:
    """Adds up commits as they are read. One thread adds, others take snapshots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[str] = Counter()
        self._quarantined: Counter[str] = Counter()
        self._examples: dict[str, list[tuple[int, Example]]] = {}
        self._first: float | None = None
        self._last: float | None = None
        self._recent: list[_Commit] = []
        self._history = RateHistory()
        self._statistics: dict[str, TapStatistics] = {}

    def add(self, commit: CommitLine, replaced: CommitLine | None = None) -> None:
        """Count a commit, in place of an older one of the same shard where there was one.

        Its states' statistics are added only the first time: the same samples give the same.
        """
        with self._lock:
            if replaced is not None:
                self._count(replaced, -1)
            self._count(commit, 1)
            if replaced is None:
                described = statistics_from_wire(commit.made_by.get("statistics"))
                self._statistics = merge_taps(self._statistics, described)
            time = _time(commit)
            self._first = time if self._first is None else min(time, self._first)
            self._last = time if self._last is None else max(time, self._last)
            sink_seconds = (commit.receive_seconds, commit.fsync_seconds)
            self._recent.append(_Commit(time, commit.samples, commit.tokens, commit.file_bytes, *sink_seconds))
            if len(self._recent) > _MOST_RECENT:
                self._recent = _recent(self._recent)[-_MOST_RECENT // 2 :]

    def _count(self, commit: CommitLine, sign: int) -> None:
        self._sums["shards"] += sign
        self._sums["samples"] += sign * commit.samples
        self._sums["tokens"] += sign * commit.tokens
        self._sums["bytes"] += sign * commit.file_bytes
        self._history.add(_time(commit), sign * commit.tokens)
        for entry in commit.quarantined:
            self._quarantined[entry.reason] += sign
            examples = self._examples.setdefault(entry.reason, [])
            if sign < 0:
                examples[:] = [one for one in examples if one[0] != commit.shard]
            elif len(examples) < MOST_EXAMPLES:
                examples.append((commit.shard, Example(name=entry.id, detail=entry.detail[:300])))

    def statistics(self) -> dict[str, TapStatistics]:
        """Return the statistics of all committed states, by tap."""
        with self._lock:
            return self._statistics

    def counts(self) -> tuple[Amount, dict[str, int], float | None]:
        """Return what is committed, quarantined samples by reason, and the newest commit's Unix time."""
        with self._lock:
            return self._committed(), dict(self._quarantined), self._last

    def _committed(self) -> Amount:
        return Amount(**{name: self._sums[name] for name in ("samples", "tokens", "shards", "bytes")})

    def snapshot(self, now: float) -> Totals:
        """Return the sums at the Unix time *now*."""
        with self._lock:
            self._recent = _recent(self._recent)
            groups = tuple(
                FailureGroup(
                    kind="quarantined",
                    reason=reason,
                    count=count,
                    examples=tuple(example for _, example in self._examples[reason]),
                )
                for reason, count in sorted(self._quarantined.items())
                if count > 0
            )
            width, points = self._history.points(now, commits=self._sums["shards"])
            return Totals(
                committed=self._committed(),
                quarantined=groups,
                first_commit=self._first,
                last_commit=self._last,
                recent=_added_up(self._recent, now),
                points=points,
                point_seconds=width,
            )


class RateHistory:
    """Tokens over time in a bounded number of buckets, which grow as the run does."""

    def __init__(self) -> None:
        self._width = 1.0
        self._buckets: Counter[int] = Counter()
        self._first = self._last = 0  # buckets

    def add(self, time: float, tokens: int) -> None:
        """Count *tokens* at the Unix time *time*; negative ones take back."""
        place = int(time // self._width)
        self._first, self._last = (min(place, self._first), max(place, self._last)) if self._buckets else (place, place)
        self._buckets[place] += tokens
        while self._last - self._first >= _MOST_BUCKETS:
            halved: Counter[int] = Counter()
            for old_place, count in self._buckets.items():
                halved[old_place // 2] += count
            self._width, self._buckets = self._width * 2, halved
            self._first, self._last = self._first // 2, self._last // 2

    def points(self, now: float, *, commits: int) -> tuple[float, tuple[RatePoint, ...]]:
        """Return the length of a point, and the points: few enough that each has about three commits.

        A last point that is not over yet is left out unless it is the only one.
        """
        if not self._buckets:
            return 0.0, ()
        first, last = self._first, self._last
        wanted = max(1, min(MOST_POINTS, commits // 3))
        merged = -(-(last - first + 1) // wanted)
        width = merged * self._width
        sums: Counter[int] = Counter()
        for place, count in self._buckets.items():
            sums[(place - first) // merged] += count
        begin = first * self._width
        shown = (last - first) // merged + 1
        if shown > 1 and begin + shown * width > now:
            shown -= 1
        return width, tuple(
            RatePoint(begin=begin + place * width, tokens_per_second=max(0, sums[place]) / width)
            for place in range(shown)
        )


def _recent(commits: list[_Commit]) -> list[_Commit]:
    ordered = sorted(commits, key=lambda commit: commit.time)
    inside = [commit for commit in ordered if ordered[-1].time - commit.time <= RATE_WINDOW_SECONDS]
    return inside if len(inside) >= 2 else ordered[-RATE_COMMITS:]


def _added_up(commits: list[_Commit], now: float) -> Recent:
    if len(commits) < 2:
        return Recent()
    first, rest = commits[0], commits[1:]
    elapsed = commits[-1].time - first.time
    silence = now - commits[-1].time - _GRACE_INTERVALS * elapsed / len(rest)
    return Recent(
        seconds=elapsed + max(0.0, silence),
        samples=sum(commit.samples for commit in rest),
        tokens=sum(commit.tokens for commit in rest),
        bytes=sum(commit.bytes for commit in rest),
        receive_seconds=sum(commit.receive_seconds for commit in rest),
        fsync_seconds=sum(commit.fsync_seconds for commit in rest),
    )


def _time(commit: CommitLine) -> float:
    return datetime.fromisoformat(commit.time).timestamp()
