"""Asking every query of every dashboard of a Prometheus that has watched a run."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from grafana.queries import PanelQuery, Window, queries_of, series_of

DASHBOARDS = Path(__file__).parent.parent.parent / "grafana" / "dashboards"
NO_GPU = "there is no GPU"
# Panels, by their titles, that may be empty after a run on CPUs in which nothing went wrong, and why. Those for want of
# a GPU must be empty; the others may answer, since a run may still be refused for a moment, or fill a disk.
RIGHTLY_EMPTY = {
    "Alerts that fire": "no alert fires",
    "Disk full in": "only a disk that fills has a time, and others may free more than so small a run takes",
    "GPU memory": NO_GPU,
    "GPU utilisation": NO_GPU,
    "GPUs": NO_GPU,
    "Power": NO_GPU,
    "Temperature": NO_GPU,
    "Rejected rows by reason": "a reason has a series only once a row was rejected for it",
    "Refusals by reason": "only refusals are shown, and nobody need be refused; a few not_ready at the start are usual",
}


def dashboards() -> list[dict[str, Any]]:
    """Return the dashboards that are checked in."""
    return [json.loads(file.read_text()) for file in sorted(DASHBOARDS.glob("*.json"))]


def every_query(*, rate_interval: str = "1m") -> list[PanelQuery]:
    """Return every query of every dashboard, expanded."""
    return [query for board in dashboards() for query in queries_of(board, rate_interval=rate_interval)]


def answered(prometheus_url: str, *, last_seconds: float, rate_interval: str = "1m") -> dict[PanelQuery, bool]:
    """Return for each query whether it gave a number at any moment of the last seconds.

    Raises:
        QueryRefused: Prometheus does not understand one.
    """
    now = time.time()
    window = Window(start=now - last_seconds, end=now, step_seconds=max(1.0, last_seconds / 500))
    return {
        query: any(
            math.isfinite(float(value))
            for series in series_of(prometheus_url, query, window)
            for _, value in series["values"]
        )
        for query in every_query(rate_interval=rate_interval)
    }


def wrongly_empty(prometheus_url: str, *, last_seconds: float, rate_interval: str = "1m") -> list[str]:
    """Return the queries that gave nothing over the last seconds though they should have, to be shown to people."""
    return [
        f"{query.board}, {query.panel!r}: {query.expanded}"
        for query, has_answer in answered(
            prometheus_url, last_seconds=last_seconds, rate_interval=rate_interval
        ).items()
        if not has_answer and query.panel not in RIGHTLY_EMPTY
    ]


def wrongly_excused(prometheus_url: str, *, last_seconds: float) -> list[str]:
    """Return the panels that gave numbers though they are excused since there is no GPU."""
    told = answered(prometheus_url, last_seconds=last_seconds)
    return sorted(
        {query.panel for query, has_answer in told.items() if has_answer and RIGHTLY_EMPTY.get(query.panel) == NO_GPU}
    )
