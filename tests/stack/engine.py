"""A Docker engine for the tests: the one that runs here, else one of our own, with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.conftest import wait_until

_STARTS_WITHIN_SECONDS = 60
_ENDS_WITHIN_SECONDS = 60


class NoEngine(Exception):
    """There is no Docker engine, and none can be started."""


@contextlib.contextmanager
def docker_engine() -> Iterator[dict[str, str]]:
    """Yield the environment in which ``docker`` and ``docker compose`` work.

    An engine of our own takes every request for an NVIDIA GPU as granted, by a hook that does nothing: that shows what
    is asked for, not that there is a GPU.

    Raises:
        NoEngine: says what is missing.
    """
    if shutil.which("docker") is None:
        raise NoEngine("docker is not installed")
    with tempfile.TemporaryDirectory(prefix="hs-docker-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        environment = {**os.environ, "DOCKER_CONFIG": str(_config(folder))}
        if _answers(environment):
            yield environment
            return
        if shutil.which("dockerd") is None or os.geteuid() != 0:
            raise NoEngine("no Docker engine answers, and to start one takes dockerd and root")
        environment["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
        with _own_engine(folder, environment):
            yield environment


def _config(folder: Path) -> Path:
    """Make a Docker configuration that finds the Compose plugin, also where only the Python package has it."""
    plugins = folder / "config" / "cli-plugins"
    plugins.mkdir(parents=True)
    found = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    compose = shutil.which("docker-compose", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found.returncode != 0 and compose:
        (plugins / "docker-compose").symlink_to(compose)
    return plugins.parent


def _answers(environment: Mapping[str, str]) -> bool:
    return subprocess.run(["docker", "info"], capture_output=True, env=environment, check=False).returncode == 0


@contextlib.contextmanager
def _own_engine(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    hook = folder / "bin" / "nvidia-container-runtime-hook"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    with open(folder / "dockerd.log", "wb") as log:
        process = subprocess.Popen(
            [
                "dockerd",
                *("--data-root", str(folder / "data")),
                *("--exec-root", str(folder / "exec")),
                *("--host", environment["DOCKER_HOST"]),
                *("--pidfile", str(folder / "docker.pid")),
            ],
            env={**environment, "PATH": f"{hook.parent}:{environment['PATH']}"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(
            lambda: _answers(environment) or process.poll() is not None,
            deadline_seconds=_STARTS_WITHIN_SECONDS,
        )
        if process.poll() is not None:
            raise NoEngine(f"dockerd ended: {(folder / 'dockerd.log').read_text()[-2000:]}")
        yield
    finally:
        process.send_signal(signal.SIGTERM)  # it stops its containers; a SIGKILL would leave them
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_WITHIN_SECONDS)
        for mounted in (folder / "exec" / "netns").glob("*"):
            subprocess.run(["umount", "-l", str(mounted)], check=False)
