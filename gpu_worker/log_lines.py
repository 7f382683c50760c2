"""The latest log lines that people should see, kept for the worker's report."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable

from gpu_worker.facts import SHARD_EXTRACTED

KEPT_LINES = 6
LINE_CHARACTERS = 1000
_VALUE_CHARACTERS = 300
_WORTH_SEEING = ("model_loaded", SHARD_EXTRACTED)


class LogLines(logging.Handler):
    """Passes on what a process logs from warnings up, and the events that tell of progress, each cut to a length."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        super().__init__()
        self._on_line = on_line

    def install(self) -> None:
        """Listen to all of this process's logs, after ``start_logging``."""
        root = logging.getLogger()
        self.setFormatter(root.handlers[0].formatter if root.handlers else None)
        root.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on if it is worth it."""
        if record.levelno >= logging.WARNING or record.getMessage() in _WORTH_SEEING:
            self._on_line(shortened(self.format(record)))


def shortened(line: str) -> str:
    """Return a log line of at most LINE_CHARACTERS that is still JSON: long values are cut, tracebacks to their end."""
    if len(line) <= LINE_CHARACTERS:
        return line
    try:
        fields = json.loads(line)
    except ValueError:
        return line[:LINE_CHARACTERS]
    cut = {name: _cut(name, value) for name, value in fields.items()}
    while cut and len(json.dumps(cut)) > LINE_CHARACTERS:
        cut.popitem()
    return json.dumps(cut)


def _cut(name: str, value: object) -> object:
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= _VALUE_CHARACTERS:
        return value
    return "..." + text[-_VALUE_CHARACTERS:] if name == "traceback" else text[:_VALUE_CHARACTERS] + "..."


def new_ring() -> deque[str]:
    """Return a place for the latest lines."""
    return deque(maxlen=KEPT_LINES)
