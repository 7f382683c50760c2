"""The parts of a run's status. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass

from hiddenstream.contracts.worker_report import GpuReport

GONE = "gone"  # a worker whose report ran out
FAILURE_KINDS = ("quarantined", "stuck", "rejected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much of a run; bytes are those of shard files."""

    samples: int = 0
    tokens: int = 0
    shards: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """Tokens per second from the Unix time *begin* on, until the next point's."""

    begin: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast it goes, by the ledger's commit times; None where there are too few commits to tell.

    Attributes:
        tokens_per_second, samples_per_second, bytes_per_second: over the last five minutes of commits.
        eta_seconds: what the rest takes at that rate; 0 when complete. ends_at: the same as Unix time.
        points: tokens per second over the whole run, at most 120 of them.
        point_seconds: how long each of them is.
    """

    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    bytes_per_second: float | None = None
    eta_seconds: float | None = None
    ends_at: float | None = None
    points: tuple[RatePoint, ...] = ()
    point_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker, as it last reported itself.

    Attributes:
        state: one of WORKER_STATES, or ``gone`` for one whose report ran out.
        share: of all workers' tokens per second, 0 to 1.
        shards_in_hand: how many.
        heard_seconds: since its report was last seen to change.
    """

    worker: str
    state: str
    message: str
    device: str
    tokens_per_second: float
    share: float
    gpus: tuple[GpuReport, ...]
    allocated_bytes: int
    bottleneck: str
    shards_in_hand: int
    shards: int
    tokens: int
    failures: int
    engine_deaths: int
    heard_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskStatus:
    """The run directory's disk.

    Attributes:
        free_bytes, total_bytes: as a user without privileges sees them.
        reserve_bytes: below so many free, no new shards are delivered.
        to_come_bytes: what the rest of the run will take.
        full_in_seconds: until the reserve would be touched at the present rate, also where the run ends before; None
            where it has ended, or where there is no rate to tell from.
    """

    free_bytes: int
    total_bytes: int
    reserve_bytes: int
    to_come_bytes: int
    full_in_seconds: float | None = None

    @property
    def is_enough(self) -> bool:
        """Whether the rest of the run fits above the reserve."""
        return self.to_come_bytes <= self.free_bytes - self.reserve_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """The queue, as the producer sees it.

    Attributes:
        waiting, waiting_bytes: shards on the queue and their payloads.
        in_work: shards that workers hold leases on.
        oldest_seconds: since the delivery that waits longest was put on the queue.
        redelivered: deliveries beyond the first, of this producer.
        redis_used_bytes, redis_limit_bytes: Redis' memory; limit 0 is none.
        malformed_reports: workers' reports that could not be read, since the producer started.
    """

    is_reachable: bool = True
    waiting: int = 0
    waiting_bytes: int = 0
    in_work: int = 0
    oldest_seconds: float = 0.0
    redelivered: int = 0
    redis_used_bytes: int = 0
    redis_limit_bytes: int = 0
    malformed_reports: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One row, sample or shard that failed. *row* is its place in the input, for rejected ones."""

    name: str
    row: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """What failed for one reason: how many, and the first few of them. *kind* is one of FAILURE_KINDS."""

    kind: str
    reason: str
    count: int
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of some service's log, for people."""

    time: str
    level: str
    source: str
    event: str
    text: str
