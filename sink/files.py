"""The files of a sink: its locked folder of files on their way in, and the final names they get."""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hiddenstream.contracts.errors import RunDirectoryError
from hiddenstream.run_directory.paths import RunPaths, sync_folder

_LOCK = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporaryFile:
    """A shard or run file on its way in."""

    path: Path
    descriptor: int

    def write(self, data: bytes | memoryview) -> None:
        """Append all of *data*."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]

    def sync(self) -> None:
        """Make the content durable."""
        os.fsync(self.descriptor)


class IncomingFolder:
    """The folder of one sink; a lock that the kernel lets go of on any death keeps a second sink out of it."""

    def __init__(self, paths: RunPaths, sink: str) -> None:
        """Take the folder and sweep what a crash left there.

        Raises:
            RunDirectoryError: another live sink has this name.
        """
        self._folder = paths.incoming / sink
        make_folder(self._folder)
        self._lock = open(self._folder / _LOCK, "a")  # noqa: SIM115  held until close()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise RunDirectoryError(
                f"a sink named {sink!r} is at work in {paths.root} already; stop it, or give this one another --name"
            ) from error
        self._numbers = itertools.count()
        self.swept_files = self._sweep()

    def _sweep(self) -> int:
        leftovers = [path for path in self._folder.iterdir() if path.name != _LOCK]
        for path in leftovers:
            path.unlink()
        return len(leftovers)

    @contextmanager
    def temporary(self, stem: str) -> Iterator[TemporaryFile]:
        """Open a new file for *stem*, whose temporary name is gone afterwards, come what may."""
        path = self._folder / f"{stem}-{next(self._numbers)}.part"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            yield TemporaryFile(path=path, descriptor=descriptor)
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let another sink have this name."""
        self._lock.close()


def make_folder(folder: Path) -> None:
    """Make *folder* and its parents, durably."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def link_durably(temporary: Path, final: Path) -> bool:
    """Give a synced file its final name; return False if that is taken."""
    make_folder(final.parent)
    try:
        os.link(temporary, final)
    except FileExistsError:
        return False
    sync_folder(final.parent)
    sync_folder(final.parent.parent)  # another thread or sink may have made the folder and not synced it yet
    return True


@contextmanager
def damaged_folder(paths: RunPaths) -> Iterator[Path]:
    """Hold the folder of damaged files, so that no two threads or sinks judge one final name at a time."""
    folder = paths.root / "damaged"
    make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(descriptor)


def move_to_damaged(file: Path, damaged: Path) -> Path:
    """Take a file that does not verify out of the way, keeping it for people to look at; return its new name."""
    kept = damaged / f"{file.stem}.{time.time_ns()}{file.suffix}"
    file.rename(kept)
    sync_folder(damaged)
    sync_folder(file.parent)
    return kept
