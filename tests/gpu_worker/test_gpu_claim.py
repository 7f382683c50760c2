"""Workers that share a host's GPUs: real processes, and a stub in place of NVIDIA's driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_worker.gpu_claim import visible_gpus
from gpu_worker.nvml import Gpu
from hiddenstream.contracts.queue import report_key
from hiddenstream.contracts.worker_report import WorkerReport
from tests.conftest import wait_until
from tests.gpu_worker.stub_gpus import build_stub, stub_uuid
from tests.gpu_worker.test_supervisor import ROWS, health, scraped
from tests.pipeline.services import Service, Services, assert_complete_and_equal
from tests.tiny import random_rows, write_rows

GPUS = [Gpu(uuid=f"GPU-{name}", name="a GPU") for name in ("aaaa", "aabb", "bbbb")]


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A driver with two GPUs for every process that a test starts; returns how to set their number."""
    (tmp_path / "driver").mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build_stub(tmp_path / "driver")))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def number_of_gpus(number: int) -> None:
        monkeypatch.setenv("STUB_NVML_GPUS", str(number))

    number_of_gpus(2)
    return number_of_gpus


class AProject:
    """A planned run whose producer delivers nothing yet, so that workers that get a GPU stay."""

    def __init__(self, root: Path, redis_url: str, model: Path, rows=ROWS) -> None:
        root.mkdir()
        self.services = Services(root, redis_url)
        data = write_rows(rows, root / "rows.jsonl")
        what = ["--model", str(model), "--data", str(data), "--layers", "0,2", "--dtype", "float32"]
        self.sink = self.services.sink()
        self.producer = self.services.producer(*what, "--token-budget", "64", "--reserve-bytes", "0")
        wait_until(self.services.paths.is_planned, 60)
        self.producer.process.send_signal(signal.SIGSTOP)
        self._locks = root.parent / "locks"

    def worker(self, name: str, *arguments: str) -> Service:
        """Start a worker that may use any GPU of the host, by the folder of locks that all projects share."""
        return self.services.worker(name, "--device", "auto", "--gpu-locks", str(self._locks), *arguments)

    def report_of(self, name: str) -> WorkerReport | None:
        """Return what a worker says of itself in Redis."""
        data = self.services.client().get(report_key(self.services.queue(), name))
        return None if data is None else WorkerReport.decode(data)


@pytest.fixture
def make_project(tmp_path, redis_server, tiny_model):
    """Return a maker of projects, which end with the test."""
    made = []

    def make(name: str, rows=ROWS) -> AProject:
        made.append(AProject(tmp_path / name, redis_server.url, tiny_model("llama"), rows))
        return made[-1]

    yield make
    for project in made:
        project.services.end()


def claimed(worker) -> list[str]:
    """Return the UUIDs that a worker has claimed."""
    return [uuid for event in worker.events("gpus_claimed") for uuid in event["gpus"]]


def test_workers_take_different_gpus_and_the_surplus_one_waits(stub, make_project):
    """Two of three workers get a GPU each, the third says who has them, and takes over from a killed one at once."""
    project = make_project("project")
    workers = [project.worker(name) for name in ("worker-a", "worker-b", "worker-c")]
    wait_until(lambda: 2 == sum(bool(claimed(worker)) for worker in workers), 60)
    (surplus,) = [worker for worker in workers if not claimed(worker)]
    owners = [worker for worker in workers if worker is not surplus]
    wait_until(lambda: surplus.events("gpu_waited_for"), 60)
    wait_until(lambda: all(worker.events("model_loaded") for worker in owners), 60)
    name = surplus.log.stem
    wait_until(lambda: (report := project.report_of(name)) and "waiting_for_gpu" == report.state)
    waiting = scraped(surplus)
    engine = Path(f"/proc/{owners[0].child_pids()[0]}/environ").read_bytes().split(b"\0")

    owners[0].process.kill()
    killed = time.monotonic()
    wait_until(lambda: claimed(surplus))
    took_seconds = time.monotonic() - killed

    assert {stub_uuid(0), stub_uuid(1)} == {uuid for worker in owners for uuid in claimed(worker)}
    message = surplus.events("gpu_waited_for")[0]["message"]
    assert all(f"worker {owner.log.stem}, host" in message for owner in owners)
    assert (1, 0, 0) == (waiting['state{state="waiting_for_gpu"}'], waiting["gpus_claimed"], waiting["is_ready"])
    assert f"CUDA_VISIBLE_DEVICES={claimed(owners[0])[0]}".encode() in engine
    assert b"CUDA_DEVICE_ORDER=PCI_BUS_ID" in engine
    assert claimed(owners[0]) == claimed(surplus)
    assert took_seconds < 2

    wait_until(lambda: surplus.events("model_loaded"), 60)
    project.producer.process.send_signal(signal.SIGCONT)
    assert 0 == project.producer.wait(60)
    assert [0, 0] == [surplus.wait(60), owners[1].wait(60)]
    assert_complete_and_equal(project.services.paths, ROWS)


