"""The body of one request, received into a buffer that is used again and again."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from sink.refusals import UploadAborted


class Body:
    """Exactly *length_bytes* from a socket. A client that waits for leave to send gets it at the first read.

    Attributes:
        length_bytes: as announced by the client.
        remaining_bytes: what has not been read yet.
    """

    def __init__(
        self, source: socket.socket, *, length_bytes: int, early: bytes, go_ahead: bytes | None, buffer: bytearray
    ) -> None:
        """Read nothing yet.

        Args:
            early: what came together with the request's head.
            go_ahead: the bytes that tell the client to send its body, if it waits for them.
            buffer: where chunks are received.
        """
        self.length_bytes = self.remaining_bytes = length_bytes
        self._source, self._go_ahead, self._buffer = source, go_ahead, memoryview(buffer)
        self._early = memoryview(early)[:length_bytes]

    @property
    def is_awaited_by_client(self) -> bool:
        """Whether the client has sent nothing of it and waits for leave."""
        return self._go_ahead is not None

    def chunks(self) -> Iterator[memoryview]:
        """Yield what remains; each chunk is valid until the next.

        Raises:
            UploadAborted: the client went away or fell silent.
        """
        while self.remaining_bytes:
            count = self._receive_into(self._buffer[: self.remaining_bytes])
            yield self._buffer[:count]

    def read_exactly(self, count: int) -> bytes:
        """Return the next *count* bytes, of which the caller knows that they are to come.

        Raises:
            UploadAborted: the client went away or fell silent.
        """
        data = bytearray(count)
        view = memoryview(data)
        while view:
            view = view[self._receive_into(view) :]
        return bytes(data)

    def _receive_into(self, view: memoryview) -> int:
        if self._early:
            count = min(len(view), len(self._early))
            view[:count], self._early = self._early[:count], self._early[count:]
        else:
            count = self._receive_from_socket(view)
        self.remaining_bytes -= count
        return count

    def _receive_from_socket(self, view: memoryview) -> int:
        go_ahead, self._go_ahead = self._go_ahead, None
        try:
            if go_ahead is not None:
                self._source.sendall(go_ahead)
            count = self._source.recv_into(view)
        except TimeoutError as error:
            raise UploadAborted(f"silent with {self.remaining_bytes} of {self.length_bytes} bytes to come") from error
        except OSError as error:
            raise UploadAborted(f"lost with {self.remaining_bytes} bytes to come: {error}") from error
        if not count:
            raise UploadAborted(f"gone with {self.remaining_bytes} of {self.length_bytes} bytes to come")
        return count
