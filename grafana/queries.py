"""The queries of a dashboard's JSON, as Grafana would send them, and what a Prometheus answers."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

EVERY_VALUE = ".*"  # what a template variable matches where everything is chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelQuery:
    """One query of one panel.

    Attributes:
        board: uid of the dashboard. panel: the panel's title. legend: of the query.
        written: as in the JSON. expanded: with every variable replaced.
        is_instant: whether only the newest value is asked for, as tables do.
    """

    board: str
    panel: str
    panel_id: int
    legend: str
    written: str
    expanded: str
    is_instant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What of time is asked for, in Unix seconds."""

    start: float
    end: float
    step_seconds: float = 5.0


class QueryRefused(Exception):
    """Prometheus does not understand a query."""


def panels_of(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every panel, also those inside collapsed rows; rows themselves, too."""
    for panel in dashboard.get("panels", ()):
        yield panel
        yield from panels_of(panel)


def queries_of(
    dashboard: dict[str, Any], *, rate_interval: str = "1m", interval: str = "15s", time_range: str = "1h"
) -> list[PanelQuery]:
    """Return every query of a dashboard, in the order of its panels."""
    durations = {"__rate_interval": rate_interval, "__interval": interval, "__range": time_range}
    names = [variable["name"] for variable in dashboard.get("templating", {}).get("list", ())]
    values = dict.fromkeys(names, EVERY_VALUE) | durations
    return [
        PanelQuery(
            board=dashboard["uid"],
            panel=panel["title"],
            panel_id=panel["id"],
            legend=target.get("legendFormat", ""),
            written=target["expr"],
            expanded=_expanded(target["expr"], values),
            is_instant=bool(target.get("instant")),
        )
        for panel in panels_of(dashboard)
        for target in panel.get("targets") or ()
    ]


def _expanded(expression: str, values: dict[str, str]) -> str:
    """Replace ``$name`` and ``${name}``; a name that is no variable is a mistake.

    Raises:
        KeyError: naming it.
    """
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values[found[1]], expression)


def series_of(prometheus_url: str, query: PanelQuery, window: Window) -> list[dict[str, Any]]:
    """Return the series that a query gives over *window*, each with ``metric`` and ``values``.

    Raises:
        QueryRefused: Prometheus does not understand it.
    """
    asked = {"query": query.expanded, "start": window.start, "end": window.end, "step": window.step_seconds}
    url = f"{prometheus_url}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            data: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise QueryRefused(f"{query.board}, {query.panel!r}: {query.expanded}: {error.read().decode()}") from error
    series: list[dict[str, Any]] = data["data"]["result"]
    return series


def legend_of(query: PanelQuery, metric: dict[str, str]) -> str:
    """Return a series' name in the legend."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: metric.get(found[1], ""), query.legend)
