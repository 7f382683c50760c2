"""The newest log lines of all services, from wherever they can be read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hiddenstream.status_page.parts import LogLine

MOST_LINES = 30
_TAIL_BYTES = 16 * 1024  # that are read of each file
_MOST_FILES = 80
_MOST_CHARACTERS = 240
_LEVELS = ("debug", "info", "warning", "error", "critical")
_HEAD = frozenset({"time", "level", "service", "event", "traceback", "logger"})


def newest(lines: Iterable[LogLine]) -> tuple[LogLine, ...]:
    """Return the last MOST_LINES of *lines* by their time, newest first, each once."""
    once = dict.fromkeys(lines)
    return tuple(sorted(once, key=lambda line: line.time, reverse=True)[:MOST_LINES])


def parsed(lines: Iterable[str | bytes], *, source: str | None = None) -> Iterator[LogLine]:
    """Yield what can be shown of JSON log lines; others are passed over.

    Args:
        source: who wrote them; without it, the line's own service.
    """
    for text in lines:
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and isinstance(entry.get("time"), str):
            yield _line(entry, source)


def tails(folder: Path, *, but: frozenset[str] = frozenset()) -> Iterator[LogLine]:
    """Yield the last lines of each ``*.jsonl`` in *folder*, files whose stem is in *but* apart."""
    for file in sorted(folder.glob("*.jsonl"))[:_MOST_FILES]:
        if file.stem in but:
            continue
        try:
            with open(file, "rb") as log:
                begin = max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES)
                log.seek(begin)
                lines = log.read(_TAIL_BYTES).splitlines()
        except OSError:
            continue
        yield from parsed(lines[1:] if begin else lines, source=file.stem)


def _line(entry: dict[str, Any], source: str | None) -> LogLine:
    level = str(entry.get("level", "info"))
    facts = [f"{name} {_short(value)}" for name, value in entry.items() if name not in _HEAD and name != "message"]
    message = [str(entry["message"])] if entry.get("message") else []
    return LogLine(
        time=entry["time"][:40],
        level=level if level in _LEVELS else "info",
        source=(source or str(entry.get("service", "")))[:64],
        event=str(entry.get("event", ""))[:200],
        text=", ".join(message + facts)[:_MOST_CHARACTERS],
    )


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
