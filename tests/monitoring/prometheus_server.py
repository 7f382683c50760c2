"""A real Prometheus of the test's own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.conftest import wait_until

GRAFANA = Path(__file__).parent.parent.parent / "grafana"


def tool(name: str, package: str) -> str:
    """Return the path of a program, or skip the test on a laptop that lacks it, and fail in CI."""
    found = shutil.which(name)
    if found is None:
        missing = f"{name} is not on PATH; install {package}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


class Prometheus:
    """A running server.

    Attributes:
        url: where it answers.
    """

    def __init__(self, folder: Path, configuration: str, *options: str) -> None:
        """Start it in *folder*, whose ``data`` it keeps its series in, and wait until it answers."""
        binary = tool("prometheus", "prometheus")
        shutil.copy(GRAFANA / "rules.yml", folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{address}"
        (folder / "prometheus.yml").write_text(configuration.replace("localhost:9090", address))
        command = [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", *options]
        with open(folder / "prometheus.log", "ab") as log:
            self._process = subprocess.Popen(
                [*command, f"--web.listen-address={address}"], stdout=log, stderr=log, cwd=folder
            )
        wait_until(self._is_ready)

    def stop(self) -> None:
        """End it, and keep its data."""
        self._process.terminate()
        self._process.wait(timeout=30)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "Prometheus ended; see prometheus.log"
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