def test_the_gpus_of_a_worker_are_shown(stub, make_project):
    """What the driver says of a claimed GPU is in the series and in the report; torch's lack of CUDA is said aloud."""
    project = make_project("project")
    worker = project.worker("worker-a")
    wait_until(lambda: worker.events("model_loaded"), 60)
    wait_until(lambda: scraped(worker).get('gpu_power_watts{gpu="0"}') == 400)
    wait_until(lambda: (report := project.report_of("worker-a")) and "idle" == report.state)

    series, report = scraped(worker), project.report_of("worker-a")

    assert 1 == series[f'gpu_info{{gpu="0",name="Stub GPU",uuid="{stub_uuid(0)}"}}'] == series["gpus_claimed"]
    assert (1e9, 8e10) == (series['gpu_memory_used_bytes{gpu="0"}'], series['gpu_memory_total_bytes{gpu="0"}'])
    assert (0.75, 50) == (series['gpu_utilization_ratio{gpu="0"}'], series['gpu_temperature_celsius{gpu="0"}'])
    (gpu,) = report.gpus
    assert (stub_uuid(0), 10**9, 0.75) == (gpu.uuid, gpu.memory_used_bytes, gpu.utilization)
    assert "cpu" == report.device
    assert stub_uuid(0) in worker.events("cuda_not_found")[0]["message"]
    assert any("cuda_not_found" in line for line in report.log_lines)


def test_several_gpus_are_claimed_whole(stub, make_project):
    """Of three GPUs, a worker of two takes two, a second of two takes none, and one of one takes the third."""
    stub(3)
    project = make_project("project")
    first = project.worker("worker-a", "--gpus", "2")
    wait_until(lambda: claimed(first), 60)
    second = project.worker("worker-b", "--gpus", "2")
    wait_until(lambda: second.events("gpu_waited_for"), 60)

    third = project.worker("worker-c")
    wait_until(lambda: claimed(third), 60)

    assert [stub_uuid(0), stub_uuid(1)] == claimed(first)
    assert [stub_uuid(2)] == claimed(third)
    assert [] == claimed(second)
    first.process.send_signal(signal.SIGTERM)
    assert 0 == first.wait(60)
    wait_until(lambda: claimed(second), 5)
    assert [stub_uuid(0), stub_uuid(1)] == claimed(second)


def test_projects_that_share_a_host_share_its_gpus(stub, make_project):
    """Workers of two runs never have the same GPU; the one that waits stops when it is told to."""
    stub(1)
    one, other = make_project("one"), make_project("other", random_rows([4, 5]))
    owner = one.worker("worker-a")
    wait_until(lambda: claimed(owner), 60)

    waiting = other.worker("worker-a")
    wait_until(lambda: waiting.events("gpu_waited_for"), 60)
    waiting.process.send_signal(signal.SIGTERM)

    assert 0 == waiting.wait(5)
    assert [] == claimed(waiting)


def test_a_worker_that_waits_for_a_gpu_ends_with_the_run(stub, make_project):
    """Nobody has to stop a worker that got no GPU before the run was complete; --stay shows that it is."""
    stub(1)
    project = make_project("project")
    owner = project.worker("worker-a")
    wait_until(lambda: claimed(owner), 60)
    surplus = project.worker("worker-b")
    staying = project.worker("worker-c", "--stay")
    wait_until(lambda: surplus.events("gpu_waited_for") and staying.events("gpu_waited_for"), 60)

    project.producer.process.send_signal(signal.SIGCONT)

    assert [0, 0, 0] == [project.producer.wait(60), owner.wait(60), surplus.wait(60)]
    wait_until(lambda: staying.events("worker_stayed"), 60)
    assert 200 == health(staying)
    staying.process.send_signal(signal.SIGTERM)
    assert 0 == staying.wait(10)


@pytest.mark.parametrize("kind", ["symbolic link", "one too many"])
def test_what_can_never_be_claimed_is_refused(kind, stub, make_project, tmp_path):
    """A lock file that is a link, and more GPUs than there are, end the worker with 2 and its reason."""
    project = make_project("project")
    (tmp_path / "locks").mkdir()
    (tmp_path / "precious").write_text("precious")
    if kind == "symbolic link":
        (tmp_path / "locks" / f"{stub_uuid(0)}.lock").symlink_to(tmp_path / "precious")

    worker = project.worker("worker-a", *(["--gpus", "3"] if kind == "one too many" else []))

    assert 2 == worker.wait(60)
    message = worker.events("worker_refused")[0]["message"]
    assert ("--gpus 3" if kind == "one too many" else f"{stub_uuid(0)}.lock") in message
    assert "precious" == (tmp_path / "precious").read_text()


