"""`docker compose up` as shipped: the demo with nothing set, a killed worker, more workers, proof, and what is shown.

The tests of this file tell one story, in order.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.stack.browser import browse
from tests.stack.dashboard_queries import wrongly_empty, wrongly_excused
from tests.stack.images import PYTHON_IMAGE, image_bytes
from tests.stack.project import Project, get_json

SERVICES = ("redis", "producer", "gpu_worker", "sink", "prometheus")  # not Grafana, whose image cannot be made here
OURS = ("producer", "gpu_worker", "sink")
MOST_LIGHT_BYTES = 450_000_000  # beyond its base
CONVERSATIONS = 80  # the demo's 200 would do as well, and take twice as long
RUN_SECONDS = 400


@pytest.fixture(scope="module")
def demo(images: dict[str, str], checkout: Path) -> Iterator[Project]:
    """The stack with nothing set but the demo's size, and ports that are free; two workers."""
    settings = {"STATUS_PORT": "0", "GRAFANA_PORT": "0", "DEMO_CONVERSATIONS": str(CONVERSATIONS)}
    project = Project(name="hs-demo", checkout=checkout, environment=images, settings=settings)
    try:
        project.compose("up", "--detach", "--scale", "gpu_worker=2", *SERVICES)
        yield project
    finally:
        project.compose("down", "--volumes", "--timeout", "5", may_fail=True)


def committed_shards(project: Project) -> int:
    return int(project.status("demo").get("committed_shards", 0))


def prometheus_url(project: Project) -> str:
    (container,) = project.containers("prometheus")
    return f"http://{project.address(container)}:9090"


def test_the_light_image_is_light(images):
    """Producer and sink need no torch; pyarrow, transformers and numpy fit into 450 MB."""
    added = image_bytes(images, "hiddenstream-light") - image_bytes(images, PYTHON_IMAGE)

    assert added <= MOST_LIGHT_BYTES


def test_base_image_is_the_dockerfiles(checkout):
    """What is pulled or stood in for is what the Dockerfile asks for."""
    assert f"ARG PYTHON_IMAGE={PYTHON_IMAGE}\n" in (checkout / "Dockerfile").read_text()


def test_everything_comes_up_with_nothing_set(demo):
    """Every service that has a health check passes it, in the order that they need one another."""

    def is_healthy(service: str) -> bool:
        return all(demo.inspect(c)["State"]["Health"]["Status"] == "healthy" for c in demo.containers(service))

    wait_until(lambda: all(is_healthy(service) for service in ("redis", "prometheus", *OURS)), 120)

    assert [len(demo.containers(service)) for service in SERVICES] == [1, 1, 2, 1, 1]


def test_only_the_page_is_published_and_on_loopback(demo):
    """Nobody else's machine reaches anything; Grafana, not started here, is checked in its definition."""
    published = {
        (service, binding["HostIp"], port)
        for service in SERVICES
        for container in demo.containers(service)
        for port, bindings in demo.inspect(container)["NetworkSettings"]["Ports"].items()
        for binding in bindings or ()
    }

    assert published == {("producer", "127.0.0.1", "8080/tcp")}
    assert re.findall(r"ports: (.*)", (demo.checkout / "docker-compose.yml").read_text()) == [
        '["${BIND:-127.0.0.1}:${STATUS_PORT:-8080}:8080"]',
        '["${BIND:-127.0.0.1}:${GRAFANA_PORT:-3000}:3000"]',
    ]


@pytest.mark.parametrize("service", OURS)
def test_a_service_has_no_more_rights_than_it_needs(demo, service):
    """No root, no capability, no way to write but to volumes and a temporary folder."""
    described = demo.inspect(demo.containers(service)[0])

    assert described["Config"]["User"] == "10001:10001"
    assert described["HostConfig"]["ReadonlyRootfs"] is True
    assert described["HostConfig"]["CapDrop"] == ["ALL"]
    assert described["HostConfig"]["Init"] is True


def test_secrets_are_made_and_asked_for(demo):
    """The sink and Redis refuse who has none; no container's environment shows one."""
    (redis,) = demo.containers("redis")
    token = demo.docker("exec", redis, "cat", "/secrets/sink_token").strip()
    asked = "import urllib.request as r; r.urlopen('http://sink:8760/v1/runs/demo')"
    refused = demo.docker("exec", demo.containers("producer")[0], "sh", "-c", f'python -c "{asked}" 2>&1 || true')

    assert len(token) == 48
    assert "HTTP Error 401" in refused
    assert "NOAUTH" in demo.docker("exec", redis, "redis-cli", "ping", may_fail=True)
    environments = [demo.inspect(c)["Config"]["Env"] for service in SERVICES for c in demo.containers(service)]
    assert token not in str(environments)


