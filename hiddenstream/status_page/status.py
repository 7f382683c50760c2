"""The facts that people see of a run: ``/status.json``, the page and the terminal are made of them. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hiddenstream.contracts.checked import checked
from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.worker_report import BOTTLENECKS, WORKER_STATES, GpuReport
from hiddenstream.status_page.parts import (
    GONE,
    Amount,
    DiskStatus,
    Example,
    FailureGroup,
    LogLine,
    QueueStatus,
    RatePoint,
    Speed,
    WorkerStatus,
)

RUN_STATES = (
    "planning",
    "waiting_for_redis",
    "waiting_for_disk",
    "waiting_for_sink",
    "waiting_for_workers",
    "running",
    "stopping",
    "complete",
    "complete_with_quarantined",
    "stuck",
    "not_complete",
    "refused",
)
ENDED_STATES = RUN_STATES[-5:]
RUN_BOTTLENECKS = (*BOTTLENECKS, "disk", "producer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run, now. Times are Unix times.

    Attributes:
        run: its name; that of its folder while it is planned.
        state: one of RUN_STATES. message: the state in a sentence.
        exit_code: what the producer ends with, or None while it has not ended.
        rows_read: rows of the input that planning has read so far; 0 once there is a plan.
        planned, committed: amounts; planned bytes are those of states, tokens and masks.
        quarantined_samples: planned samples that are left out.
        bottleneck: one of RUN_BOTTLENECKS. bottleneck_message: the same in a sentence.
        workers: by name, at most 256. live_workers: how many of all report.
        queue, disk: None where nobody has looked.
        log: newest first.
    """

    time: float
    version: str
    run: str
    state: str
    message: str
    planned: Amount
    committed: Amount
    model: str = ""
    taps: tuple[str, ...] = ()
    compute_dtype: str = ""
    stored_dtype: str = ""
    fingerprint: str = ""
    exit_code: int | None = None
    rows_read: int = 0
    quarantined_samples: int = 0
    first_commit: float | None = None
    last_commit: float | None = None
    speed: Speed = Speed()
    bottleneck: str = "none"
    bottleneck_message: str = ""
    workers: tuple[WorkerStatus, ...] = ()
    live_workers: int = 0
    queue: QueueStatus | None = None
    disk: DiskStatus | None = None
    failures: tuple[FailureGroup, ...] = ()
    log: tuple[LogLine, ...] = ()

    @property
    def done_share(self) -> float:
        """Committed share of the tokens, 0 to 1; those of quarantined samples never are."""
        if self.state in ("complete", "complete_with_quarantined"):
            return 1.0
        return self.committed.tokens / self.planned.tokens if self.planned.tokens else 0.0

    def to_wire(self) -> dict[str, Any]:
        """Return what ``/status.json`` holds."""
        wire = asdict(self) | {"done_share": self.done_share, "has_ended": self.state in ENDED_STATES}
        if self.disk is not None:
            wire["disk"]["is_enough"] = self.disk.is_enough
        return wire

    @classmethod
    def from_wire(cls, wire: Any) -> RunStatus:
        """Rebuild a status, or refuse it.

        Raises:
            WireError: it is no status of this version.
        """
        try:
            fields = {name: value for name, value in wire.items() if name not in ("done_share", "has_ended")}
            speed, disk, queue = fields.pop("speed"), fields.pop("disk"), fields.pop("queue")
            points = tuple(checked(RatePoint(**point)) for point in speed.pop("points"))
            status = cls(
                planned=checked(Amount(**fields.pop("planned"))),
                committed=checked(Amount(**fields.pop("committed"))),
                taps=tuple(fields.pop("taps")),
                speed=checked(Speed(points=points, **speed)),
                disk=disk and checked(DiskStatus(**{name: disk[name] for name in disk if name != "is_enough"})),
                queue=queue and checked(QueueStatus(**queue)),
                workers=tuple(_worker(worker) for worker in fields.pop("workers")),
                failures=tuple(_failures(group) for group in fields.pop("failures")),
                log=tuple(checked(LogLine(**line)) for line in fields.pop("log")),
                **fields,
            )
            checked(status)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError(f"a run's status is malformed: {error!r:.200}") from error
        if status.state not in RUN_STATES or status.bottleneck not in RUN_BOTTLENECKS:
            raise WireError(f"a run's status says {status.state!r:.40}, {status.bottleneck!r:.40}")
        return status


def _worker(wire: Mapping[str, Any]) -> WorkerStatus:
    gpus = tuple(checked(GpuReport(**gpu)) for gpu in wire["gpus"])
    worker = checked(WorkerStatus(**{**wire, "gpus": gpus}))
    if worker.state not in (*WORKER_STATES, GONE):
        raise ValueError(f"a worker that is {worker.state!r:.40}")
    return worker


def _failures(wire: Mapping[str, Any]) -> FailureGroup:
    return checked(FailureGroup(**{**wire, "examples": tuple(checked(Example(**one)) for one in wire["examples"])}))
