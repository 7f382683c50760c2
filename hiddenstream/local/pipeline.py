"""All services of one run on this machine, from the queue that starts first to the queue that stops last."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_worker.gpu_claim import wanted_gpus
from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.contracts.errors import UsageError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.local.embedded_queue import queue_command, queue_url
from hiddenstream.local.processes import Child, ChildSpec
from hiddenstream.run_directory.paths import RunPaths

_LOOK_SECONDS = 0.25
_DRAIN_SECONDS = 600.0  # a worker finishes the shard in hand; a second Ctrl-C ends the wait
_STOP_SECONDS = 40.0
_MOST_FOLDER_CHARACTERS = 70  # a socket's path has 107 at most


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlan:
    """What to start.

    Attributes:
        workers: how many.
        model: where the model is.
        device: of every worker.
        queue_url: an existing Redis, or None for one of our own.
        token_budget: see the worker's setting.
        status_listen, status_hosts: see the producer's settings.
    """

    workers: int
    model: str
    device: str
    queue_url: str | None
    token_budget: int | None
    status_listen: tuple[str, int] | None = None
    status_hosts: tuple[str, ...] = ()


class Pipeline:
    """The running services of a local run."""

    def __init__(self, paths: RunPaths, record: RunRecord, plan: LocalPlan) -> None:
        """Start queue, sink, producer and workers, in this order.

        Raises:
            UsageError: there is no Redis to start, or there are fewer GPUs than workers.
        """
        refuse_more_workers_than_gpus(plan)
        is_short = len(tempfile.gettempdir()) < _MOST_FOLDER_CHARACTERS
        self._scratch = tempfile.TemporaryDirectory(prefix="hiddenstream-", dir=None if is_short else "/tmp")
        paths.logs.mkdir(parents=True, exist_ok=True)
        folder = Path(self._scratch.name)
        own_queue = plan.queue_url is None
        redis_url = queue_url(folder) if plan.queue_url is None else plan.queue_url
        sink_address = f"127.0.0.1:{_free_port()}"
        python = [sys.executable, "-m"]
        local = ["--metrics-listen", "127.0.0.1:0"]
        producer = [*python, "producer", str(paths.root), "--redis", redis_url, *local]
        if plan.status_listen is not None:
            host, port = plan.status_listen
            producer += ["--status-listen", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
        for name in plan.status_hosts:
            producer += ["--status-hosts", name]
        specs = {
            "queue": queue_command(folder) if own_queue else None,
            "sink": [*python, "sink", str(paths.root), "--listen", sink_address, *local],
            "producer": producer,
        }
        worker = [*python, "gpu_worker", "--redis", redis_url, "--sink", f"http://{sink_address}", "--run", record.run]
        worker += ["--model", plan.model, "--device", plan.device, *local]
        if plan.token_budget:
            worker += ["--token-budget", str(plan.token_budget)]
        for number in range(plan.workers):
            specs[f"worker-{number}"] = [*worker, "--name", f"worker-{number}"]
        environment = _environment(plan.workers)
        self._children = {
            name: Child(
                ChildSpec(
                    name=name,
                    command=command,
                    environment=environment,
                    ends_well=_ends_well(name),
                ),
                paths.logs,
            )
            for name, command in specs.items()
            if command is not None
        }

    @property
    def children(self) -> dict[str, Child]:
        """The services by name."""
        return self._children

    @property
    def workers(self) -> list[Child]:
        """The workers."""
        return [child for name, child in self._children.items() if name.startswith("worker-")]

    def watch(self, stop: StopRequest, on_look: Callable[[], bool], on_restart: Callable[[str, int], None]) -> None:
        """Keep every service alive until the producer has ended, or stopping is asked for.

        Args:
            on_look: called a few times a second; returns whether the run has moved since.
            on_restart: called with the name of a service that died and was started again, and its exit code.

        Raises:
            ChildFailed: a service refuses, or keeps dying.
        """
        while not stop.wait(_LOOK_SECONDS):
            if on_look():
                for child in self._children.values():
                    child.note_progress()
            if self._children["producer"].has_ended_well():
                return
            for name, child in self._children.items():
                code = child.keep_alive()
                if code is not None:
                    on_restart(name, code)

    def stop(self, is_hurried: Callable[[], bool]) -> None:
        """Stop the workers first, so that what they computed is stored, and the queue last.

        Args:
            is_hurried: whether to kill what has not ended yet.
        """
        for worker in self.workers:
            worker.ask_to_stop()
        deadline = time.monotonic() + _DRAIN_SECONDS
        while any(worker.exit_code() is None for worker in self.workers):
            if is_hurried() or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
        for worker in self.workers:
            worker.kill()
        for name in ("producer", "sink", "queue"):
            if name in self._children:
                self._children[name].stop(patience_seconds=_STOP_SECONDS)
        self._scratch.cleanup()


def refuse_more_workers_than_gpus(plan: LocalPlan) -> None:
    """Refuse a plan by which some workers would wait for a GPU until the run has ended.

    Each worker claims a GPU of its own. GPUs that other runs hold count here: they may get free.

    Raises:
        UsageError: there are more workers than GPUs, or the GPU asked for is not there.
    """
    gpus = len(wanted_gpus(plan.device, 1, os.environ))
    if 0 < gpus < plan.workers:
        raise UsageError(
            f"--workers {plan.workers}: each worker claims a GPU of its own, and --device {plan.device} means {gpus}"
            f" here; give --workers {gpus}, or --device cpu"
        )


def _ends_well(name: str) -> frozenset[int]:
    if name == "producer":
        return frozenset({0, 3, 4})
    return frozenset({0}) if name.startswith("worker-") else frozenset()


def _environment(workers: int) -> dict[str, str]:
    """Give the services this process's environment, our own settings apart, and a token of their own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("HIDDENSTREAM_")}
    threads = max(1, (os.cpu_count() or 1) // workers)
    return {
        "OMP_NUM_THREADS": str(threads),  # workers that fight over cores are many times slower
        "PYTHONUNBUFFERED": "1",
        **own,
        "HIDDENSTREAM_TOKEN": secrets.token_urlsafe(24),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
