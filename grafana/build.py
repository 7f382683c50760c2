"""Turning a board into the JSON that Grafana 11 reads, by Grafana's own builders."""

from __future__ import annotations

import json
from typing import Any, cast

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.panels import GREY, TAG, Board, Panel, places_of

_DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
_BUILDERS: dict[str, Any] = {
    "stat": stat.Panel,
    "lines": timeseries.Panel,
    "heatmap": heatmap.Panel,
    "states": statetimeline.Panel,
    "table": table.Panel,
}


def json_of(board: Board) -> str:
    """Return the dashboard as JSON text, the same for the same board."""
    built = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .link(_links())
    )
    for variable in _variables(board):
        built.with_variable(variable)
    for number, place in enumerate(places_of(board), start=1):
        position = dashboard.GridPos(x=place.x, y=place.y, w=place.width, h=place.height)
        if place.panel is None:
            built.with_row(builders.Row(place.title).id(number).grid_pos(position))
        else:
            built.with_panel(_panel(place.panel).id(number).grid_pos(position))
    return json.dumps(built.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _links() -> Any:
    """Return the menu of the other dashboards, which keeps the time range and the variables."""
    return (
        builders.DashboardLink("hiddenstream")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(False)
        .keep_time(True)
        .include_vars(True)
    )


def _variables(board: Board) -> list[Any]:
    chosen: list[Any] = [builders.DatasourceVariable("datasource").label("Data source").type("prometheus")]
    if board.has_instances:
        chosen.append(
            builders.QueryVariable("instance")
            .label("Worker")
            .datasource(_DATASOURCE)
            .query("label_values(hiddenstream_worker_is_ready, instance)")
            .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
            .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    return chosen


def _panel(panel: Panel) -> Any:
    built: Any = _BUILDERS[panel.kind]()
    built.title(panel.title).description(panel.description).datasource(_DATASOURCE)
    built.unit(panel.unit).no_value(panel.no_value)
    if panel.decimals is not None:
        built.decimals(panel.decimals)
    if panel.minimum is not None:
        built.min(panel.minimum)
    if panel.maximum is not None:
        built.max(panel.maximum)
    steps = [dashboard.Threshold(value=None, color=panel.base_color)]
    steps += [dashboard.Threshold(value=bound, color=color) for bound, color in panel.thresholds]
    built.thresholds(builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps))
    built.mappings(_mappings(panel))
    for letter, (legend, expression) in zip("ABCDEFGH", panel.queries.items(), strict=False):
        built.with_target(_target(panel, expression, legend).ref_id(letter))
    _SHAPES[panel.kind](built, panel)
    return built


def _target(panel: Panel, expression: str, legend: str) -> Any:
    query = prometheus.Dataquery().expr(expression).legend_format(legend).datasource(_DATASOURCE)
    if panel.kind == "table":
        return query.instant().format(PromQueryFormat.TABLE)
    if panel.kind == "heatmap":
        return query.range().format(PromQueryFormat.HEATMAP)
    return query.range()


def _mappings(panel: Panel) -> list[Any]:
    named = {
        str(value): dashboard.ValueMappingResult(text=text, color=color, index=place)
        for place, (value, (text, color)) in enumerate(panel.meanings.items())
    }
    nothing = dashboard.DashboardSpecialValueMapOptions(
        match=dashboard.SpecialValueMatch.NULL_AND_NAN,
        result=dashboard.ValueMappingResult(text=panel.no_value, color=GREY, index=len(named)),
    )
    return [dashboard.ValueMap(options=named)] * bool(named) + [dashboard.SpecialValueMap(options=nothing)]


def _color_mode(mode: dashboard.FieldColorModeId) -> Any:
    return builders.FieldColor().mode(mode)


def _shape_stat(built: Any, _: Panel) -> None:
    built.color_mode(common.BigValueColorMode.VALUE).graph_mode(common.BigValueGraphMode.AREA)
    built.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields(""))
    built.color_scheme(_color_mode(dashboard.FieldColorModeId.THRESHOLDS))


def _shape_lines(built: Any, panel: Panel) -> None:
    has_many = len(panel.queries) > 4 or any("{{" in legend for legend in panel.queries)
    built.legend(
        common_builders.VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.LIST if has_many else common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .calcs(["lastNotNull"] if has_many else ["lastNotNull", "max"])
    )
    built.tooltip(
        common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    )
    built.color_scheme(_color_mode(dashboard.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    built.line_width(1).fill_opacity(60 if panel.is_stacked else 8).show_points(common.VisibilityMode.NEVER)
    if panel.is_stacked:
        built.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if panel.thresholds:
        built.thresholds_style(
            common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )


def _shape_heatmap(built: Any, panel: Panel) -> None:
    built.calculate(False).y_axis(heatmap.YAxisConfig().unit(panel.unit))
    built.color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))


def _shape_states(built: Any, _: Panel) -> None:
    built.merge_values(True).show_value(common.VisibilityMode.AUTO).row_height(0.85).fill_opacity(75)
    built.color_scheme(_color_mode(dashboard.FieldColorModeId.THRESHOLDS))


def _shape_table(built: Any, panel: Panel) -> None:
    hidden = dict.fromkeys(("Time", "__name__", *panel.hidden_columns), True)
    built.show_header(True).with_transformation(
        dashboard.DataTransformerConfig(
            id_val="organize", options=cast(object, {"excludeByName": hidden, "indexByName": {}, "renameByName": {}})
        )
    )


_SHAPES = {
    "stat": _shape_stat,
    "lines": _shape_lines,
    "heatmap": _shape_heatmap,
    "states": _shape_states,
    "table": _shape_table,
}
