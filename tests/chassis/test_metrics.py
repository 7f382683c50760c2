"""The metrics server answers scrapes and health checks."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from hiddenstream.chassis.metrics import MetricsServer
from hiddenstream.contracts.errors import UsageError


class Health:
    """A health that a test sets."""

    is_good = True


@pytest.fixture
def health() -> Health:
    """Good until told otherwise."""
    return Health()


@pytest.fixture
def server(health) -> Iterator[MetricsServer]:
    """A server on a free port, with one counter."""
    registry = CollectorRegistry()
    Counter("example_total", "An example.", registry=registry).inc(3)
    server = MetricsServer(registry, listen=("127.0.0.1", 0), is_healthy=lambda: health.is_good)
    yield server
    server.close()


def get(server: MetricsServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_are_served(server):
    """A scrape gets every series of the registry."""
    status, text = get(server, "/metrics")

    assert status == 200
    assert "example_total 3.0" in text.splitlines()


def test_health_follows_the_service(server, health):
    """200 while it is healthy, 503 while it is not."""
    while_good = get(server, "/healthz")
    health.is_good = False

    assert [while_good[0], get(server, "/healthz")[0]] == [200, 503]


def test_nothing_else_is_there(server):
    """Other paths are 404."""
    assert get(server, "/")[0] == 404


def test_a_taken_port_is_a_usage_error(server):
    """The error names flag and port, and the way out."""
    with pytest.raises(UsageError, match=rf"--metrics-listen 127\.0\.0\.1:{server.port}: .*or 0"):
        MetricsServer(CollectorRegistry(), listen=("127.0.0.1", server.port))
