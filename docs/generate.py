"""Rewriting the tables of docs/operations.md that come from the code.

    python -m docs.generate [--check]

A table stands between two markers, ``<!-- settings:COMMAND -->`` and ``<!-- /settings -->``, or ``metrics:SERVICE``
likewise. ``--check`` writes nothing, and exits with 1 where the document is stale.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from gpu_worker.metrics import WorkerMetrics
from hiddenstream.chassis.settings import describe
from hiddenstream.cli import settings_of
from producer.metrics import ProducerMetrics
from sink.metrics import SinkMetrics

DOCUMENT = Path(__file__).parent / "operations.md"
METRICS = {"producer": ProducerMetrics, "gpu_worker": WorkerMetrics, "sink": SinkMetrics}
_TABLE = re.compile(r"(<!-- (settings|metrics):(\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)
_UNITS = ((1024**3, "G"), (1024**2, "M"))


def main(arguments: Sequence[str]) -> int:
    """Rewrite the document, or check it; return the exit code."""
    text = DOCUMENT.read_text()
    fresh = with_fresh_tables(text)
    if "--check" in arguments:
        if fresh != text:
            sys.stdout.write(f"{DOCUMENT.name} is stale; run: python -m docs.generate\n")
        return int(fresh != text)
    DOCUMENT.write_text(fresh)
    return 0


def with_fresh_tables(text: str) -> str:
    """Return *text* with every marked table made anew."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{_table(found[2], found[3])}\n\n{found[4]}", text)


def _table(kind: str, name: str) -> str:
    return "\n".join(settings_table(name) if kind == "settings" else metrics_table(name))


def settings_table(command: str) -> Iterator[str]:
    """Yield the lines of a command's table of settings."""
    yield "| setting | default | meaning |"
    yield "| --- | --- | --- |"
    for flag, default, meaning in describe(settings_of(command)):
        yield f"| `{flag}` | {_shown(command, flag, default)} | {_cell(meaning)} |"


def _shown(command: str, flag: str, default: str) -> str:
    """Return a default as one would write it on a command line."""
    if default == "required":
        return "required"
    if default in ("None", "()"):
        return "none"
    if (command, flag, default) == ("work", "--name", socket.gethostname()):
        return "the host's name"
    if default in ("True", "False"):
        return "`yes`" if default == "True" else "`no`"
    if default.startswith("("):
        host, port = ast.literal_eval(default)
        return f"`{host}:{port}`"
    for size, unit in _UNITS:
        if default.isdecimal() and int(default) and int(default) % size == 0:
            return f"`{int(default) // size}{unit}`"
    return f"`{default}`"


def metrics_table(service: str) -> Iterator[str]:
    """Yield the lines of a service's table of metrics."""
    yield "| metric | type | labels | meaning |"
    yield "| --- | --- | --- | --- |"
    for metric in declared_metrics(service):
        (described,) = metric.describe()
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        yield f"| `{exposed_name(metric)}` | {described.type} | {labels} | {_cell(described.documentation)} |"


def declared_metrics(service: str) -> list[Any]:
    """Return every metric that a service declares, in the order of its ``metrics.py``."""
    kind = METRICS[service]
    declared = kind.in_registry(CollectorRegistry())
    return [getattr(declared, field.name) for field in dataclasses.fields(kind)]


def exposed_name(metric: Any) -> str:
    """Return a metric's name as ``/metrics`` shows it."""
    (described,) = metric.describe()
    return f"{described.name}_total" if described.type == "counter" else str(described.name)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
