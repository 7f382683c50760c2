"""Charts as SVG: lines and stacks, heatmaps, state timelines. For pictures of dashboards, in Grafana's dark colours."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from grafana.queries import Window
from grafana.units import shown, ticks

PALETTE = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#96d98d", "#ffb357", "#56a64b")
NAMED = {
    "green": "#73bf69",
    "yellow": "#fade2a",
    "orange": "#ff9830",
    "red": "#f2495c",
    "blue": "#5794f2",
    "purple": "#b877d9",
}
_LEFT, _BOTTOM, _TOP = 66, 20, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series: its name in the legend, and pairs of Unix time and value."""

    name: str
    points: Sequence[tuple[float, float]]

    @property
    def last(self) -> float:
        return self.points[-1][1]


def color_of(name: str) -> str:
    """Return a colour for Grafana's name of one."""
    return NAMED.get(name, name)


def finite(values: Sequence[Sequence[Any]]) -> list[tuple[float, float]]:
    """Return the points of a series that are numbers."""
    pairs = [(float(moment), float(value)) for moment, value in values]
    return [(moment, value) for moment, value in pairs if math.isfinite(value)]


def lines_chart(lines: Sequence[Line], size: tuple[int, int], window: Window, options: dict[str, Any]) -> str:
    """Return a chart of lines.

    Args:
        options: ``unit``, ``min``, ``max``, ``stacked``, and ``thresholds`` as pairs of value and colour.
    """
    width, height = size
    drawn = _stacked(lines) if options["stacked"] else [(line, None) for line in lines]
    values = [value for line, _ in drawn for _, value in line.points]
    low = options["min"] if options["min"] is not None else min(values)
    high = options["max"] if options["max"] is not None else max([*values, low]) * (1.06 if max(values) > 0 else 1)
    high = high if high > low else low + 1
    across, up = _scales(width, height, window, (low, high))
    parts = [_frame(width, height, window, (low, high), options["unit"])]
    for place, (line, below) in enumerate(drawn):
        color = PALETTE[place % len(PALETTE)]
        for piece in _pieces(line.points, window.step_seconds):
            path = " ".join(f"{across(moment):.1f},{up(value):.1f}" for moment, value in piece)
            floor = dict(below.points) if below else {}
            under = " ".join(f"{across(m):.1f},{up(floor.get(m, low) if below else low):.1f}" for m, _ in piece[::-1])
            opacity = 0.6 if options["stacked"] else 0.08 if len(drawn) < 4 else 0.0
            parts.append(f'<polygon points="{path} {under}" fill="{color}" fill-opacity="{opacity}"/>')
            parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.3"/>')
    for value, color in options["thresholds"]:
        if low < value < high:
            parts.append(
                f'<line x1="{_LEFT}" x2="{width}" y1="{up(value):.1f}" y2="{up(value):.1f}" '
                f'stroke="{color_of(color)}" stroke-dasharray="8 6"/>'
            )
    return _svg(width, height, parts)


def heatmap_chart(lines: Sequence[Line], size: tuple[int, int], window: Window, unit: str) -> str:
    """Return a heatmap of a cumulative histogram, whose lines are named by their upper bounds."""
    width, height = size
    ordered = sorted(lines, key=lambda line: float(line.name))
    ordered = [line for line in ordered if any(value > 0 for _, value in line.points)]
    cells: list[tuple[int, float, float]] = []
    previous: dict[float, float] = {}
    for row, line in enumerate(ordered):
        cells += [(row, moment, value - previous.get(moment, 0.0)) for moment, value in line.points]
        previous = dict(line.points)
    used = [row for row, _, count in cells if count > 0.5]
    first, rows = min(used, default=0), max(used, default=0) - min(used, default=0) + 1
    most = max((count for _, _, count in cells), default=1.0) or 1.0
    across, _ = _scales(width, height, window, (0, 1))
    cell_height = (height - _BOTTOM - _TOP) / rows
    parts = [_times(width, height, window)]
    step = window.step_seconds * (width - _LEFT) / (window.end - window.start)
    for row, moment, count in cells:
        if count > 0.5 and first <= row < first + rows:
            y = height - _BOTTOM - (row - first + 1) * cell_height
            parts.append(
                f'<rect x="{across(moment):.1f}" y="{y:.1f}" width="{step + 0.3:.1f}" height="{cell_height - 1:.1f}" '
                f'fill="#ff9830" fill-opacity="{0.12 + 0.88 * count / most:.2f}"/>'
            )
    for row in range(rows):
        name = ordered[first + row].name if first + row < len(ordered) else "+Inf"
        y = height - _BOTTOM - (row + 0.5) * cell_height + 4
        text = "+Inf" if name == "+Inf" else f"≤ {shown(float(name), unit)}"
        parts.append(f'<text x="{_LEFT - 8}" y="{y:.1f}" text-anchor="end">{text}</text>')
    return _svg(width, height, parts)


