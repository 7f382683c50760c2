"""A Prometheus that holds the made run's half hour, as if it had watched it.

    python -m tests.monitoring.history FOLDER

starts one over FOLDER, says where it answers, and stops it at the end of its standard input. Recording rules and alerts
are evaluated by Prometheus itself: rules by promtool, two rounds since some build on others, alerts by queries.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grafana.queries import PanelQuery, Window, series_of
from tests.monitoring.made_run import STEP_SECONDS, MadeRun
from tests.monitoring.prometheus_server import Prometheus, tool

LENGTH_SECONDS = 1800
ROUNDS = 2
CONFIGURATION = "global: {evaluation_interval: 1h}\nrule_files: [rules.yml]\n"
# Samples that were loaded end without the mark that a scrape would leave, so a series must end by itself, and soon.
OPTIONS = (f"--query.lookback-delta={3 * STEP_SECONDS}s",)


def with_history(folder: Path) -> tuple[Prometheus, Window]:
    """Return a running Prometheus over *folder* with the made run in it, and the time of the run."""
    end = time.time() // STEP_SECONDS * STEP_SECONDS
    window = Window(start=end - LENGTH_SECONDS, end=end, step_seconds=STEP_SECONDS)
    data = folder / "data"
    _load(folder, samples_of_the_run(window))
    for _ in range(ROUNDS):
        prometheus = Prometheus(folder, CONFIGURATION, *OPTIONS)
        _promtool(
            "tsdb", "create-blocks-from", "rules", f"--start={window.start:.0f}", f"--end={window.end:.0f}",
            f"--url={prometheus.url}", f"--eval-interval={STEP_SECONDS}s", f"--output-dir={data}",
            str(folder / "rules.yml"),
        )  # fmt: skip
        prometheus.stop()
    prometheus = Prometheus(folder, CONFIGURATION, *OPTIONS)
    alerts = list(fired_alerts(prometheus, window))
    prometheus.stop()
    _load(folder, alerts)
    return Prometheus(folder, CONFIGURATION, *OPTIONS), window


def samples_of_the_run(window: Window) -> Iterator[str]:
    """Yield the OpenMetrics lines of the whole run."""
    run = MadeRun()
    now = window.start
    while now < window.end:
        now += STEP_SECONDS
        run.step(now)
        for service in run.services:
            for name, labels, value in service.samples():
                yield _line(name, labels, value, now)


def fired_alerts(prometheus: Prometheus, window: Window) -> Iterator[str]:
    """Yield the lines of ``ALERTS`` that the alert rules would have written over *window*."""
    with urllib.request.urlopen(f"{prometheus.url}/api/v1/rules?type=alert", timeout=30) as answer:
        groups = json.load(answer)["data"]["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        query = PanelQuery(
            board="", panel=rule["name"], panel_id=0, legend="", written="", expanded=rule["query"], is_instant=False
        )
        for series in series_of(prometheus.url, query, window):
            labels = series["metric"] | rule["labels"] | {"alertname": rule["name"], "alertstate": "firing"}
            labels.pop("__name__", None)
            for moment in _after(rule["duration"], [float(moment) for moment, _ in series["values"]]):
                yield _line("ALERTS", labels, 1, moment)


def _after(duration: float, moments: list[float]) -> Iterator[float]:
    """Yield the moments at which a condition that held at *moments* had held for *duration*."""
    since = previous = float("-inf")
    for moment in moments:
        since = since if moment - previous <= STEP_SECONDS else moment
        previous = moment
        if moment - since >= duration:
            yield moment


def _line(name: str, labels: dict[str, Any], value: float, moment: float) -> str:
    shown = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"{name}{{{shown}}} {value} {moment:.3f}\n"


def _load(folder: Path, lines: Iterator[str] | list[str]) -> None:
    """Write samples into Prometheus' data, while it is not running."""
    text = folder / "samples.txt"
    with open(text, "w") as file:
        file.writelines(lines)
        file.write("# EOF\n")
    _promtool("tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data"))


def _promtool(*arguments: str) -> None:
    done = subprocess.run([tool("promtool", "prometheus"), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    server, _ = with_history(Path(sys.argv[1]))
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()