def test_a_driver_that_hangs_costs_nothing_but_its_figures(stub, make_project, monkeypatch):
    """A worker whose driver never answers does its work, is stopped as ever, and shows figures that are no numbers."""
    monkeypatch.setenv("STUB_NVML_HANGS", "1")
    project = make_project("project")
    worker = project.worker("worker-a")
    wait_until(lambda: worker.events("model_loaded"), 60)
    wait_until(lambda: 'gpu_power_watts{gpu="0"}' in scraped(worker))

    series = scraped(worker)
    project.producer.process.send_signal(signal.SIGCONT)

    assert series['gpu_power_watts{gpu="0"}'] != series['gpu_power_watts{gpu="0"}']
    assert 0 == project.producer.wait(60)
    assert 0 == worker.wait(60)


def test_a_worker_stays_with_its_gpu_given_back(stub, make_project):
    """With --stay a worker whose run is complete is healthy, holds no GPU, and leaves with 0 when told to."""
    stub(1)
    project, other = make_project("project"), make_project("other", random_rows([4, 5]))
    staying = project.worker("worker-a", "--stay")
    wait_until(lambda: claimed(staying), 60)
    project.producer.process.send_signal(signal.SIGCONT)
    assert 0 == project.producer.wait(60)
    wait_until(lambda: staying.events("worker_stayed"), 60)

    following = other.worker("worker-a")
    wait_until(lambda: claimed(following), 60)
    wait_until(lambda: 0 == scraped(staying)["gpus_claimed"])

    series = scraped(staying)
    assert 1 == series['state{state="complete"}']
    assert not [name for name in series if name.startswith("gpu_info")]
    assert 200 == health(staying)
    assert staying.process.poll() is None
    wait_until(lambda: "complete" == project.report_of("worker-a").state)
    staying.process.send_signal(signal.SIGTERM)
    assert 0 == staying.wait(10)
    assert [] == project.services.client().keys(f"{project.services.queue()}*")


LISTING = """
import json, os
from gpu_worker.gpu_claim import wanted_gpus
from hiddenstream.contracts.errors import UsageError
try:
    print(json.dumps([gpu.uuid[-1] for gpu in wanted_gpus(os.environ["DEVICE"], int(os.environ["COUNT"]), os.environ)]))
except UsageError:
    print("refused")
"""


@pytest.mark.parametrize(
    ("device", "count", "visible", "expected"),
    [
        ("auto", 1, None, '["0", "1"]'),
        ("cuda", 2, None, '["0", "1"]'),
        ("cuda:1", 1, None, '["1"]'),
        ("cuda:0", 1, "1", '["1"]'),  # as torch counts: among those that are visible
        ("cuda:2", 1, None, "refused"),
        ("cuda:0", 2, None, "refused"),
        ("cpu", 1, None, "[]"),
        ("auto", 1, "", "[]"),
        ("auto", 2, "1", "refused"),
        ("cuda", 1, "1,0", '["1", "0"]'),
    ],
)
def test_a_device_means_certain_gpus(device, count, visible, expected, stub):
    """The device and CUDA_VISIBLE_DEVICES say which GPUs may be claimed, in which order."""
    environment = {**os.environ, "DEVICE": device, "COUNT": str(count)}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible

    told = subprocess.run([sys.executable, "-c", LISTING], env=environment, capture_output=True, text=True, timeout=60)

    assert expected == told.stdout.strip(), told.stderr


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, ["GPU-aaaa", "GPU-aabb", "GPU-bbbb"]),
        ("", []),
        ("2,0", ["GPU-bbbb", "GPU-aaaa"]),
        ("GPU-b", ["GPU-bbbb"]),
        ("GPU-aa", []),  # not unique
        ("0,-1,1", ["GPU-aaaa"]),
        ("0,7,1", ["GPU-aaaa"]),
        ("1,1", ["GPU-aabb"]),
        ("MIG-cafe, GPU-aabb", ["MIG-cafe", "GPU-aabb"]),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(chosen, expected):
    """Numbers, UUIDs and slices are understood, and an entry that names nothing hides all after it."""
    assert expected == [gpu.uuid for gpu in visible_gpus(GPUS, chosen)]


def test_cuda_without_nvml_is_tried_without_a_claim(make_project, monkeypatch):
    """Where the driver lists no GPUs, `--device cuda` says so and goes on; here torch then finds no CUDA either."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    project = make_project("project")

    worker = project.worker("worker-a", "--device", "cuda", "--stay")
    wait_until(lambda: worker.events("worker_stayed"), 60)

    assert 1 == len(worker.events("gpus_not_listed"))
    assert 503 == health(worker)
    wait_until(lambda: (report := project.report_of("worker-a")) and "refused" == report.state)
    report = project.report_of("worker-a")
    assert "--device cuda" in report.message
    assert any("engine_refused" in line for line in report.log_lines)
    assert 1 == scraped(worker)['exactness_gate{verdict="not_run"}']
    worker.process.send_signal(signal.SIGTERM)
    assert 2 == worker.wait(10)
