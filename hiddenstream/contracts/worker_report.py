"""What a worker says of itself once a second, through Redis, for people who watch. No I/O here.

A report decides nothing: plan, ledger and leases do. It is gone :data:`REPORT_SECONDS` after the worker is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgpack

from hiddenstream.contracts.checked import checked
from hiddenstream.contracts.errors import WireError

REPORT_SECONDS = 5.0
REPORT_BYTES = 64 * 1024  # the most that is read of one
# What a worker is at. ``idle``: its model is loaded and no job comes. ``refused``: it cannot serve this run.
WAYS = ("packed", "padded", "equal_lengths", "one_at_a_time")  # of batching, from the fastest on
WORKER_STATES = (
    "waiting_for_sink",
    "waiting_for_queue",
    "waiting_for_gpu",
    "loading",
    "working",
    "idle",
    "draining",
    "complete",
    "refused",
)
# What an engine's main thread is at; at any time exactly one of these.
ACTIVITIES = ("forward", "copy", "check", "hash", "wait_for_buffer", "wait_for_sink", "wait_for_job", "other")
# What holds a worker back, told from its activities: ``gpu`` is as it should be.
BOTTLENECKS = ("gpu", "copy", "host", "upload", "sink", "queue", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """One GPU of a worker, as its driver describes it; None where the driver does not say.

    Attributes:
        uuid, name: as NVML gives them.
        memory_used_bytes, memory_total_bytes: of the whole GPU, other processes included.
        utilization: share of the last moments in which a kernel ran, 0 to 1.
        power_watts, temperature_celsius: now.
    """

    uuid: str
    name: str
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """A worker, now.

    Attributes:
        worker: its name.
        state: one of WORKER_STATES.
        message: why it waits or refuses, for people; empty where there is nothing to say.
        device: what its engine runs on, for people; empty before the model is loaded.
        gpus: those that it has claimed.
        allocated_bytes, reserved_bytes: of device memory, by the engine's allocator.
        shards_in_hand: taken and not answered for yet.
        shards, samples, tokens: committed by this worker since it started.
        failures: deliveries that failed here. engine_deaths: engines that ended unasked.
        tokens_per_second: committed, over the last minute.
        activity_shares: share of the last minute by activity; empty before the first job.
        bottleneck: one of BOTTLENECKS, over the last minute.
        log_lines: its latest log lines, oldest first, one JSON object each.
    """

    worker: str
    state: str
    message: str = ""
    device: str = ""
    gpus: tuple[GpuReport, ...] = ()
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    shards_in_hand: tuple[int, ...] = ()
    shards: int = 0
    samples: int = 0
    tokens: int = 0
    failures: int = 0
    engine_deaths: int = 0
    tokens_per_second: float = 0.0
    activity_shares: Mapping[str, float]
    bottleneck: str = "none"
    log_lines: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the report as msgpack."""
        return bytes(msgpack.packb(asdict(self)))

    @classmethod
    def decode(cls, data: bytes) -> WorkerReport:
        """Rebuild a report, or refuse it.

        Raises:
            WireError: malformed, too long, or with a word that is on no list.
        """
        if len(data) > REPORT_BYTES:
            raise WireError(f"a worker's report of {len(data)} bytes; {REPORT_BYTES} are the most")
        try:
            wire: dict[str, Any] = msgpack.unpackb(data)
            gpus = tuple(checked(GpuReport(**gpu)) for gpu in wire.pop("gpus"))
            lists: dict[str, Any] = {name: tuple(wire.pop(name)) for name in ("shards_in_hand", "log_lines")}
            report = checked(cls(gpus=gpus, **lists, **wire))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError(f"a worker's report is malformed: {error!r:.200}") from error
        if report.state not in WORKER_STATES or report.bottleneck not in BOTTLENECKS:
            raise WireError(f"a worker's report says {report.state!r:.40}, {report.bottleneck!r:.40}")
        return report
