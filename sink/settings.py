"""The sink's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hiddenstream.chassis.settings import address, seconds, setting, short_name, whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Take shards over HTTP, check them against the plan, and store them durably in a run directory."""

    run_directory: Path = setting(
        means="the run directory that shards go to; it may be empty until the producer has planned the run",
        parse=Path,
        is_argument=True,
    )
    listen: tuple[str, int] = setting(
        ("127.0.0.1", 8760),
        means="HOST:PORT that workers send shards to; port 0 takes a free one; choose 0.0.0.0 for workers elsewhere",
        parse=address,
    )
    name: str = setting(
        "sink",
        means="name of this sink's ledger and folder; choose another one for each sink of the same run directory",
        parse=short_name,
    )
    token: str | None = setting(
        None,
        means="secret that every request but /healthz must carry; set it wherever others can reach the port;"
        " prefer --token-file, since command lines can be read by other users",
    )
    token_file: Path | None = setting(None, means="file that holds the secret; it wins over --token", parse=Path)
    reserve_bytes: int = setting(
        1 << 30,
        means="disk space that the sink never uses, in bytes or with a unit, as in 2G;"
        " choose what else on that disk needs to go on working",
        parse=whole_number(least=0),
    )
    metrics_listen: tuple[str, int] = setting(
        ("127.0.0.1", 9103), means="HOST:PORT of /metrics; port 0 takes a free one", parse=address
    )
    max_connections: int = setting(
        64,
        means="connections served at once, each taking a thread and 1 MiB; choose four for each GPU worker, or more",
        parse=whole_number(least=1),
    )
    idle_seconds: float = setting(
        60.0,
        means="silence, in seconds, after which a connection is closed; choose more than the longest stall of the"
        " network that should not cost an upload",
        parse=seconds,
    )
    log_file: Path | None = setting(
        None,
        means="file that log lines are appended to, besides standard output; past 32 MiB it is renamed to FILE.1;"
        " RUN_DIRECTORY/logs/sink.jsonl shows them on the status page",
        parse=Path,
    )
