"""A run's status as lines of text. Pure."""

from __future__ import annotations

import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterator

from hiddenstream.status_page.parts import FAILURE_KINDS, WorkerStatus
from hiddenstream.status_page.status import ENDED_STATES, RunStatus
from hiddenstream.status_page.words import amount_of_bytes, counted, duration, short

MOST_COLUMNS = 80
_MOST_WORKERS = 8
_LABEL = 10
_BOLD, _DIM, _RED, _YELLOW, _GREEN, _PLAIN = (f"\x1b[{code}m" for code in (1, 2, 31, 33, 32, 0))
_GIB = 1024**3


def block(status: RunStatus, width: int, *, is_coloured: bool = False, url: str | None = None) -> list[str]:
    """Return the lines that a terminal shows.

    Args:
        width: columns that a line may take; more than 80 are not used.
        is_coloured: whether escape sequences may be used, which take no columns.
        url: of the run's page.
    """
    width = min(width, MOST_COLUMNS)
    lines = [clipped(line, width) for line in _block(status, width, url)]
    return coloured(lines, status) if is_coloured else lines


def coloured(lines: list[str], status: RunStatus) -> list[str]:
    """Return lines of :func:`block` with escape sequences, which take no columns."""
    return [_coloured(line, status) for line in lines]


def one_line(status: RunStatus) -> str:
    """Return the same facts in one line, for a log."""
    parts = [f"{percent(status)} {status.state.replace('_', ' ')}"]
    parts.append(f"{short(status.committed.tokens)} of {short(status.planned.tokens)} tokens")
    parts.append(f"{short(status.committed.samples)} samples")
    parts += [text for text in (_rate(status), _rest(status), _crew(status)) if text]
    if status.bottleneck != "none":
        parts.append(f"limit {status.bottleneck}")
    parts += [text for text in (_disk(status, is_short=True), _failures(status)) if text]
    return clipped(", ".join(parts), 240)


def percent(status: RunStatus) -> str:
    """Return the share that is done; 100 % is for complete runs alone."""
    return "100 %" if status.done_share >= 1 else f"{min(99.9, status.done_share * 100):.1f} %"


def _block(status: RunStatus, width: int, url: str | None) -> Iterator[str]:
    yield f"{status.run}: {status.state.replace('_', ' ')}. {status.message}"
    filled = round(status.done_share * (width - 34)) if width > 44 else 0
    bar = "#" * filled + "-" * (width - 34 - filled) + " " if width > 44 else ""
    yield f"{'done':<{_LABEL}}{bar}{percent(status)}{'  ' + _rest(status) if _rest(status) else ''}"
    amounts = [
        f"{short(done)} of {short(planned)} {noun}"
        for done, planned, noun in (
            (status.committed.tokens, status.planned.tokens, "tokens"),
            (status.committed.samples, status.planned.samples, "samples"),
            (status.committed.shards, status.planned.shards, "shards"),
        )
    ]
    yield f"{'stored':<{_LABEL}}{', '.join(amounts)}"
    if _rate(status):
        yield f"{'speed':<{_LABEL}}{_rate(status)}"
    if status.bottleneck_message and status.state not in ENDED_STATES:
        word = "" if status.bottleneck == "none" else f"{status.bottleneck}: "
        told = f"{'limit':<{_LABEL}}{word}{status.bottleneck_message}"
        yield from textwrap.wrap(told, max(width, 2 * _LABEL), subsequent_indent=" " * _LABEL)
    if status.workers:
        yield f"{'workers':<{_LABEL}}{_crew(status)}"
        yield from (_worker(worker) for worker in status.workers[:_MOST_WORKERS])
        if len(status.workers) > _MOST_WORKERS:
            yield f"  and {len(status.workers) - _MOST_WORKERS} more"
    if status.queue is not None:
        away = "" if status.queue.is_reachable else ", Redis does not answer"
        again = f", {status.queue.redelivered:,} redelivered" if status.queue.redelivered else ""
        yield f"{'queue':<{_LABEL}}{status.queue.waiting:,} waiting, {status.queue.in_work:,} in work{again}{away}"
    if status.disk is not None:
        yield f"{'disk':<{_LABEL}}{amount_of_bytes(status.disk.free_bytes)} free, {_disk(status)}"
    if _failures(status):
        yield f"{'failures':<{_LABEL}}{_failures(status)}"
    if url:
        yield f"{'page':<{_LABEL}}{url}"


def _worker(worker: WorkerStatus) -> str:
    parts = [f"  {worker.worker:<16} {worker.state.replace('_', ' '):<10}"]
    if worker.state == "working":
        parts.append(f"{short(worker.tokens_per_second):>6} tokens/s")
    for gpu in worker.gpus[:1]:
        if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
            parts.append(f"{gpu.memory_used_bytes / _GIB:.1f} of {gpu.memory_total_bytes / _GIB:.0f} GiB")
    if worker.bottleneck != "none":
        parts.append(worker.bottleneck)
    return "  ".join([*parts, *([worker.message] if worker.message else [])])


def _rate(status: RunStatus) -> str:
    rate = status.speed.tokens_per_second
    return "" if rate is None or status.state in ENDED_STATES else f"{short(rate)} tokens/s"


def _rest(status: RunStatus) -> str:
    is_moving = status.state == "running" and status.speed.eta_seconds is not None
    return f"{duration(status.speed.eta_seconds or 0)} left" if is_moving else ""


def _crew(status: RunStatus) -> str:
    states = Counter(worker.state.replace("_", " ") for worker in status.workers)
    return ", ".join(f"{count} {state}" for state, count in states.most_common())


def _disk(status: RunStatus, *, is_short: bool = False) -> str:
    disk = status.disk
    if disk is None or disk.is_enough:
        return "" if is_short else "enough for the rest"
    if disk.full_in_seconds is None:
        return "disk too small" if is_short else f"{amount_of_bytes(disk.to_come_bytes)} to come: too small"
    return f"{'disk ' if is_short else ''}full in {duration(disk.full_in_seconds)}"


def _failures(status: RunStatus) -> str:
    counts = Counter(dict.fromkeys(FAILURE_KINDS, 0))
    for group in status.failures:
        counts[group.kind] += group.count
    deliveries = sum(worker.failures for worker in status.workers)
    told = [f"{count:,} {kind}" for kind, count in counts.items() if count]
    return ", ".join(told + ([counted(deliveries, "failed attempt")] if deliveries else []))


def clipped(line: str, columns: int) -> str:
    """Return *line* without control characters, in at most *columns* columns."""
    taken, kept = 0, []
    for character in line:
        shown = character if character.isprintable() else "?"
        size = columns_of(shown)
        if taken + size > columns:
            break
        kept.append(shown)
        taken += size
    return "".join(kept)


def columns_of(text: str) -> int:
    """Return how many columns printable text takes."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(bool(unicodedata.combining(character)) for character in text)


def _coloured(line: str, status: RunStatus) -> str:
    label = line[:_LABEL].strip()
    if line.startswith(f"{status.run}:"):
        colour = _GREEN if status.state.startswith("complete") else _RED if status.state == "stuck" else ""
        colour = _YELLOW if status.state.startswith(("waiting", "stopping", "not")) else colour
        return f"{_BOLD}{colour}{line}{_PLAIN}"
    if line.startswith("  "):
        return f"{_RED}{line}{_PLAIN}" if " refused" in line[:32] or " gone" in line[:32] else line
    return f"{_DIM}{line[:_LABEL]}{_PLAIN}{line[_LABEL:]}" if label else line
