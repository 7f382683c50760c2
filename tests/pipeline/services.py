"""Real services as processes, for tests that watch, stop and kill them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

import hiddenstream
from gpu_worker.recompute import load_plain, plain_states
from hiddenstream.contracts.queue import queue_name
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.paths import RunPaths

DEADLINE_SECONDS = 120.0


def wait_for(condition: Callable[[], Any], what: str, *, seconds: float = DEADLINE_SECONDS) -> Any:
    """Return the first true value of *condition*; fail when it takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)  # the poll of a wait with a deadline
    raise AssertionError(f"not within {seconds} s: {what}")


class Service:
    """One service process and its log."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log's lines of one event."""
        lines = [line for line in self.log.read_bytes().splitlines() if line.startswith(b"{")]
        return [entry for entry in map(json.loads, lines) if entry.get("event") == name]

    def signal_all(self, number: signal.Signals) -> None:
        """Signal the process and everything it started."""
        os.killpg(self.process.pid, number)

    def child_pids(self) -> list[int]:
        """Return the pids of its child processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Return the exit code."""
        return self.process.wait(seconds)

    def end(self) -> None:
        """Kill whatever is left."""
        if self.process.poll() is None:
            self.signal_all(signal.SIGCONT)
            self.signal_all(signal.SIGKILL)
            self.process.wait()


class Services:
    """The services of one run, started one by one."""

    def __init__(self, root: Path, redis_url: str, *, token: str = "a-secret") -> None:
        self.root = root
        self.paths = RunPaths(root / "run")
        self.redis_url = redis_url
        self.token_file = root / "token"
        self.token_file.write_text(token)
        self.started: list[Service] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.sink_address = f"127.0.0.1:{probe.getsockname()[1]}"

    def start(self, name: str, *arguments: str) -> Service:
        """Start ``python -m ARGUMENTS``."""
        service = Service([*arguments, "--metrics-listen", "127.0.0.1:0"], self.root / f"{name}.log")
        self.started.append(service)
        return service

    def producer(self, *arguments: str) -> Service:
        """Start the producer."""
        return self.start("producer", "producer", str(self.paths.root), "--redis", self.redis_url, *arguments)

    def sink(self, *arguments: str) -> Service:
        """Start the sink."""
        secret = ["--token-file", str(self.token_file)]
        return self.start("sink", "sink", str(self.paths.root), "--listen", self.sink_address, *secret, *arguments)

    def worker(self, name: str, *arguments: str) -> Service:
        """Start a worker."""
        where = ["--redis", self.redis_url, "--sink", f"http://{self.sink_address}", "--run", "run"]
        secret = ["--token-file", str(self.token_file)]
        return self.start(name, "gpu_worker", *where, *secret, "--name", name, "--device", "cpu", *arguments)

    def committed(self) -> set[int]:
        """Return the shards that are committed."""
        ledger = LedgerReader(self.paths.ledger)
        ledger.poll()
        return set(ledger.commits)

    def commits(self) -> int:
        """Return how many shards are committed."""
        return len(self.committed())

    def client(self) -> redis.Redis:
        """Return a client of the queue's Redis."""
        return redis.Redis.from_url(self.redis_url)

    def queue(self) -> str:
        """Return the run's queue name."""
        record = self.paths.read_record()
        return queue_name(record.run, record.identity.fingerprint)

    def leased_shards(self, worker: str) -> set[int]:
        """Return the shards that *worker* holds a lease on now."""
        client = self.client()
        keys = list(client.scan_iter(match="*:lease:*", count=1000))
        holders = client.mget(keys) if keys else []
        return {
            int(key.rpartition(b":")[2])
            for key, holder in zip(keys, holders, strict=True)
            if holder is not None and holder.startswith(f"{worker}:".encode())
        }

    def leased_by(self, worker: str) -> bool:
        """Whether *worker* holds a lease now."""
        return bool(self.leased_shards(worker))

    def executions(self) -> int:
        """Return how many deliveries were computed, by the workers' logs."""
        logs = {service.log for service in self.started if service.log.name.startswith("worker")}
        lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith("{")]
        entries = [entry for entry in map(json.loads, lines) if entry.get("event") == "shard_extracted"]
        return sum(entry["outcome"] in ("committed", "duplicate") for entry in entries)

    def end(self) -> None:
        """Kill whatever is left."""
        for service in self.started:
            service.end()


def assert_complete_and_equal(paths: RunPaths, rows: list[dict[str, Any]], *, tolerance: float = 1e-4) -> None:
    """Every row is stored once, under its id, and equals plain transformers run on it alone in float32."""
    run = hiddenstream.open(paths.root)
    plain = load_plain(run.record.model, None, "float32")
    stored = {sample.id: sample for sample in run}
    assert sorted(row["id"] for row in rows) == sorted(stored)
    assert len(run) == len(rows)
    for row in rows:
        sample = stored[row["id"]]
        assert row["input_ids"] == sample.input_ids.tolist()
        assert row.get("loss_mask") == (None if sample.loss_mask is None else sample.loss_mask.tolist())
        for tap, expected in plain_states(plain, sample.input_ids, sample.taps).items():
            assert abs(sample.states_of(tap) - expected).max() <= tolerance, (row["id"], tap)
    leftovers = [file for file in paths.incoming.rglob("*") if file.is_file() and file.name != "lock"]
    assert [] == leftovers