def test_the_run_survives_a_kill_a_stop_and_new_workers(demo):
    """One worker is killed, four are asked for, one of them is told to stop: the run ends complete."""
    wait_until(lambda: committed_shards(demo) >= 2, RUN_SECONDS)
    killed, stopped = demo.containers("gpu_worker")

    demo.docker("kill", "--signal", "KILL", killed)
    demo.compose("up", "--detach", "--no-recreate", "--scale", "gpu_worker=4", "gpu_worker")
    demo.docker("stop", "--time", "300", stopped)
    wait_until(lambda: demo.status("demo").get("is_complete"), RUN_SECONDS)

    progress = demo.status("demo")
    assert demo.exit_code(stopped) == 0
    assert progress["planned_samples"] == progress["committed_samples"] == CONVERSATIONS
    assert progress["quarantined_samples"] == progress["to_do_samples"] == 0


def test_the_result_is_proven(demo):
    """verify reads every byte again, in the container."""
    told = demo.compose("exec", "-T", "sink", "hiddenstream", "verify", "/runs/demo")

    assert f"{CONVERSATIONS} planned = {CONVERSATIONS} committed + 0 quarantined + 0 to do" in told
    assert "every byte is as committed" in told


def test_services_stay_to_be_looked_at(demo):
    """After the run's end the page, the metrics and the workers are still there."""
    demo.compose("up", "--detach", "--no-recreate", "--scale", "gpu_worker=4", *SERVICES)
    page = f"{demo.published('producer', 8080)}/status.json"
    wait_until(lambda: get_json(page)["live_workers"] == 4, 60)
    status = get_json(page)

    assert len(demo.containers("gpu_worker")) == 4
    assert status["state"] == "complete"
    assert {worker["state"] for worker in status["workers"]} <= {"complete", "gone"}


def test_prometheus_finds_every_replica(demo):
    """All four workers, the producer and the sink are targets, and up."""

    def up() -> dict[str, int]:
        targets = get_json(f"{prometheus_url(demo)}/api/v1/targets")["data"]["activeTargets"]
        healthy = [target["labels"]["job"] for target in targets if target["health"] == "up"]
        return {job: healthy.count(job) for job in sorted(set(healthy))}

    wait_until(lambda: up().get("gpu_worker") == 4, 60)

    assert up() == {"gpu_worker": 4, "producer": 1, "prometheus": 1, "sink": 1}


def test_prometheus_has_read_the_rules(demo):
    """Every group is evaluated without an error."""
    groups = get_json(f"{prometheus_url(demo)}/api/v1/rules")["data"]["groups"]
    wrong = [rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"]

    assert groups
    assert [] == wrong


def test_every_panel_has_series(demo):
    """Each query of each dashboard gives numbers for this run; what is rightly empty is on a list, with its reason."""
    assert [] == wrongly_empty(prometheus_url(demo), last_seconds=900)
    assert [] == wrongly_excused(prometheus_url(demo), last_seconds=900)


def test_the_page_shows_the_end_in_a_browser(demo, tmp_path):
    """Chromium shows that the run is complete, and makes a picture of it."""
    page = demo.published("producer", 8080)

    browse(tmp_path / "profile", page, f"--screenshot={tmp_path / 'page.png'}", size=(1280, 1600))
    shown = browse(tmp_path / "profile", page, "--dump-dom", size=(1280, 1600))

    assert "complete" in shown.lower()
    assert str(CONVERSATIONS) in shown
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_services_end_within_their_grace(demo):
    """SIGTERM to all of them, workers before the sink: each ends by itself, with the code of a complete run."""
    containers = {service: demo.containers(service) for service in OURS}

    demo.compose("stop", *OURS)

    assert {service: [demo.exit_code(container) for container in ended] for service, ended in containers.items()} == {
        "producer": [0],
        "gpu_worker": [0, 0, 0, 0],
        "sink": [0],
    }


def test_nothing_is_left(images, demo):
    """`down -v` removes every container and volume of the project."""
    demo.compose("down", "--volumes", "--timeout", "5")
    left = [
        subprocess.run(["docker", *what], env=images, capture_output=True, text=True, check=True).stdout
        for what in (
            ["ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project=hs-demo"],
            ["volume", "ls", "--quiet", "--filter", "label=com.docker.compose.project=hs-demo"],
        )
    ]

    assert left == ["", ""]
