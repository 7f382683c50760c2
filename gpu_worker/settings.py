"""The worker's settings."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from hiddenstream.chassis.settings import address, device_name, is_on, seconds, setting, short_name, whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Take shards of one run from the queue, run them through the model, and send their states to the sink."""

    redis: str = setting(means="URL of the queue: redis://[USER:PASSWORD@]HOST:PORT/DB, rediss:// or unix://PATH")
    sink: str = setting(means="URL of the sink: http://HOST:PORT")
    run: str = setting(parse=short_name, means="name of the run to work for, as `hiddenstream plan` printed it")
    model: str | None = setting(
        None, means="path or hub id of the model; needed where it lies elsewhere than for the producer"
    )
    device: str = setting("auto", parse=device_name, means="cpu, cuda or cuda:N; auto takes CUDA where there is one")
    gpus: int = setting(
        1,
        parse=whole_number(least=1, most=16),
        means="GPUs that this worker claims and spreads its model over; more than 1 only where the model needs it",
    )
    gpu_locks: Path | None = setting(
        None,
        parse=Path,
        means="folder of the lock files by which this host's workers claim GPUs, the same for all of them;"
        " hiddenstream-gpus-UID in the system's temporary folder unless given",
    )
    token_budget: int | None = setting(
        None,
        parse=whole_number(least=1),
        means="most token slots of one forward batch; lowers the plan's budget on a small GPU",
    )
    name: str = setting(
        socket.gethostname().replace(".", "-")[:64],
        parse=short_name,
        means="what this worker is called in logs and ledger",
    )
    token: str | None = setting(None, means="bearer token that the sink asks for")
    token_file: Path | None = setting(None, parse=Path, means="file that holds the token; safer than the flag")
    metrics_listen: tuple[str, int] = setting(
        ("127.0.0.1", 9102), parse=address, means="HOST:PORT of /metrics and /healthz; port 0 takes a free one"
    )
    stall_seconds: float = setting(
        600.0,
        parse=seconds,
        means="an engine that finishes no forward batch for so long is killed; choose ten times the longest batch",
    )
    load_seconds: float = setting(
        3600.0, parse=seconds, means="an engine that has not loaded the model after so long is killed"
    )
    stay: bool = setting(
        False,
        parse=is_on,
        means="at the run's end, or when refused, keep serving /metrics until SIGTERM, and only then exit",
    )
