"""What the services' logs say that a person at the terminal should know: errors, and waits that last."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WAIT_SECONDS = 5.0  # a shorter wait is a start like any other
_SILENT_SECONDS = 30.0  # before the same thing is said again
_SHOWN = ("message", "exit_code", "shard", "shards", "reason")


class News:
    """Follows the services' logs.

    Attributes:
        status_url: where the producer serves its page, once it has said so.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.status_url: str | None = None
        self._say = say
        self._read_bytes: dict[Path, int] = {}
        self._since: dict[tuple[str, str], float] = {}
        self._last: dict[tuple[str, str], float] = {}
        self._said: dict[tuple[str, str], float] = {}

    def skip(self, log: Path) -> None:
        """Leave what an earlier run has logged."""
        self._read_bytes[log] = log.stat().st_size if log.exists() else 0

    def read(self, service: str, log: Path) -> None:
        """Say what is new in a service's log."""
        with open(log, "rb") as lines:
            lines.seek(self._read_bytes.get(log, 0))
            text = lines.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes[log] = self._read_bytes.get(log, 0) + len(whole)
        for line in whole.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the queue's own log, or a traceback
            if isinstance(entry, dict):
                self._hear(service, entry, time.monotonic())

    def _hear(self, service: str, entry: dict[str, Any], now_seconds: float) -> None:
        event = str(entry.get("event", ""))
        if event == "status_page_served":
            self.status_url = str(entry.get("url"))
        is_wait = event.endswith("_waited_for")
        if entry.get("level") != "error" and not is_wait:
            return
        key = (service, event)
        if now_seconds - self._last.get(key, now_seconds) > 2 * _WAIT_SECONDS:
            self._since.pop(key, None)  # that was another wait
        self._last[key] = now_seconds
        waited_seconds = now_seconds - self._since.setdefault(key, now_seconds)
        is_repeated = now_seconds - self._said.get(key, -_SILENT_SECONDS) < _SILENT_SECONDS
        if not is_repeated and (not is_wait or waited_seconds >= _WAIT_SECONDS):
            self._said[key] = now_seconds
            facts = ", ".join(f"{name}: {entry[name]}" for name in _SHOWN if entry.get(name) not in (None, ""))
            self._say(f"{service}: {event.replace('_', ' ')} ({facts})")
