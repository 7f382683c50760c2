"""Accepting connections, at most so many at once, and letting go of them in an orderly way."""

from __future__ import annotations

import logging
import socket
import threading
from time import monotonic

from hiddenstream.chassis.logs import log
from hiddenstream.contracts.errors import UsageError
from sink.connection import Connection
from sink.refusals import RETRY_AFTER_SECONDS
from sink.routes import Service

ACCEPT_FAILED = "accept_failed"
CONNECTIONS_CUT = "connections_cut"
_LOGGER = logging.getLogger("sink")
_FULL_BODY = b'{"reason": "not_ready", "message": "the sink serves as many connections as it may; try again"}\n'
_FULL = b"HTTP/1.1 503 Busy\r\nRetry-After: %d\r\nConnection: close\r\nContent-Type: application/json\r\n" % (
    RETRY_AFTER_SECONDS
) + b"Content-Length: %d\r\n\r\n%s" % (len(_FULL_BODY), _FULL_BODY)
_FULL_WAIT_SECONDS = 0.2  # for the request of a client that is turned away: closing on it unread would hide the answer


class Server:
    """Listens, and serves each connection in a thread.

    Attributes:
        host, port: where it listens, also where port 0 was asked for.
    """

    def __init__(self, service: Service, *, listen: tuple[str, int], max_connections: int, idle_seconds: float) -> None:
        """Start serving.

        Raises:
            UsageError: the address cannot be listened on.
        """
        self._service, self._max_connections, self._idle_seconds = service, max_connections, idle_seconds
        self._connections: dict[Connection, threading.Thread] = {}
        self._changed = threading.Condition()
        self._is_stopping = threading.Event()
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        try:
            self._listener = socket.create_server(listen, family=family, backlog=128)
        except OSError as error:
            raise UsageError(f"--listen {listen[0]}:{listen[1]}: {error}; choose another port, or 0") from error
        self.host, self.port = self._listener.getsockname()[:2]
        self._acceptor = threading.Thread(target=self._accept_all, name="accept", daemon=True)
        self._acceptor.start()

    def close(self, *, grace_seconds: float) -> None:
        """Stop accepting, let requests under way finish for up to *grace_seconds*, and end all connections."""
        self._is_stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._acceptor.join()
        self._listener.close()
        deadline = monotonic() + grace_seconds
        with self._changed:
            for connection in self._connections:
                connection.stop_if_idle()
            self._changed.wait_for(lambda: not self._connections, timeout=max(0.0, deadline - monotonic()))
            cut = list(self._connections)
        if cut:
            log(_LOGGER, CONNECTIONS_CUT, {"connections": len(cut)}, level=logging.WARNING)
        for connection in cut:
            connection.end()

    def _accept_all(self) -> None:
        while not self._is_stopping.is_set():
            try:
                client, address = self._listener.accept()
                self._accept(client, peer=f"{address[0]}:{address[1]}")
            except (OSError, RuntimeError) as error:
                if not self._is_stopping.is_set():  # out of descriptors or threads, or a client that left at once
                    log(_LOGGER, ACCEPT_FAILED, {"message": str(error)}, level=logging.WARNING)
                    self._is_stopping.wait(0.1)

    def _accept(self, client: socket.socket, *, peer: str) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            if len(self._connections) < self._max_connections:
                self._start(client, peer)
                return
        self._service.metrics.refusals.labels(reason="not_ready").inc()
        _turn_away(client)

    def _start(self, client: socket.socket, peer: str) -> None:
        connection = Connection(
            client,
            self._service,
            peer=peer,
            idle_seconds=self._idle_seconds,
            is_stopping=self._is_stopping.is_set,
        )
        thread = threading.Thread(target=self._serve, args=(connection,), name=peer, daemon=True)
        thread.start()  # it cannot leave before it is entered here: that takes the lock that we hold
        self._connections[connection] = thread
        self._service.metrics.connections.set(len(self._connections))

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._changed:
                del self._connections[connection]
                self._service.metrics.connections.set(len(self._connections))
                self._changed.notify_all()


def _turn_away(client: socket.socket) -> None:
    try:
        with client:
            client.settimeout(_FULL_WAIT_SECONDS)
            client.sendall(_FULL)
            client.shutdown(socket.SHUT_WR)
            client.recv(65536)
    except OSError:  # it did not wait for our answer
        pass
