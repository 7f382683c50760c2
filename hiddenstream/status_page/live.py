"""Showing a status again and again: redrawn in place on a terminal, one line a minute elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from hiddenstream.status_page.status import RunStatus
from hiddenstream.status_page.terminal import block, coloured, columns_of, one_line

_LINE_SECONDS = 60.0


class Live:
    """Shows statuses on a stream. ``NO_COLOR`` and ``TERM=dumb`` are honoured; lines are never wrapped."""

    def __init__(
        self, stream: TextIO, environment: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._clock = stream, clock
        self._is_terminal = stream.isatty() and environment.get("TERM", "dumb") not in ("", "dumb")
        self._is_coloured = self._is_terminal and not environment.get("NO_COLOR")
        self._drawn: list[int] = []  # columns of the lines on the screen
        self._told_at: float | None = None
        self._last: tuple[RunStatus, str | None] | None = None

    def show(self, status: RunStatus, *, url: str | None = None) -> None:
        """Show *status* in place of the last one."""
        self._last = (status, url)
        if self._is_terminal:
            self._draw(status, url)
        elif self._told_at is None or self._clock() - self._told_at >= _LINE_SECONDS:
            self._tell(status)

    def note(self, say: Callable[[], None]) -> None:
        """Let *say* print lines that stay, above what is shown."""
        self._write(self._erased())
        say()
        if self._last is not None and self._is_terminal:
            self._draw(*self._last)

    def close(self, status: RunStatus, *, url: str | None = None) -> None:
        """Show *status* for the last time, and leave it."""
        if self._is_terminal:
            self._draw(status, url)
            self._drawn = []
        else:
            self._tell(status)

    def _tell(self, status: RunStatus) -> None:
        self._told_at = self._clock()
        self._write(one_line(status) + "\n")

    def _draw(self, status: RunStatus, url: str | None) -> None:
        size = self._size()
        plain = block(status, size.columns - 1, url=url)[: max(1, size.lines - 1)]
        shown = coloured(plain, status) if self._is_coloured else plain
        text = self._erased() + "".join(f"{line}\n" for line in shown)
        self._drawn = [columns_of(line) for line in plain]
        self._write(text)

    def _erased(self) -> str:
        """Return what takes the drawn lines off the screen; a narrower window has wrapped them since."""
        if not self._drawn:
            return ""
        size = self._size()
        rows = sum(max(1, -(-columns // max(1, size.columns))) for columns in self._drawn)
        self._drawn = []
        return f"\x1b[{min(rows, max(1, size.lines - 1))}A\r\x1b[J"

    def _size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return os.terminal_size((80, 24))
        return size if size.columns > 1 and size.lines > 1 else os.terminal_size((80, 24))

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
