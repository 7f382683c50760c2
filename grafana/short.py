"""The two commonest kinds of panels, with what most of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grafana.panels import Panel


def stat(title: str, query: str, description: str, **more: Any) -> Panel:
    """Return a tile of the first row: a sixth of its width, a whole number unless said otherwise."""
    shape: dict[str, Any] = {"unit": "locale", "decimals": 0, "width": 4, "height": 4} | more
    return Panel(kind="stat", title=title, description=description, queries={title.lower(): query}, **shape)


def lines(title: str, queries: Mapping[str, str], description: str, **more: Any) -> Panel:
    """Return a chart over time, from 0 upwards unless said otherwise."""
    shape: dict[str, Any] = {"minimum": 0} | more
    return Panel(kind="lines", title=title, description=description, queries=queries, **shape)
