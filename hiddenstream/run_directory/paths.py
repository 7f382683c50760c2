"""Where things lie in a run directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hiddenstream.contracts.errors import RunDirectoryError, WireError
from hiddenstream.contracts.run import RunRecord

SHARDS_PER_FOLDER = 1000


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The paths of the run directory at *root*."""

    root: Path

    @property
    def run_json(self) -> Path:
        """The run's record; written last, so a directory that has it has a whole plan."""
        return self.root / "run.json"

    @property
    def plan(self) -> Path:
        """The folder of the plan."""
        return self.root / "plan" / "0000"

    @property
    def samples(self) -> Path:
        """One row per input row."""
        return self.plan / "samples.parquet"

    @property
    def tokens(self) -> Path:
        """Token ids and masks as planned."""
        return self.plan / "tokens.bin"

    @property
    def shards(self) -> Path:
        """The folder of all shards."""
        return self.root / "shards"

    @property
    def incoming(self) -> Path:
        """Shards on their way in, one locked folder per sink."""
        return self.root / "incoming"

    @property
    def ledger(self) -> Path:
        """One file of commit lines per sink."""
        return self.root / "ledger"

    @property
    def logs(self) -> Path:
        """Logs of local processes."""
        return self.root / "logs"

    def shard(self, number: int) -> Path:
        """The final name of a shard's file."""
        return self.shards / f"{number // SHARDS_PER_FOLDER:03d}" / f"{number:06d}.safetensors"

    def run_file(self, name: str) -> Path:
        """One of the files that workers make once per run, of ``RUN_FILES`` in contracts/sink_api.py."""
        return self.root / f"{name}.safetensors"

    def is_planned(self) -> bool:
        """Whether the plan is complete."""
        return self.run_json.exists()

    def read_record(self) -> RunRecord:
        """Read ``run.json``.

        Raises:
            RunDirectoryError: there is none, or it is damaged.
        """
        try:
            return RunRecord.from_json(self.run_json.read_bytes())
        except FileNotFoundError as error:
            raise RunDirectoryError(f"{self.root} holds no run: there is no run.json in it") from error
        except (OSError, WireError) as error:
            raise RunDirectoryError(f"{self.run_json}: {error}") from error


@contextmanager
def producer_lock(paths: RunPaths) -> Iterator[None]:
    """Hold the run directory as its one producer; the kernel lets go of it on any death.

    Raises:
        RunDirectoryError: another producer holds it.
    """
    paths.root.mkdir(parents=True, exist_ok=True)
    with open(paths.root / "producer.lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunDirectoryError(
                f"{paths.root} has a producer already; one is enough, and two may not be"
            ) from error
        yield


def sync_folder(folder: Path) -> None:
    """Make the names in *folder* durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
