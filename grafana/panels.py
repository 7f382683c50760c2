"""What a dashboard is made of, before Grafana's JSON: plain values, and the grid that they are laid out on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

GRID_COLUMNS = 24
TAG = "hiddenstream"
DATASOURCE_UID = "hiddenstream-prometheus"  # of grafana/provisioning/datasources
GREEN, YELLOW, ORANGE, RED, BLUE, PURPLE, GREY = "green", "yellow", "orange", "red", "blue", "purple", "#8e8e8e"
Kind = Literal["stat", "lines", "heatmap", "states", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        queries: PromQL by legend; a legend may name labels, as in ``{{instance}}``.
        unit: of Grafana's list of units.
        thresholds: pairs of a lower bound and the colour from there on; below the first it is ``base_color``.
        meanings: text and colour of single values, for ``states`` and ``stat``.
        hidden_columns: labels that a table leaves out.
        no_value: what is shown where there is no series.
    """

    kind: Kind
    title: str
    description: str
    queries: Mapping[str, str]
    unit: str
    width: int = 8
    height: int = 8
    decimals: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    thresholds: Sequence[tuple[float, str]] = ()
    base_color: str = GREEN
    meanings: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    is_stacked: bool = False
    hidden_columns: Sequence[str] = ()
    no_value: str = "no data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Panels under one heading; an empty title draws none."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard.

    Attributes:
        uid: of the dashboard in Grafana, and its file's name.
        has_instances: whether one chooses workers in it, by ``$instance``.
    """

    uid: str
    title: str
    description: str
    sections: Sequence[Section]
    has_instances: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something stands on the grid, in its units; ``panel`` is None for a heading."""

    x: int
    y: int
    width: int
    height: int
    title: str
    panel: Panel | None


def places_of(board: Board) -> Iterator[Place]:
    """Yield headings and panels from left to right and top to bottom, each line as high as its highest panel."""
    y = 0
    for section in board.sections:
        if section.title:
            yield Place(x=0, y=y, width=GRID_COLUMNS, height=1, title=section.title, panel=None)
            y += 1
        x = line_height = 0
        for panel in section.panels:
            if x + panel.width > GRID_COLUMNS:
                x, y, line_height = 0, y + line_height, 0
            yield Place(x=x, y=y, width=panel.width, height=panel.height, title=panel.title, panel=panel)
            x, line_height = x + panel.width, max(line_height, panel.height)
        y += line_height


def one_of(metric: str, label: str, words: Sequence[str], *, only: str = "") -> str:
    """Return PromQL for the place in *words* of the one whose 0-or-1 series is 1, by instance.

    Grafana's state timeline shows one series a line, and names its numbers by mappings.
    """
    terms = [f'{place} * {metric}{{{label}="{word}"{only}}}' for place, word in enumerate(words)]
    return f"sum by (instance) ({' or '.join(terms)})"
