"""Drawing a dashboard's JSON as one HTML page: the grid of its panels, filled from a Prometheus."""

from __future__ import annotations

from html import escape
from typing import Any

from grafana.charts import (
    PALETTE,
    Line,
    color_of,
    finite,
    heatmap_chart,
    lines_chart,
    sparkline,
    states_chart,
)
from grafana.queries import PanelQuery, Window, legend_of, queries_of, series_of
from grafana.units import shown

WIDTH, CELL, GAP = 1600, 38, 8
_LEGEND_LINE, _TITLE = 19, 30
_STYLE = """
body { margin: 0; background: #111217; font: 12px "DejaVu Sans", sans-serif; color: #ccccdc; }
h1 { font-size: 16px; font-weight: 500; margin: 0; padding: 14px 16px 8px; }
h1 span { color: #8e8e9c; font-size: 12px; margin-left: 14px; }
.panel, .row { position: absolute; box-sizing: border-box; overflow: hidden; }
.panel { background: #181b1f; border: 1px solid #25272c; border-radius: 3px; }
.row { font-size: 14px; font-weight: 500; padding: 8px 4px; }
.title { font-weight: 500; padding: 8px 10px 4px; white-space: nowrap; }
.value { text-align: center; font-size: 34px; font-weight: 500; }
.spark { position: absolute; bottom: 0; left: 0; }
.body { padding: 0 8px; } .none { text-align: center; color: #8e8e9c; padding-top: 40px; font-size: 15px; }
svg text { fill: #9fa2ad; font-size: 11px; } svg text.in { fill: #111217; } .grid { stroke: #24262b; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: 3px 8px; white-space: nowrap; }
td { border-top: 1px solid #25272c; } th { color: #6e9fff; font-weight: 500; }
.legend td, .legend th { border: 0; padding: 1px 6px; height: 17px; text-align: right; }
.legend td:first-child { text-align: left; width: 90%; }
.list { overflow: hidden; line-height: 19px; }
.list span { margin-right: 16px; white-space: nowrap; display: inline-block; }
.list b { font-weight: 400; color: #9fa2ad; margin-left: 4px; }
.legend i, .list i { display: inline-block; width: 13px; height: 4px;
border-radius: 2px; margin-right: 7px; vertical-align: middle; }
"""


def size_of(dashboard: dict[str, Any]) -> tuple[int, int]:
    """Return width and height of the page in pixels."""
    lowest = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    return WIDTH, 46 + lowest * CELL + GAP


def page_of(dashboard: dict[str, Any], prometheus_url: str, window: Window) -> str:
    """Return the page of a dashboard."""
    seconds = f"{window.end - window.start:.0f}s"
    asked: dict[int, list[PanelQuery]] = {}
    for query in queries_of(dashboard, rate_interval="30s", interval=f"{window.step_seconds:.0f}s", time_range=seconds):
        asked.setdefault(query.panel_id, []).append(query)
    drawn = [_placed(panel, asked.get(panel["id"], []), prometheus_url, window) for panel in dashboard["panels"]]
    title = f"<h1>{escape(dashboard['title'])}<span>{escape(dashboard['description'])}</span></h1>"
    return f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style>{title}{''.join(drawn)}"


def _placed(panel: dict[str, Any], queries: list[PanelQuery], url: str, window: Window) -> str:
    place, column = panel["gridPos"], (WIDTH - GAP) / 24
    width, height = int(place["w"] * column) - GAP, place["h"] * CELL - GAP
    where = f"left:{GAP + place['x'] * column:.0f}px;top:{46 + place['y'] * CELL}px;width:{width}px;height:{height}px"
    if panel["type"] == "row":
        return f'<div class="row" style="{where}">⌄ {escape(panel["title"])}</div>'
    found = [(query, series) for query in queries for series in series_of(url, query, window)]
    body = _BODIES[panel["type"]](panel, found, (width, height - _TITLE), window)
    return f'<div class="panel" style="{where}"><div class="title">{escape(panel["title"])}</div>{body}</div>'


def _lines_of(found: list[tuple[PanelQuery, dict[str, Any]]]) -> list[Line]:
    lines = [Line(name=legend_of(query, one["metric"]), points=finite(one["values"])) for query, one in found]
    return [line for line in lines if line.points]


def _nothing(panel: dict[str, Any]) -> str:
    return f'<div class="none">{escape(panel["fieldConfig"]["defaults"]["noValue"])}</div>'


