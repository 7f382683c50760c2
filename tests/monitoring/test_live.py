"""A real Prometheus scrapes real metrics that move: targets, rules, alerts and every query of every dashboard."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hiddenstream.chassis.metrics import MetricsServer
from tests.conftest import wait_until
from tests.monitoring.made_run import KILLED, STEP_SECONDS, MadeRun
from tests.monitoring.prometheus_server import GRAFANA, Prometheus
from tests.stack.dashboard_queries import answered

PACE_SECONDS = 0.2  # of real time for five of the run's
RATE_INTERVAL = "5s"


def configuration(ports: dict[str, list[int]]) -> str:
    """Return the project's own configuration, with fixed targets and half a second where it has five."""
    text = (GRAFANA / "prometheus.yml").read_text()
    config = yaml.safe_load(text.replace("_interval: 5s", "_interval: 500ms").replace("timeout: 4s", "timeout: 500ms"))
    for job in config["scrape_configs"]:
        if job.pop("dns_sd_configs", None):
            job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports[job["job_name"]]]}]
    return str(yaml.safe_dump(config))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus that watches the made run from shortly before a worker dies."""
    folder: Path = tmp_path_factory.mktemp("prometheus")
    run, stop = MadeRun(), threading.Event()
    while run.seconds < KILLED - 20 * STEP_SECONDS:
        run.step(time.time())
    served = [(service.job, MetricsServer(service.registry, listen=("127.0.0.1", 0))) for service in run.services]

    def move() -> None:
        while not stop.wait(PACE_SECONDS):
            run.step(time.time())

    moving = threading.Thread(target=move)
    moving.start()
    ports: dict[str, list[int]] = {}
    for job, server in served:
        ports.setdefault(job, []).append(server.port)
    watching = Prometheus(folder, configuration(ports))
    yield watching.url
    watching.stop()
    stop.set()
    moving.join()
    for _, server in served:
        server.close()


def ask(url: str, path: str) -> dict:
    with urllib.request.urlopen(f"{url}/api/v1/{path}", timeout=10) as answer:
        return json.load(answer)["data"]


def test_every_query_of_every_dashboard_gives_numbers(prometheus):
    """No panel asks for a series that is not there, or in a way that Prometheus does not understand."""

    def unanswered() -> list[str]:
        answers = answered(prometheus, last_seconds=120, rate_interval=RATE_INTERVAL)
        return [f"{query.panel}: {query.expanded}" for query, has_answer in answers.items() if not has_answer]

    wait_until(lambda: unanswered() == [], 90)
    assert [] == unanswered()


def test_every_target_is_scraped(prometheus):
    """Each of the four jobs has targets, and all are up."""
    wait_until(lambda: {one["health"] for one in ask(prometheus, "targets")["activeTargets"]} == {"up"})

    jobs = {one["labels"]["job"] for one in ask(prometheus, "targets")["activeTargets"]}

    assert {"producer", "gpu_worker", "sink", "prometheus"} == jobs


def test_every_rule_evaluates(prometheus):
    """Rules that record and rules that alert run without an error, templates of annotations included."""

    def rules() -> list[dict]:
        return [rule for group in ask(prometheus, "rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] == "ok" for rule in rules()))
    fired = [alert for rule in rules() for alert in rule.get("alerts", ())]

    assert "HiddenstreamQuarantine" in {alert["labels"]["alertname"] for alert in fired}
    assert [] == [alert for alert in fired if "error" in " ".join(alert["annotations"].values()).lower()]
