"""`make up`: what it finds out before it calls Docker. Docker itself is a script here that notes how it was called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "docker" / "up.sh"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the script, and a `docker` that writes its arguments and RUN_AS to a file."""
    (tmp_path / "project" / "docker").mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "project" / "docker" / "up.sh")
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    docker.chmod(0o755)
    return tmp_path / "project"


def up(project: Path, settings: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script with this `.env`."""
    (project / ".env").write_text(settings)
    environment = {"PATH": f"{project.parent}/bin:{os.environ['PATH']}", "HOME": str(project.parent)}
    command = [project / "docker" / "up.sh", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)


def called(project: Path) -> str:
    """Return how docker was called."""
    file = project.parent / "called"
    return file.read_text() if file.exists() else ""


def test_it_starts_in_the_background_and_says_where_to_look(project):
    """Arguments go to `docker compose up`; the addresses follow the ports that are set."""
    done = up(project, 'STATUS_PORT="8081" # mine\n', "--scale", "gpu_worker=4")

    assert 0 == done.returncode, done.stderr
    assert "compose up --detach --build --scale gpu_worker=4\n" == called(project)
    assert "http://127.0.0.1:8081\n" in done.stdout
    assert "http://127.0.0.1:3000\n" in done.stdout


def test_the_services_run_as_the_owner_of_the_output(project):
    """The folder is made, and its owner is kept in .env, so that plain `docker compose` does the same."""
    assert 0 == up(project, "OUT=~/out\n").returncode

    found = (project.parent / "out").stat()
    assert f"RUN_AS={found.st_uid}:{found.st_gid}\n" in (project / ".env").read_text()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("DATA=./missing.jsonl\n", "./missing.jsonl: there is no such file"),
        ("MODELS=/nowhere/models\n", "/nowhere/models: there is no such file"),
        ("DATA=chats.jsonl\n", "DATA=chats.jsonl: begin with ./ or /"),
        ("OUT=runs\n", "OUT=runs: begin with ./ or /"),
    ],
)
def test_a_path_that_docker_would_misread_is_refused(project, settings, says):
    """Docker would make an empty folder, or take a path for the name of a volume."""
    done = up(project, settings)

    assert 2 == done.returncode
    assert says in done.stderr
    assert "" == called(project)
