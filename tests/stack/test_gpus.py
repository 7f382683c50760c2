"""compose.gpu.yaml on a host without a GPU: an engine that grants every request, and a driver library that is a stub.

It shows who claims what, and that MODEL, MODELS, DATA, LAYERS and OUT make a run of one's own. It shows no CUDA.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.stack.project import Project
from tests.tiny import random_rows, save_tiny_model

STUB = Path(__file__).parent.parent / "gpu_worker" / "stub_nvml.c"
STUB_FILE = "compose.stub.yaml"
FILES = ("docker-compose.yml", "compose.gpu.yaml", STUB_FILE)
GPUS = 2


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and some rows on this host; the folder for the output is left to be made."""
    folder = tmp_path_factory.mktemp("inputs")
    folder.chmod(0o755)
    for parent in folder.parents:
        if parent != Path("/") and parent.stat().st_uid == folder.stat().st_uid:
            parent.chmod(parent.stat().st_mode | 0o055)
    for file in save_tiny_model("llama", folder / "models" / "tiny").iterdir():
        file.chmod(0o644)
    rows = "".join(json.dumps(row) + "\n" for row in random_rows([9, 14, 30, 5, 22, 17] * 4))
    (folder / "rows.jsonl").write_text(rows)
    library = folder / "driver" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(STUB)], check=True)
    return folder


@pytest.fixture(scope="module")
def projects(images: dict[str, str], checkout: Path, inputs: Path) -> Iterator[tuple[Project, Project]]:
    """Two projects on one host; each with a run planned but nothing delivered, so that workers stay as they are."""
    stub = {
        "services": {
            "gpu_worker": {
                "environment": {"LD_LIBRARY_PATH": "/driver", "STUB_NVML_GPUS": str(GPUS)},
                "volumes": [f"{inputs}/driver:/driver:ro"],
            }
        }
    }
    (checkout / STUB_FILE).write_text(json.dumps(stub))
    both = tuple(
        Project(
            name=f"hs-gpu-{run}",
            checkout=checkout,
            environment=images,
            files=FILES,
            settings={
                **{"MODELS": f"{inputs}/models", "MODEL": "/models/tiny", "DATA": f"{inputs}/rows.jsonl"},
                **{"LAYERS": "0,2", "OUT": f"{inputs}/out", "RUN": run, "DEVICE": "auto", "STATUS_PORT": "0"},
            },
        )
        for run in ("one", "two")
    )
    try:
        for project, run in zip(both, ("one", "two"), strict=True):
            project.compose("up", "--detach", "redis", "sink")
            project.compose("run", "--rm", "-T", "--no-deps", "producer", "plan", f"/runs/{run}")
        yield both
    finally:
        for project in both:
            project.compose("down", "--volumes", "--timeout", "5", may_fail=True)


def claimed(project: Project) -> dict[str, str]:
    """Return which GPU each running worker of a project shows in its metrics."""
    found = {}
    for container in project.containers("gpu_worker"):
        for line in project.metrics(container).splitlines():
            if line.startswith("hiddenstream_worker_gpu_info{"):
                found[container] = line.partition('uuid="')[2].partition('"')[0]
    return found


def waiting(project: Project) -> list[str]:
    """Return the containers whose worker shows that it waits for a GPU."""
    shown = 'hiddenstream_worker_state{state="waiting_for_gpu"} 1.0'
    return [container for container in project.containers("gpu_worker") if shown in project.metrics(container)]


def test_a_worker_may_claim_several(projects):
    """With two GPUs for each, one worker has both, and lets go of both."""
    _, two = projects
    greedy = replace(two, settings={**two.settings, "GPUS_PER_WORKER": "2"})

    greedy.compose("up", "--detach", "--no-deps", "gpu_worker")
    wait_until(lambda: "hiddenstream_worker_gpus_claimed 2.0" in greedy.metrics(greedy.containers("gpu_worker")[0]), 60)
    greedy.compose("rm", "--stop", "--force", "gpu_worker")

    assert [] == greedy.containers("gpu_worker")


def test_the_request_for_gpus_reaches_the_engine(projects):
    """Every replica asks for all GPUs; which one it takes is settled among them."""
    one, _ = projects

    one.compose("up", "--detach", "--no-deps", "--scale", "gpu_worker=2", "gpu_worker")

    for container in one.containers("gpu_worker"):
        described = one.inspect(container)["HostConfig"]["DeviceRequests"]
        assert [(asked["Driver"], asked["Count"], asked["Capabilities"]) for asked in described] == [
            ("nvidia", -1, [["gpu"]])
        ]


def test_each_replica_claims_a_gpu_of_its_own(projects):
    """Two replicas, two GPUs: one each, shown in their metrics."""
    one, _ = projects

    wait_until(lambda: len(claimed(one)) == GPUS, 120)

    assert len(set(claimed(one).values())) == GPUS


def test_a_replica_too_many_waits_and_says_so(projects):
    """A third one of the project, and one of another project on this host, wait; nobody shares."""
    one, two = projects

    one.compose("up", "--detach", "--no-deps", "--no-recreate", "--scale", "gpu_worker=3", "gpu_worker")
    two.compose("up", "--detach", "--no-deps", "--scale", "gpu_worker=1", "gpu_worker")
    wait_until(lambda: len(waiting(one)) == 1 and len(waiting(two)) == 1, 120)

    assert len(set(claimed(one).values())) == GPUS
    assert {} == claimed(two)
    assert "gpu_waited_for" in {line["event"] for line in two.logs("gpu_worker")}


def test_a_killed_owners_gpu_is_claimed_by_who_waits(projects):
    """The kernel lifts the lock with the process; the first to look takes it."""
    one, two = projects
    killed, freed = sorted(claimed(one).items())[0]

    one.docker("kill", killed)
    wait_until(lambda: freed in {*claimed(one).values(), *claimed(two).values()}, 30)

    owners = [*claimed(one).values(), *claimed(two).values()]
    assert len(owners) == len(set(owners)) == GPUS


def test_both_runs_end_complete_where_out_says(projects, inputs):
    """With the producers started, the GPUs go from the project that is done to the one that waits."""
    for project in projects:
        project.compose("up", "--detach", "--no-deps", "producer")
    for project, run in zip(projects, ("one", "two"), strict=True):
        wait_until(lambda project=project, run=run: project.status(run).get("is_complete"), 120)

    assert (inputs / "out").stat().st_uid == 10001  # Docker made it, and root's it was
    for run in ("one", "two"):
        record = json.loads((inputs / "out" / run / "run.json").read_text())
        assert record["identity"]["taps"] == ["block.0", "block.2"]
        assert record["samples"] == 24
