"""The overview's count of failures, by promtool: what it adds up, also once those who told of it are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.test_rules import promtool
from tests.stack.dashboard_queries import every_query

FAILED = 'hiddenstream_worker_deliveries_total{instance="w1:9100", outcome="failed"}'
DEATHS = 'hiddenstream_worker_engine_deaths_total{instance="w1:9100"}'
QUARANTINED = 'hiddenstream_producer_samples_quarantined{instance="p:9100", reason="non_finite"}'
STUCK = 'hiddenstream_producer_shards_stuck{instance="p:9100"}'
QUIET = "0+0x31"
# In the whole half hour each counts what no other does, so that the sum tells which one is missing.
HAPPENED = {
    FAILED: "0+0x10 1+0x20",
    DEATHS: "0+0x10 20+0x20",
    QUARANTINED: "0+0x10 300+0x20",
    STUCK: "0+0x10 4000+0x20",
}


def complaint(series: dict[str, str], expected: float, folder: Path) -> str:
    """Return what promtool says where the tile does not show *expected* after half an hour; nothing if it does."""
    (tile,) = [query for query in every_query() if query.panel == "Failures"]
    told: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": f"round({tile.expanded})", "eval_time": "30m", "exp_samples": [{"value": expected}]}
        ],
    }
    (folder / "failures.yml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [told]}))
    done = promtool(folder, "test", "rules", "failures.yml")
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize(("name", "rises"), [(FAILED, 1), (DEATHS, 20), (QUARANTINED, 300), (STUCK, 4000)])
def test_each_kind_of_failure_counts(name, rises, tmp_path):
    """Deliveries, engines, samples and shards are each counted where nothing else went wrong."""
    only = dict.fromkeys(HAPPENED, QUIET) | {name: HAPPENED[name]}

    assert "" == complaint(only, 0.0 + rises, tmp_path)


@pytest.mark.parametrize("gone", ["producer", "worker"])
def test_failures_outlive_who_told_of_them(gone, tmp_path):
    """A producer that ended over stuck shards, or workers that are gone, leave the count as it was."""
    ended = {name: values.replace("x20", "x10 stale") if gone in name else values for name, values in HAPPENED.items()}

    assert "" == complaint(ended, 4321.0, tmp_path)


def test_what_a_new_producer_says_of_stuck_shards_holds(tmp_path):
    """Shards that were stuck in an earlier producer's time, and are not now, are no failure any more."""
    again = {STUCK: "0+0x10 2+0x5 stale", STUCK.replace("p:", "p2:"): "_x20 0+0x11"}

    assert "" == complaint(again, 0.0, tmp_path)


@pytest.mark.parametrize("left", [FAILED, DEATHS, QUARANTINED, STUCK])
def test_one_kind_is_counted_where_nobody_tells_of_the_others(left, tmp_path):
    """A sum is not empty since one of its parts is."""
    rises = {FAILED: 1, DEATHS: 20, QUARANTINED: 300, STUCK: 4000}[left]

    assert "" == complaint({left: HAPPENED[left]}, 0.0 + rises, tmp_path)
