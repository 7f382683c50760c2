"""One client's connection: HTTP framing by h11, bodies straight from the socket.

h11 copies every byte of a body it parses, which costs two thirds of the speed. So it is given the head of a request
only, and frames our answer; the body is read by :class:`sink.body.Body`. Each request gets a new h11 connection,
which starts with what was received beyond the last one. A client whose body was not read to its end cannot be served
again, because it may be sending still: it gets its answer, then the connection is closed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

import h11

from hiddenstream.contracts.sink_api import SHARD_REFUSALS
from sink.body import Body
from sink.refusals import UploadAborted
from sink.routes import REQUEST_FAILED, Answer, Request, Service, answer_request

BUFFER_BYTES = 1 << 20
_MAX_HEAD_BYTES = 16 * 1024
_LINGER_SECONDS = 20.0
_LOGGER = logging.getLogger("sink")


class Connection:
    """Serves one client in a thread of its own.

    Attributes:
        is_busy: whether a request is being answered.
    """

    def __init__(
        self,
        client: socket.socket,
        service: Service,
        *,
        peer: str,
        idle_seconds: float,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._client, self._service, self._peer = client, service, peer
        self._idle_seconds, self._is_stopping = idle_seconds, is_stopping
        self._beyond = b""  # received, and of the next request
        self._buffer: bytearray | None = None
        self._lock = threading.Lock()  # between becoming busy and being told to stop
        self.is_busy = False

    def serve(self) -> None:
        """Answer requests until the client or the sink has had enough."""
        with self._client:
            try:
                while self._serve_request():
                    pass
            except (OSError, UploadAborted):  # counted and logged where it mattered
                pass

    def stop_if_idle(self) -> None:
        """End the connection unless a request is being answered."""
        with self._lock:
            if not self.is_busy:
                self.end()

    def end(self) -> None:
        """End the connection now."""
        with suppress(OSError):  # it has ended
            self._client.shutdown(socket.SHUT_RDWR)

    def _serve_request(self) -> bool:
        """Answer one request; return whether there may be another."""
        framing = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        try:
            head = self._receive_head(framing)
        except h11.RemoteProtocolError as error:
            refusal = {"reason": "malformed", "message": f"this is not HTTP/1.1: {error}"}
            self._service.metrics.refusals.labels(reason="malformed").inc()
            self._send(framing, Answer(status=SHARD_REFUSALS["malformed"], content=refusal), is_last=True)
            return self._linger()
        if head is None:
            return False
        with self._lock:
            self.is_busy = True
        request = self._request_of(framing, head)
        answer = self._answer(request)
        self._keep_beyond(framing, request.body)
        is_read = not request.body.remaining_bytes if request.body else not _is_chunked(head)
        is_last = not is_read or self._is_stopping()
        may_continue = self._send(framing, answer, is_last=is_last, is_head=request.method == "HEAD")
        with self._lock:
            self.is_busy = False
        if not is_read:
            return self._linger()
        return may_continue and not self._is_stopping()

    def _receive_head(self, framing: h11.Connection) -> h11.Request | None:
        """Return the next request's head, or None where the client is done or silent for too long."""
        deadline = monotonic() + self._idle_seconds
        if self._beyond:
            framing.receive_data(self._beyond)
            self._beyond = b""
        while (event := framing.next_event()) is h11.NEED_DATA:
            self._client.settimeout(max(0.001, deadline - monotonic()))
            framing.receive_data(self._client.recv(65536))
        self._client.settimeout(self._idle_seconds)
        return event if isinstance(event, h11.Request) else None

    def _request_of(self, framing: h11.Connection, head: h11.Request) -> Request:
        headers = dict(head.headers)
        early, _ = framing.trailing_data
        announced = headers.get(b"content-length")
        body = None
        if announced is not None and not _is_chunked(head):
            length = int(announced)
            body = Body(
                self._client,
                length_bytes=length,
                early=early,
                go_ahead=_go_ahead(framing) if length and not early else None,
                buffer=self._own_buffer() if length else bytearray(),
            )
        return Request(
            method=head.method.decode("ascii"),
            target=head.target.decode("ascii"),
            authorization=headers.get(b"authorization", b""),
            body=body,
            peer=self._peer,
        )

    def _own_buffer(self) -> bytearray:
        if self._buffer is None:
            self._buffer = bytearray(BUFFER_BYTES)
        return self._buffer

    def _answer(self, request: Request) -> Answer:
        try:
            return answer_request(self._service, request)
        except UploadAborted:
            raise
        except Exception as error:
            facts = {"target": request.target, "message": f"this is a bug: {error!r}"}
            _LOGGER.error(REQUEST_FAILED, extra={"facts": facts}, exc_info=True)
            return Answer(status=500, content={"reason": "error", "message": "a bug of the sink; see its log"})

    def _keep_beyond(self, framing: h11.Connection, body: Body | None) -> None:
        early, _ = framing.trailing_data
        self._beyond = bytes(early[body.length_bytes if body else 0 :])

    def _send(self, framing: h11.Connection, answer: Answer, *, is_last: bool, is_head: bool = False) -> bool:
        """Send *answer*; return whether the connection can be used again."""
        if answer.file is not None:
            return self._send_file(framing, answer.file)
        content = json.dumps(answer.content).encode() + b"\n"
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
        if answer.retry_after_seconds is not None:
            headers.append(("Retry-After", str(answer.retry_after_seconds)))
        if is_last:
            headers.append(("Connection", "close"))
        sent = framing.send(h11.Response(status_code=answer.status, headers=headers)) or b""
        if not is_head:
            sent += framing.send(h11.Data(data=content)) or b""
        self._client.sendall(sent + (framing.send(h11.EndOfMessage()) or b""))
        return framing.our_state is h11.DONE

    def _send_file(self, framing: h11.Connection, file: Path) -> bool:
        """Send a file's bytes by the kernel, past h11, and end the connection after it."""
        with open(file, "rb") as opened:
            headers = [
                ("Content-Type", "application/octet-stream"),
                ("Content-Length", str(os.fstat(opened.fileno()).st_size)),
                ("Connection", "close"),
            ]
            self._client.sendall(framing.send(h11.Response(status_code=200, headers=headers)) or b"")
            self._client.sendfile(opened)
        return False

    def _linger(self) -> bool:
        """Let a client that is still sending finish, since closing now could take our answer from it."""
        self._client.shutdown(socket.SHUT_WR)
        deadline = monotonic() + min(_LINGER_SECONDS, self._idle_seconds)
        scrap = self._own_buffer()
        while (left := deadline - monotonic()) > 0 and not self._is_stopping():
            self._client.settimeout(left)
            if not self._client.recv_into(scrap):
                break
        return False


def _go_ahead(framing: h11.Connection) -> bytes | None:
    if not framing.they_are_waiting_for_100_continue:
        return None
    return framing.send(h11.InformationalResponse(status_code=100, headers=[]))


def _is_chunked(head: h11.Request) -> bool:
    return any(name == b"transfer-encoding" for name, _ in head.headers)
