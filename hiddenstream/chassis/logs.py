"""Logs: one JSON object per line on standard output; names of events are constants, everything else is a field."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

MOST_FILE_BYTES = 32 * 1024 * 1024


class _JsonLines(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": now(),
            "level": record.levelname.lower(),
            "service": self._service,
            "event": record.getMessage(),
        }
        facts = getattr(record, "facts", None)
        if facts is None:
            line["logger"] = record.name  # a library's own message, not one of our events
        else:
            line.update(facts)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class RecentLines(logging.Handler):
    """Keeps a process's last log lines in memory, for people who watch it."""

    def __init__(self, service: str, *, most: int = 200) -> None:
        super().__init__()
        self.setFormatter(_JsonLines(service))
        self._kept: deque[str] = deque(maxlen=most)
        self._kept_lock = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        line = self.format(record)
        with self._kept_lock:
            self._kept.append(line)

    def lines(self) -> tuple[str, ...]:
        """Return the kept lines, oldest first; in any thread."""
        with self._kept_lock:
            return tuple(self._kept)


def now() -> str:
    """Return the time, ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def start_logging(
    service: str, *, stream: TextIO | None = None, recent: RecentLines | None = None, file: Path | None = None
) -> None:
    """Send this process's log to *stream* (standard output) as JSON lines; libraries only from warnings on.

    Args:
        recent: keeps the last lines in memory, too.
        file: gets every line as well; past MOST_FILE_BYTES it is begun anew, and the one before is kept as ``FILE.1``.

    Raises:
        OSError: *file* cannot be written.
    """
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(_JsonLines(service))
    root = logging.getLogger()
    root.handlers[:] = [handler] if recent is None else [handler, recent]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        copy = RotatingFileHandler(file, maxBytes=MOST_FILE_BYTES, backupCount=1)
        copy.setFormatter(_JsonLines(service))
        root.addHandler(copy)
    root.setLevel(logging.WARNING)
    for name in ("hiddenstream", "producer", "gpu_worker", "sink"):
        logging.getLogger(name).setLevel(logging.INFO)


def log(logger: logging.Logger, event: str, facts: object = None, *, level: int = logging.INFO) -> None:
    """Log *event* with *facts*: a mapping, or a frozen facts object, whose fields become the line's."""
    logger.log(level, event, extra={"facts": as_fields(facts)})


def as_fields(facts: object) -> dict[str, Any]:
    """Return the fields of a mapping or a dataclass instance."""
    if facts is None:
        return {}
    if isinstance(facts, Mapping):
        return dict(facts)
    if dataclasses.is_dataclass(facts) and not isinstance(facts, type):
        return dataclasses.asdict(facts)
    raise TypeError(f"{facts!r} has no fields to log")
