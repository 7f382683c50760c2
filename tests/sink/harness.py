"""A real sink on a free port, and clients that talk to it over real sockets."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hiddenstream.contracts.commit import CommitLine
from hiddenstream.contracts.sink_api import shard_path
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.paths import RunPaths
from sink.serve import Sink
from sink.settings import SinkSettings

LOCALHOST = "127.0.0.1"
DEADLINE_SECONDS = 20.0
PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a client got; *content* is the JSON of the body."""

    status: int
    content: dict[str, Any]
    headers: dict[str, str]


@contextmanager
def a_sink(paths: RunPaths, **changed: Any) -> Iterator[Sink]:
    """Serve *paths* from this process; *changed* replaces settings."""
    settings = SinkSettings(
        run_directory=paths.root,
        listen=(LOCALHOST, 0),
        metrics_listen=(LOCALHOST, 0),
        reserve_bytes=0,
        idle_seconds=DEADLINE_SECONDS,
    )
    sink = Sink(replace(settings, **changed))
    try:
        yield sink
    finally:
        sink.close()


@contextmanager
def a_sink_process(paths: RunPaths, *flags: str, before: Sequence[str] = ()) -> Iterator[tuple[Any, int]]:
    """Run ``python -m sink``; yield the process and its port once it listens."""
    command = [*before, sys.executable, "-m", "sink", str(paths.root), "--listen", f"{LOCALHOST}:0"]
    command += ["--metrics-listen", f"{LOCALHOST}:0", "--reserve-bytes", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PROJECT, env={**os.environ})
    try:
        yield process, int(event_of(process, "sink_listening")["port"])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def event_of(process: Any, event: str) -> dict[str, Any]:
    """Return the next log line of this event."""
    for line in process.stdout:
        fields: dict[str, Any] = json.loads(line)
        if fields["event"] == event:
            return fields
    raise AssertionError(f"the process ended without {event}")


def ask(port: int, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Reply:
    """Send one request over a connection of its own."""
    connection = http.client.HTTPConnection(LOCALHOST, port, timeout=DEADLINE_SECONDS)
    try:
        return ask_on(connection, method, path, body, headers)
    finally:
        connection.close()


def ask_on(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """Send one request over *connection*."""
    connection.request(method, path, body, headers or {})
    return _reply(connection.getresponse())


def _reply(response: http.client.HTTPResponse) -> Reply:
    text = response.read()
    return Reply(status=response.status, content=json.loads(text) if text else {}, headers=dict(response.getheaders()))


def put(port: int, shard: int, data: bytes, headers: dict[str, str] | None = None, *, run: str = "test") -> Reply:
    """Upload *data* as *shard*."""
    return ask(port, "PUT", shard_path(run, shard), data, headers)


def a_head(shard: int, length: int, *more: str) -> bytes:
    """Return the head of an upload of *length* bytes."""
    lines = [f"PUT {shard_path('test', shard)} HTTP/1.1", "Host: sink", f"Content-Length: {length}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def connect(port: int) -> socket.socket:
    """Open a bare socket to the sink."""
    return socket.create_connection((LOCALHOST, port), timeout=DEADLINE_SECONDS)


def reply_on(client: socket.socket) -> Reply:
    """Read one answer from a bare socket."""
    response = http.client.HTTPResponse(client)
    response.begin()
    return _reply(response)


def wait_for(condition: Callable[[], Any]) -> Any:
    """Return what *condition* gives once it is true."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)  # between two looks
    return value


def metric(sink: Sink, name: str, **labels: str) -> float:
    """Scrape one series."""
    with urllib.request.urlopen(f"http://{LOCALHOST}:{sink.metrics_port}/metrics") as answer:
        text = answer.read().decode()
    pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
    series = re.escape(f"hiddenstream_sink_{name}" + (f"{{{pairs}}}" if pairs else ""))
    found = re.search(rf"^{series} (\S+)$", text, re.MULTILINE)
    assert found, f"no series {name} in\n{text}"
    return float(found[1])


def ledger_lines(paths: RunPaths, sink: str = "sink") -> list[CommitLine]:
    """Return every line of one sink's ledger."""
    file = paths.ledger / f"{sink}.jsonl"
    return [CommitLine.from_line(line) for line in file.read_bytes().splitlines(keepends=True)] if file.exists() else []


def committed(paths: RunPaths) -> dict[int, CommitLine]:
    """Return what a reader of the ledgers finds."""
    reader = LedgerReader(paths.ledger)
    reader.poll()
    assert not reader.problems
    return reader.commits


def files_left(paths: RunPaths) -> list[str]:
    """Return every file that shards leave in the run directory, but locks."""
    found: list[str] = []
    for folder in (paths.shards, paths.incoming, paths.ledger, paths.root / "damaged"):
        found += [str(file.relative_to(paths.root)) for file in folder.rglob("*") if file.is_file()]
    return sorted(name for name in found if not name.endswith("/lock"))
