"""Making the pictures of the status page in docs/pictures, from made facts: no run is behind them.

    python -m docs.status_pictures [FOLDER]

Needs Chromium.
"""

from __future__ import annotations

import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from docs.browser import browser_command
from hiddenstream.contracts.worker_report import GpuReport
from hiddenstream.status_page.parts import (
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
from hiddenstream.status_page.server import StatusServer
from hiddenstream.status_page.status import RunStatus

FOLDER = Path(__file__).parent / "pictures"
_SHARD = Amount(samples=64, tokens=65_536, shards=1, bytes=2_684_682_240)
_GIB = 1024**3


def made_worker(number: int, *, workers: int, state: str = "working", message: str = "") -> WorkerStatus:
    """Return a worker with a GPU of its own."""
    chance = random.Random(number)
    rate = 9_400 + 500 * chance.random() if state == "working" else 0.0
    is_loaded = state in ("working", "idle", "draining")
    gpu = GpuReport(
        uuid=f"GPU-{number:08x}",
        name="NVIDIA H200",
        memory_used_bytes=round((61 + 3 * chance.random()) * _GIB) if is_loaded else round(1.2 * _GIB),
        memory_total_bytes=141 * _GIB,
        utilization=0.94 + 0.06 * chance.random() if state == "working" else 0.0,
        power_watts=640 + 40 * chance.random() if state == "working" else 118.0,
        temperature_celsius=58 + 9 * chance.random() if state == "working" else 36.0,
    )
    return WorkerStatus(
        worker=f"node{number // 8}-gpu{number % 8}" if workers > 8 else f"worker-{number}",
        state=state,
        message=message,
        device="cuda:0 NVIDIA H200",
        tokens_per_second=rate,
        share=0.0,
        gpus=(gpu,),
        allocated_bytes=58 * _GIB,
        bottleneck="gpu" if state == "working" else "none",
        shards_in_hand=2,
        shards=120 + number,
        tokens=7_900_000,
        failures=0,
        engine_deaths=0,
        heard_seconds=round(chance.random(), 1),
    )


def made_status(*, workers: int = 4, done: float = 0.43, now: float | None = None) -> RunStatus:
    """Return a run of 14,000 shards that is under way."""
    now = time.time() if now is None else now
    crew = [made_worker(number, workers=workers) for number in range(workers)]
    if workers > 8:
        crew[17] = made_worker(17, workers=workers, state="waiting_for_sink", message="connection refused by the sink")
        crew[42] = replace(made_worker(42, workers=workers, state="loading"), engine_deaths=1)
    rate = sum(worker.tokens_per_second for worker in crew)
    crew = [replace(worker, share=worker.tokens_per_second / rate if rate else 0.0) for worker in crew]
    planned = _times(_SHARD, 14_000)
    committed = _times(_SHARD, round(14_000 * done))
    began = now - committed.tokens / max(rate, 1.0)
    return RunStatus(
        time=now,
        version="0.1.0",
        run="conversations-2026",
        model="Qwen/Qwen3-8B",
        taps=("block.1", "block.9", "block.17", "block.25", "block.33"),
        compute_dtype="bfloat16",
        stored_dtype="bfloat16",
        fingerprint="5f0c2e9ab1d47386",
        state="running",
        message=f"{14_000 - committed.shards:,} shards to do.",
        planned=planned,
        committed=committed,
        quarantined_samples=3,
        first_commit=began,
        last_commit=now - 1,
        speed=Speed(
            tokens_per_second=rate,
            samples_per_second=rate / 1024,
            bytes_per_second=rate * 40_965,
            eta_seconds=(planned.tokens - committed.tokens) / rate if rate else None,
            ends_at=now + (planned.tokens - committed.tokens) / rate if rate else None,
            points=_points(began, now, rate),
            point_seconds=(now - began) / 120,
        ),
        bottleneck="gpu",
        bottleneck_message=f"The forward passes are the limit, as it should be. So say {workers} of {workers} workers.",
        workers=tuple(crew),
        live_workers=workers,
        queue=QueueStatus(
            waiting=212,
            waiting_bytes=66_800_000,
            in_work=2 * workers,
            oldest_seconds=74.0,
            redelivered=2,
            redis_used_bytes=91_000_000,
            redis_limit_bytes=1_073_741_824,
        ),
        disk=DiskStatus(
            free_bytes=41_000_000_000_000,
            total_bytes=61_000_000_000_000,
            reserve_bytes=1_073_741_824,
            to_come_bytes=planned.bytes - committed.bytes,
        ),
        failures=made_failures(),
        log=tuple(_log(now)),
    )


def made_failures() -> tuple[FailureGroup, ...]:
    """Return failures of two kinds."""
    return (
        FailureGroup(
            kind="quarantined",
            reason="non_finite",
            count=3,
            examples=tuple(Example(name=f"conversation-{n}", detail="block.33 is not finite") for n in (88, 4012, 9)),
        ),
        FailureGroup(
            kind="rejected",
            reason="over_long",
            count=1_204,
            examples=tuple(
                Example(name=f"conversation-{n}", row=n, detail=f"{4096 + n} tokens; 4096 are allowed")
                for n in range(17, 37)
            ),
        ),
    )


def _times(amount: Amount, number: int) -> Amount:
    return Amount(
        samples=amount.samples * number, tokens=amount.tokens * number, shards=number, bytes=amount.bytes * number
    )


def _points(began: float, now: float, rate: float) -> tuple[RatePoint, ...]:
    chance, width = random.Random(7), (now - began) / 120
    rates = [
        rate
        * (
            min(1.0, (n + 1) / 4)
            - (0.55 if 61 <= n < 65 else 0.0)
            + 0.02 * chance.uniform(-1, 1)
            + 0.015 * math.sin(n / 6)
        )
        for n in range(120)
    ]
    return tuple(RatePoint(begin=began + n * width, tokens_per_second=max(0.0, r)) for n, r in enumerate(rates))


def _log(now: float) -> Sequence[LogLine]:
    events = [
        ("info", "worker-2", "shard_extracted", "shard 6019, tokens 65536, forward_seconds 6.71, outcome committed"),
        ("info", "worker-0", "shard_extracted", "shard 6017, tokens 65536, forward_seconds 6.68, outcome committed"),
        ("info", "sink", "shard_committed", "shard 6018, file_bytes 2684682240, fsync_seconds 0.41"),
        ("warning", "producer", "shards_redelivered", "shards [5981, 5990]"),
        ("error", "worker-3", "engine_died", "exit_code -9, shards_in_hand [5981, 5990]"),
        ("info", "worker-3", "model_loaded", "blocks 34, blocks_of_model 36, load_seconds 4.2"),
    ]
    for place, (level, source, event, text) in enumerate(events):
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now - 2 - 3 * place)) + ".000Z"
        yield LogLine(time=stamp, level=level, source=source, event=event, text=text)


def take_picture(status: RunStatus, file: Path, *, size: tuple[int, int], is_dark: bool = False) -> None:
    """Serve *status* and save what a browser of this window size shows."""
    server = StatusServer(lambda: status, listen=("127.0.0.1", 0))
    scheme = ["--blink-settings=preferredColorScheme=0"] if is_dark else ["--blink-settings=preferredColorScheme=1"]
    try:
        with tempfile.TemporaryDirectory() as profile:
            command = [*browser_command(Path(profile), size=size), *scheme, f"--screenshot={file}", server.url]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
    finally:
        server.close()


def main(arguments: Sequence[str]) -> int:
    """Make all pictures; return the exit code."""
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    take_picture(made_status(), folder / "status-desktop.png", size=(1280, 800))
    take_picture(made_status(), folder / "status-phone-dark.png", size=(390, 844), is_dark=True)
    take_picture(made_status(workers=64), folder / "status-64-workers.png", size=(1280, 960))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