def _meanings(panel: dict[str, Any]) -> dict[int, tuple[str, str]]:
    mappings = [one for one in panel["fieldConfig"]["defaults"]["mappings"] if one["type"] == "value"]
    return {int(value): (to["text"], to["color"]) for one in mappings for value, to in one["options"].items()}


def _stat(panel: dict[str, Any], found: list[Any], size: tuple[int, int], window: Window) -> str:
    lines = [line for line in _lines_of(found) if line.points[-1][0] >= window.end - 2 * window.step_seconds]
    if not lines:
        return _nothing(panel)
    defaults, value = panel["fieldConfig"]["defaults"], lines[0].last
    steps = [one for one in defaults["thresholds"]["steps"] if one["value"] is None or value >= one["value"]]
    text, color = _meanings(panel).get(
        round(value), (shown(value, defaults["unit"], defaults.get("decimals")), steps[-1]["color"])
    )
    spark = sparkline(lines[0], (size[0], 46), color_of(color))
    return f'<div class="value" style="color:{color_of(color)}">{text}</div><div class="spark">{spark}</div>'


def _time_series(panel: dict[str, Any], found: list[Any], size: tuple[int, int], window: Window) -> str:
    lines = _lines_of(found)
    if not lines:
        return _nothing(panel)
    defaults = panel["fieldConfig"]["defaults"]
    legend, tall = _legend(panel, lines, size[0] - 18)
    options = {
        "unit": defaults["unit"],
        "min": defaults.get("min"),
        "max": defaults.get("max"),
        "stacked": defaults["custom"].get("stacking", {}).get("mode") == "normal",
        "thresholds": [(one["value"], one["color"]) for one in defaults["thresholds"]["steps"][1:]],
    }
    chart = lines_chart(lines, (size[0] - 18, size[1] - tall - 6), window, options)
    return f'<div class="body">{chart}{legend}</div>'


def _legend(panel: dict[str, Any], lines: list[Line], width: int) -> tuple[str, int]:
    """Return a legend, a table or a list as the panel asks for, and its height; what does not fit is left out."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    names = [
        f'<i style="background:{PALETTE[place % len(PALETTE)]}"></i>{escape(line.name)}'
        for place, line in enumerate(lines)
    ]
    if panel["options"]["legend"]["displayMode"] == "list":
        items = [
            f"<span>{name} <b>{shown(line.last, unit)}</b></span>" for name, line in zip(names, lines, strict=True)
        ]
        wide = sum(7 * (len(line.name) + len(shown(line.last, unit))) + 44 for line in lines)
        tall = min(3, -(-wide // width)) * _LEGEND_LINE
        return f'<div class="list" style="height:{tall}px">{"".join(items)}</div>', tall
    rows = [
        f"<tr><td>{name}</td><td>{shown(line.last, unit)}</td>"
        f"<td>{shown(max(value for _, value in line.points), unit)}</td></tr>"
        for name, line in zip(names, lines, strict=True)
    ]
    table = f'<table class="legend"><tr><th></th><th>Last</th><th>Max</th></tr>{"".join(rows)}</table>'
    return table, (len(rows) + 1) * _LEGEND_LINE


def _heatmap(panel: dict[str, Any], found: list[Any], size: tuple[int, int], window: Window) -> str:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    return f'<div class="body">{heatmap_chart(_lines_of(found), (size[0] - 18, size[1] - 8), window, unit)}</div>'


def _states(panel: dict[str, Any], found: list[Any], size: tuple[int, int], window: Window) -> str:
    chart = states_chart(_lines_of(found), (size[0] - 18, size[1] - 8), window, _meanings(panel))
    return f'<div class="body">{chart}</div>'


def _table(panel: dict[str, Any], found: list[Any], _: tuple[int, int], window: Window) -> str:
    newest = [one["metric"] for _, one in found if float(one["values"][-1][0]) >= window.end - 2 * window.step_seconds]
    if not newest:
        return _nothing(panel)
    hidden = panel["transformations"][0]["options"]["excludeByName"]
    columns = sorted({label for metric in newest for label in metric if label not in hidden})
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(metric.get(column, ''))}</td>" for column in columns) + "</tr>"
        for metric in newest
    )
    return f'<div class="body"><table><tr>{head}</tr>{rows}</table></div>'


_BODIES = {
    "stat": _stat,
    "timeseries": _time_series,
    "heatmap": _heatmap,
    "state-timeline": _states,
    "table": _table,
}