def states_chart(
    lines: Sequence[Line], size: tuple[int, int], window: Window, meanings: dict[int, tuple[str, str]]
) -> str:
    """Return a timeline with one bar a series, of pieces that are named by their values."""
    width, height = size
    left = 110
    bar = (height - _BOTTOM) / max(len(lines), 1)
    parts = [_times(width, height, window, left)]
    scale = (width - left) / (window.end - window.start)
    for row, line in enumerate(lines):
        y, tall = row * bar + bar * 0.08, bar * 0.84
        parts.append(f'<text x="{left - 8}" y="{y + tall / 2 + 4:.1f}" text-anchor="end">{escape(line.name)}</text>')
        for start, end, value in _runs(line.points, window.step_seconds):
            text, color = meanings.get(round(value), (f"{value:g}", "#8e8e8e"))
            x, wide = left + (start - window.start) * scale, (end - start) * scale
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(wide, 1):.1f}" height="{tall:.1f}" '
                f'fill="{color_of(color)}" fill-opacity="0.75"/>'
            )
            if wide > 7 * len(text):
                parts.append(f'<text class="in" x="{x + 6:.1f}" y="{y + tall / 2 + 4:.1f}">{escape(text)}</text>')
    return _svg(width, height, parts)


def sparkline(line: Line, size: tuple[int, int], color: str) -> str:
    """Return the small area under a tile's number."""
    width, height = size
    values = [value for _, value in line.points]
    low, high = min(values), max(values)
    spread = max(high - low, 0.01 * abs(high)) or 1.0  # a tremble of rounding is no news
    start, span = line.points[0][0], (line.points[-1][0] - line.points[0][0]) or 1.0
    path = " ".join(
        f"{(moment - start) / span * width:.1f},{height - 2 - (value - low) / spread * (height - 6):.1f}"
        for moment, value in line.points
    )
    area = f'<polygon points="0,{height} {path} {width},{height}" fill="{color}" fill-opacity="0.14"/>'
    return _svg(width, height, [area, f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1"/>'])


def _stacked(lines: Sequence[Line]) -> list[tuple[Line, Line | None]]:
    """Return each line on top of those before it, and the line below it."""
    sums: dict[float, float] = {}
    drawn: list[tuple[Line, Line | None]] = []
    below: Line | None = None
    for line in lines:
        floor = Line(name="", points=[(moment, sums.get(moment, 0.0)) for moment, _ in line.points])
        for moment, value in line.points:
            sums[moment] = sums.get(moment, 0.0) + value
        below = floor
        drawn.append((Line(name=line.name, points=[(moment, sums[moment]) for moment, _ in line.points]), below))
    return drawn


def _scales(width: int, height: int, window: Window, bounds: tuple[float, float]) -> tuple[Any, Any]:
    low, high = bounds
    return (
        lambda moment: _LEFT + (moment - window.start) / (window.end - window.start) * (width - _LEFT),
        lambda value: _TOP + (high - min(max(value, low), high)) / (high - low) * (height - _BOTTOM - _TOP),
    )


def _frame(width: int, height: int, window: Window, bounds: tuple[float, float], unit: str) -> str:
    _, up = _scales(width, height, window, bounds)
    parts = [_times(width, height, window)]
    for value in ticks(*bounds, unit):
        y = up(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{shown(value, unit)}</text>')
    return "".join(parts)


def _times(width: int, height: int, window: Window, left: int = _LEFT) -> str:
    every = 300 if width > 500 else 600
    parts = []
    moment = math.ceil(window.start / every) * every
    while moment <= window.end:
        x = left + (moment - window.start) / (window.end - window.start) * (width - left)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - _BOTTOM}"/>')
        if left + 16 < x < width - 16:
            text = time.strftime("%H:%M", time.gmtime(moment))
            parts.append(f'<text x="{x:.1f}" y="{height - 4}" text-anchor="middle">{text}</text>')
        moment += every
    return "".join(parts)


def _pieces(points: Sequence[tuple[float, float]], step_seconds: float) -> list[list[tuple[float, float]]]:
    """Split a line where points are missing."""
    pieces: list[list[tuple[float, float]]] = []
    for point in points:
        if not pieces or point[0] - pieces[-1][-1][0] > 1.5 * step_seconds:
            pieces.append([])
        pieces[-1].append(point)
    return pieces


def _runs(points: Sequence[tuple[float, float]], step_seconds: float) -> list[tuple[float, float, float]]:
    """Return start, end and value of each stretch of equal values."""
    runs: list[tuple[float, float, float]] = []
    for moment, value in points:
        if runs and runs[-1][2] == value and moment - runs[-1][1] <= step_seconds / 2:
            runs[-1] = (runs[-1][0], moment + step_seconds, value)
        else:
            runs.append((moment, moment + step_seconds, value))
    return runs


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    return f'<svg width="{width}" height="{height}">{"".join(parts)}</svg>'
