"""One Compose project under test: its commands, its containers, and what its services say."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_COMMAND_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Project:
    """A checkout's Compose project.

    Attributes:
        name: of the project; containers and volumes carry it.
        checkout: folder of the Compose files.
        environment: in which docker works; what ``.env`` would hold may be in it as well.
        files: the Compose files, in order.
    """

    name: str
    checkout: Path
    environment: Mapping[str, str]
    files: Sequence[str] = ("docker-compose.yml",)
    settings: Mapping[str, str] = field(default_factory=dict)

    def compose(self, *arguments: str, may_fail: bool = False) -> str:
        """Run ``docker compose``; return what it prints."""
        chosen = [part for file in self.files for part in ("-f", file)]
        command = ["docker", "compose", "-p", self.name, *chosen, *arguments]
        return self._run(command, may_fail=may_fail)

    def docker(self, *arguments: str, may_fail: bool = False) -> str:
        """Run ``docker``; return what it prints."""
        return self._run(["docker", *arguments], may_fail=may_fail)

    def _run(self, command: list[str], *, may_fail: bool) -> str:
        ended = subprocess.run(
            command,
            cwd=self.checkout,
            env={**self.environment, **self.settings},
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        if ended.returncode != 0 and not may_fail:
            raise AssertionError(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr[-3000:]}")
        return ended.stdout

    def containers(self, service: str, *, also_ended: bool = False) -> list[str]:
        """Return the ids of a service's containers."""
        listed = self.compose("ps", "--quiet", *(["--all"] if also_ended else []), service, may_fail=True)
        return listed.split()

    def inspect(self, container: str) -> dict[str, Any]:
        """Return all that docker knows of a container."""
        described: list[dict[str, Any]] = json.loads(self.docker("inspect", container))
        return described[0]

    def exit_code(self, container: str) -> int:
        """Return an ended container's exit code."""
        return int(self.inspect(container)["State"]["ExitCode"])

    def address(self, container: str) -> str:
        """Return a container's address on its project's network."""
        networks = self.inspect(container)["NetworkSettings"]["Networks"]
        return str(next(iter(networks.values()))["IPAddress"])

    def metrics(self, container: str) -> str:
        """Return a container's ``/metrics``; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.address(container)}:9100/metrics", timeout=5) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.URLError):
            return ""

    def status(self, run: str) -> dict[str, Any]:
        """Return a run's progress as ``hiddenstream status --json`` tells it in the sink's container."""
        told = self.compose("exec", "-T", "sink", "hiddenstream", "status", f"/runs/{run}", "--json", may_fail=True)
        progress: dict[str, Any] = json.loads(told) if told.startswith("{") else {}
        return progress

    def published(self, service: str, port: int) -> str:
        """Return the URL at which a service's port is published on this host."""
        return f"http://{self.compose('port', service, str(port)).strip()}"

    def logs(self, service: str) -> list[dict[str, Any]]:
        """Return the JSON lines that a service's containers have logged."""
        lines = self.compose("logs", "--no-log-prefix", service).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


def get_json(url: str) -> Any:
    """Return what *url* answers, as JSON."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)
