"""One HTTP exchange as bytes on a socket; heads are framed by h11, a request's body goes past it."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import h11

_SENT_AT_ONCE = 4 * 1024 * 1024


def send_pieces(connection: socket.socket, pieces: Sequence[bytes | memoryview]) -> None:
    """Send the body as it lies in memory; h11 would copy it."""
    try:
        for piece in pieces:
            view = memoryview(piece)
            for begin in range(0, len(view), _SENT_AT_ONCE):
                connection.sendall(view[begin : begin + _SENT_AT_ONCE])
    except (BrokenPipeError, ConnectionResetError):
        return  # it refused in mid-body; its answer may still be readable


def encoded(wire: h11.Connection, event: h11.Request) -> bytes:
    """Return the bytes of a request's head."""
    data = wire.send(event)
    assert data is not None
    return data


def next_response(wire: h11.Connection, connection: socket.socket) -> h11.Response | h11.InformationalResponse:
    """Wait for the next answer. Raises OSError or h11.ProtocolError."""
    while True:
        event = wire.next_event()
        if event is h11.NEED_DATA:
            wire.receive_data(connection.recv(65536))
        elif isinstance(event, (h11.Response, h11.InformationalResponse)):
            return event
        else:
            raise ConnectionResetError("it closed the connection without an answer")


def read_body(wire: h11.Connection, connection: socket.socket, max_bytes: int) -> bytes:
    """Read an answer's body to its end. Raises OSError or h11.ProtocolError, also where it is too large."""
    body = bytearray()
    while True:
        event = wire.next_event()
        if event is h11.NEED_DATA:
            wire.receive_data(connection.recv(65536))
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > max_bytes:
                raise ConnectionResetError(f"an answer of more than {max_bytes} bytes")
        else:
            return bytes(body)
