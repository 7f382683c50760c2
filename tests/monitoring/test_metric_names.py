"""Rules and dashboards name only series that a service declares, with labels that these have."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from docs.generate import METRICS, declared_metrics, exposed_name
from tests.monitoring.made_services import MadeService
from tests.monitoring.test_rules import RULES
from tests.stack.dashboard_queries import NO_GPU, RIGHTLY_EMPTY, every_query

SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
TARGET_LABELS = {"instance", "job"}
OWN = {"up": TARGET_LABELS, "ALERTS": {"alertname", "alertstate", "severity"}}
SELECTOR = re.compile(r"\b(hiddenstream[_:]\w+|up|ALERTS)\b(?:\{([^}]*)\})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")


def known_series() -> dict[str, set[str]]:
    """Return every series that there can be, with its labels."""
    known: dict[str, set[str]] = dict(OWN)
    for service in METRICS:
        for metric in declared_metrics(service):
            (described,) = metric.describe()
            for suffix in SUFFIXES.get(described.type, ("",)):
                labels = {*metric._labelnames, *TARGET_LABELS} | ({"le"} if suffix == "_bucket" else set())
                known[exposed_name(metric) + suffix] = labels
    return known | {rule["record"]: {"instance", "activity"} for rule in RULES if "record" in rule}


def expressions() -> Iterator[tuple[str, str]]:
    """Yield where an expression stands, and the expression."""
    for rule in RULES:
        yield rule.get("alert") or rule["record"], rule["expr"]
    for query in every_query():
        yield f"{query.board}: {query.panel}", query.expanded


def mistakes(expression: str, known: dict[str, set[str]]) -> list[str]:
    """Return the series that nobody declares, and the labels that a series has not."""
    found = []
    for name, labels in SELECTOR.findall(expression):
        if name not in known:
            found.append(name)
        else:
            found += [f"{name}{{{label}}}" for label in LABEL.findall(labels) if label not in known[name]]
    return found


def test_every_series_of_rules_and_dashboards_is_declared():
    """A metric that was renamed without its panel fails here."""
    known = known_series()

    assert [] == sorted({f"{where}: {name}" for where, text in expressions() for name in mistakes(text, known)})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("rate(hiddenstream_sink_no_such_total[1m])", ["hiddenstream_sink_no_such_total"]),
        ("hiddenstream_sink_fsync_seconds", ["hiddenstream_sink_fsync_seconds"]),
        ('up{jobs="sink"}', ["up{jobs}"]),
        ("sum by (le) (rate(hiddenstream_sink_fsync_seconds_bucket[5m]))", []),
    ],
)
def test_mistakes_are_found(expression, expected):
    """An unknown series, a histogram without its suffix, and an unknown label are found."""
    assert expected == mistakes(expression, known_series())


def test_a_panel_that_answers_from_the_start_is_not_excused():
    """Series that are there before anything happened give numbers, so a panel that only shows them must have some."""
    at_start = {name for service in METRICS for name, _, _ in MadeService(service, "one:9100").samples()}
    shown = [query for query in every_query() if RIGHTLY_EMPTY.get(query.panel, NO_GPU) != NO_GPU]
    answering = [
        query.panel
        for query in shown
        if not re.search(r"[<>]", query.expanded) and {name for name, _ in SELECTOR.findall(query.expanded)} <= at_start
    ]

    assert shown
    assert [] == answering
