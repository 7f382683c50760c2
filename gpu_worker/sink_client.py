"""Talking to the sink: asking for the run, asking for a shard or run file, sending one.

Every call makes one attempt; what may be tried again is raised as :class:`SinkUnavailable`. A body is only sent
after the sink's 100 Continue, so a refusal costs no upload. Interface: hiddenstream/contracts/sink_api.py.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h11

from gpu_worker.sink_wire import encoded, next_response, read_body, send_pieces
from hiddenstream.contracts.errors import HiddenstreamError, UsageError, WireError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.sink_api import MAX_RUN_FILE_BYTES, RETRY_STATUSES, run_file_path, run_path, shard_path

_SUCCESSES = frozenset({200, 201})
_SILENCE_SECONDS = 120.0  # the sink may fsync a GiB on a slow disk before it answers
_MAX_ANSWER_BYTES = 16 * 1024 * 1024


class SinkUnavailable(HiddenstreamError):
    """The sink cannot be reached, or says "later"; the same request may succeed later."""

    reason = "sink_unavailable"


class SinkRefused(HiddenstreamError):
    """The sink says "never" to a request.

    Attributes:
        status: HTTP status.
        sink_reason: the sink's own reason, from hiddenstream.contracts.sink_api.
    """

    reason = "sink_refused"
    exit_code = 2  # for a worker that is refused at its start: another start would be refused as well

    def __init__(self, status: int, sink_reason: str, message: str) -> None:
        super().__init__(f"the sink refused ({status} {sink_reason}): {message}")
        self.status, self.sink_reason = status, sink_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What the sink knows of a run."""

    record: RunRecord
    is_complete: bool


class SinkClient:
    """Reaches one run on one sink. Safe to use from several threads: each call opens its own connection."""

    def __init__(self, url: str, run: str, token: str | None) -> None:
        """Remember where the sink is.

        Raises:
            UsageError: *url* is not ``http://HOST:PORT``.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 80
        except ValueError as error:
            raise UsageError(f"--sink {url!r} will not do ({error}): give http://HOST:PORT") from error
        if parts.scheme != "http" or not host or parts.path not in ("", "/"):
            raise UsageError(f"--sink {url!r} will not do: give http://HOST:PORT")
        self._address = (host, port)
        self._host_header = parts.netloc.rpartition("@")[2]
        self._run = run
        self._token = token

    def fetch_run(self) -> RunState:
        """Ask for the run's identity and progress.

        Raises:
            SinkUnavailable: not reachable, or the run is not planned yet.
            SinkRefused: it serves another run, or the token is wrong.
        """
        status, body = self._exchange("GET", run_path(self._run))
        told = _answer(status, body)
        try:
            return RunState(
                record=RunRecord.from_json(json.dumps(told["record"])), is_complete=bool(told["is_complete"])
            )
        except (KeyError, WireError) as error:
            raise SinkRefused(status, "malformed", f"its description of the run: {error}") from error

    def has_shard(self, shard: int) -> bool:
        """Whether the shard is durably stored. Raises like :meth:`fetch_run`."""
        return self._has(shard_path(self._run, shard))

    def has_file(self, name: str) -> bool:
        """Whether the run file *name* is durably stored. Raises like :meth:`fetch_run`."""
        return self._has(run_file_path(self._run, name))

    def fetch_file(self, name: str) -> bytes | None:
        """Return the run file *name* as it is stored, to be checked, or None where there is none yet.

        Raises like :meth:`fetch_run`.
        """
        path = run_file_path(self._run, name)
        status, body = self._exchange("GET", path, max_answer_bytes=MAX_RUN_FILE_BYTES[name])
        if status == 404:
            return None
        if status != 200:
            _answer(status, body)
            raise SinkRefused(status, "malformed", f"no answer to a request for {name}")
        return body

    def put_shard(
        self, shard: int, pieces: Sequence[bytes | memoryview], *, on_phase: Callable[[str], None] = lambda _: None
    ) -> str:
        """Send a shard file and wait until it is durable.

        Args:
            pieces: the file's bytes in order; they must not change before this returns.
            on_phase: called with what comes next: ``answer``, waiting for the sink, or ``send``.

        Returns:
            ``committed``, or ``duplicate`` where the sink had it already.

        Raises:
            SinkUnavailable: not reachable, cut off, or short of disk; nothing was stored that counts.
            SinkRefused: the shard is wrong for this run.
        """
        return self._put(shard_path(self._run, shard), pieces, on_phase)

    def put_file(self, name: str, pieces: Sequence[bytes | memoryview]) -> str:
        """Send the run file *name* and wait until one is durable, this or an earlier one. As :meth:`put_shard`."""
        return self._put(run_file_path(self._run, name), pieces, lambda _: None)

    def _has(self, path: str) -> bool:
        status, body = self._exchange("HEAD", path)
        if status == 404:
            return False
        _answer(status, body)
        return True

    def _put(self, path: str, pieces: Sequence[bytes | memoryview], on_phase: Callable[[str], None]) -> str:
        on_phase("answer")
        status, body = self._exchange("PUT", path, pieces, on_phase)
        _answer(status, body)
        return "committed" if status == 201 else "duplicate"

    def _exchange(
        self,
        method: str,
        path: str,
        pieces: Sequence[bytes | memoryview] = (),
        on_phase: Callable[[str], None] = lambda _: None,
        max_answer_bytes: int = _MAX_ANSWER_BYTES,
    ) -> tuple[int, bytes]:
        headers = [("Host", self._host_header), ("Connection", "close")]
        if self._token:
            headers.append(("Authorization", f"Bearer {self._token}"))
        if method == "PUT":
            headers.append(("Content-Length", str(sum(len(piece) for piece in pieces))))
            headers.append(("Expect", "100-continue"))
        try:
            with self._connected() as connection:
                wire = h11.Connection(h11.CLIENT)
                connection.sendall(encoded(wire, h11.Request(method=method, target=path, headers=headers)))
                if method == "PUT":
                    early = next_response(wire, connection)
                    if not isinstance(early, h11.InformationalResponse):
                        return early.status_code, read_body(wire, connection, max_answer_bytes)
                    on_phase("send")
                    send_pieces(connection, pieces)
                    on_phase("answer")
                else:
                    wire.send(h11.EndOfMessage())
                response = next_response(wire, connection)
                while isinstance(response, h11.InformationalResponse):
                    response = next_response(wire, connection)
                return response.status_code, read_body(wire, connection, max_answer_bytes)
        except (OSError, h11.ProtocolError) as error:
            raise SinkUnavailable(f"sink {self._host_header}: {error}") from error

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(self._address, timeout=10) as connection:
            connection.settimeout(_SILENCE_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection


def _answer(status: int, body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body) if body else {}
    except ValueError:
        told = {"message": repr(body[:200])}
    if not isinstance(told, dict):
        told = {"message": repr(told)}
    reason, message = str(told.get("reason", "")), str(told.get("message", ""))
    if status in RETRY_STATUSES or status >= 500:
        raise SinkUnavailable(f"the sink says later ({status} {reason}): {message}")
    if status not in _SUCCESSES:  # a redirect, or a success that the sink never sends, stores nothing
        raise SinkRefused(status, reason, message)
    return told
