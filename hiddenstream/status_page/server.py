"""Serving the status page: ``/``, ``/status.json`` and ``/healthz``, each request in a bounded thread of its own.

It only reads, and answers GET and HEAD alone. Whoever is slow is cut off after REQUEST_SECONDS; when MOST_CONNECTIONS
are served, further ones are closed at once. The work of the process that it is part of never waits for it.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
import threading
import time
from collections.abc import Callable

import h11

from hiddenstream.chassis.logs import log
from hiddenstream.contracts.errors import UsageError
from hiddenstream.status_page.page import SECURITY_HEADERS, page
from hiddenstream.status_page.status import RunStatus

STATUS_PAGE_FAILED = "status_page_failed"
TERMINAL_AGENT = "hiddenstream-terminal"  # of our own programs, for which nobody lingers at the end
REQUEST_SECONDS = 5.0
MOST_CONNECTIONS = 32
_FRESH_SECONDS = 1.0  # a status is told again within this time, not made anew
_HEAD_BYTES = 16 * 1024
_LOGGER = logging.getLogger("hiddenstream.status_page")
_Answer = tuple[int, str, bytes]


class StatusServer:
    """Serves a run's status from threads of its own.

    Attributes:
        url: where the page is.
    """

    def __init__(
        self, status: Callable[[], RunStatus], *, listen: tuple[str, int], hosts: tuple[str, ...] = ()
    ) -> None:
        """Start serving.

        Args:
            status: tells the status; called in any thread, at most once a second.
            listen: host and port; port 0 takes a free one.
            hosts: names that a request may be addressed to, besides addresses, localhost and this machine's name.

        Raises:
            UsageError: the port is taken, or the address is none of this machine.
        """
        host, port = listen
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
        except OSError as error:
            raise UsageError(f"--status-listen {host}:{port}: {error}; choose another port, or 0") from error
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"
        self._hosts = frozenset(name.lower() for name in (*hosts, host, "localhost", socket.gethostname()) if name)
        self._status = _Cached(status)
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._watched_at: float | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, name="status-page", daemon=True)
        self._thread.start()

    def is_watched(self) -> bool:
        """Whether a browser has asked within the last seconds."""
        return self._watched_at is not None and time.monotonic() - self._watched_at < REQUEST_SECONDS

    def refresh(self) -> None:
        """Make the status anew for the next who asks."""
        self._status.forget()

    def close(self) -> None:
        """Stop serving."""
        self._is_closed = True
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._socket.close()
        self._thread.join(REQUEST_SECONDS)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.1)  # too many open files, or the client is gone: that passes
                continue
            if not self._free.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="status-request", daemon=True).start()
            except RuntimeError:  # no more threads
                self._free.release()
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._answer(connection, time.monotonic() + REQUEST_SECONDS)
        except (OSError, h11.ProtocolError):
            return  # the client's doing
        except Exception as error:  # noqa: BLE001 - the page must never end what it shows
            log(_LOGGER, STATUS_PAGE_FAILED, {"message": repr(error)[:500]}, level=logging.WARNING)
        finally:
            self._free.release()

    def _answer(self, connection: socket.socket, deadline: float) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        try:
            request = _read_request(http, connection, deadline)
            if request is None:
                return
            status, content_type, body = self._route(request)
            is_head = request.method == b"HEAD"
        except h11.RemoteProtocolError as error:
            status, content_type, body = error.error_status_hint, "text/plain", b"that is no request\n"
            is_head = False
        headers = {
            **SECURITY_HEADERS,
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        if status == 405:
            headers["Allow"] = "GET, HEAD"
        sent = http.send(h11.Response(status_code=status, headers=list(headers.items()))) or b""
        connection.settimeout(max(0.01, deadline - time.monotonic()))  # for all of sendall together
        connection.sendall(sent if is_head else sent + body)

    def _route(self, request: h11.Request) -> _Answer:
        headers = {name: value.decode("latin-1") for name, value in request.headers}
        if request.method not in (b"GET", b"HEAD"):
            return 405, "text/plain", b"only GET and HEAD\n"
        if not self._may_be_called(_host(headers.get(b"host", ""))):  # a foreign site may have rebound its name to us
            return 403, "text/plain", b"this page is not known by that name; --status-hosts says which names are\n"
        path = request.target.partition(b"?")[0]
        if path == b"/healthz":
            return 200, "text/plain", b"ok\n"
        if path == b"/":
            return 200, "text/html; charset=utf-8", page()
        if path == b"/status.json":
            if not headers.get(b"user-agent", "").startswith(TERMINAL_AGENT):
                self._watched_at = time.monotonic()
            return 200, "application/json", self._status.body()
        return 404, "text/plain", b"only /, /status.json and /healthz are here\n"

    def _may_be_called(self, name: str) -> bool:
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True


class _Cached:
    """A status as JSON, made at most once a second, by one thread at a time."""

    def __init__(self, status: Callable[[], RunStatus]) -> None:
        self._make = status
        self._lock = threading.Lock()
        self._made_at: float | None = None
        self._body = b""

    def body(self) -> bytes:
        """Return the JSON text."""
        with self._lock:
            if self._made_at is None or time.monotonic() - self._made_at >= _FRESH_SECONDS:
                wire = self._make().to_wire()
                self._body = json.dumps(wire, allow_nan=False, separators=(",", ":")).encode()
                self._made_at = time.monotonic()
            return self._body

    def forget(self) -> None:
        """Make it anew for the next who asks."""
        with self._lock:
            self._made_at = None


def _read_request(http: h11.Connection, connection: socket.socket, deadline: float) -> h11.Request | None:
    """Return the request's head, or None if the client goes or is slow."""
    while True:
        event = http.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        connection.settimeout(left)
        http.receive_data(connection.recv(4096))


def _host(header: str) -> str:
    """Return the name of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()
