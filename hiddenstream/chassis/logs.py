"""Logs: one JSON object per line on standard output; names of events are constants, everything else is a field."""

from __future__ import annotations

import dataclasses
import json
import logging
import logging.handlers
import sys
import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

LOG_FILE_FAILED = "log_file_failed"
LOG_FILE_BYTES = 32 * 1024 * 1024
_LOGGER = logging.getLogger("hiddenstream.logs")


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


class _LogFile(logging.handlers.RotatingFileHandler):
    """A file of log lines and its predecessor ``.1``; a failure to write is told once and stops nobody."""

    def __init__(self, service: str, file: Path) -> None:
        super().__init__(file, maxBytes=LOG_FILE_BYTES, backupCount=1, encoding="utf-8")
        self.setFormatter(_JsonLines(service))
        self._has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - it is logging's
        """Tell the first failure, in the log's other places."""
        if self._has_failed:
            return
        self._has_failed = True  # before the line is logged, which comes here, too
        _tell_failure(Path(self.baseFilename), sys.exc_info()[1])


def now() -> str:
    """Return the time, ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def start_logging(service: str, *, stream: TextIO | None = None, recent: RecentLines | None = None) -> None:
    """Send this process's log to *stream* (standard output) as JSON lines; libraries only from warnings on.

    Args:
        recent: keeps the last lines in memory, too.
    """
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(_JsonLines(service))
    root = logging.getLogger()
    root.handlers[:] = [handler] if recent is None else [handler, recent]
    root.setLevel(logging.WARNING)
    for name in ("hiddenstream", "producer", "gpu_worker", "sink"):
        logging.getLogger(name).setLevel(logging.INFO)


def add_log_file(service: str, file: Path) -> None:
    """Append this process's log to *file* as well, from now on; past LOG_FILE_BYTES it is renamed to ``.1``.

    A file that cannot be written is told in the log, once.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        logging.getLogger().addHandler(_LogFile(service, file))
    except OSError as error:
        _tell_failure(file, error)


def _tell_failure(file: Path, error: BaseException | None) -> None:
    log(_LOGGER, LOG_FILE_FAILED, {"file": str(file), "message": str(error)}, level=logging.WARNING)


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
