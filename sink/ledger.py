"""The ledger: knowing what all sinks have committed, and appending what this one commits."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from hiddenstream.contracts.commit import CommitLine
from hiddenstream.run_directory.ledger import LedgerProblem, LedgerReader
from hiddenstream.run_directory.paths import sync_folder


class Ledger:
    """All ledgers of a run directory to read, and this sink's own to write. Safe to use from several threads."""

    def __init__(self, folder: Path, sink: str) -> None:
        self._own = folder / f"{sink}.jsonl"
        self._reader = LedgerReader(folder)
        self._lock = threading.Lock()

    def commits(self) -> dict[int, CommitLine]:
        """Return the commit line of each shard that any sink has committed until now."""
        with self._lock:
            self._reader.poll()
            return dict(self._reader.commits)

    def commit_of(self, shard: int) -> CommitLine | None:
        """Return a shard's commit line, if any sink has committed it."""
        with self._lock:
            self._reader.poll()
            return self._reader.commits.get(shard)

    def problems(self) -> list[LedgerProblem]:
        """Return the lines of all ledgers that could not be read."""
        with self._lock:
            return list(self._reader.problems)

    def record(self, line: CommitLine) -> bool:
        """Make *line* durable, unless the same file is in a ledger already; return whether it was appended.

        Raises:
            OSError: the disk is full or failing; the ledger is as it was.
        """
        with self._lock:
            self._reader.poll()
            known = self._reader.commits.get(line.shard)
            if known and (known.xxh3, known.header_xxh3) == (line.xxh3, line.header_xxh3):
                return False
            append_line(self._own, line.to_line())
            return True


def append_line(file: Path, line: bytes) -> None:
    """Append *line* to a ledger with one write and make it durable, or leave the ledger without it.

    A torn last line, left by a crash, is cut off first: it was never answered for.
    """
    is_new = not file.exists()
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        whole_bytes = _cut_torn_tail(descriptor)
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, "the ledger took only a part of its line")
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, whole_bytes)
            raise
    finally:
        os.close(descriptor)
    if is_new:
        sync_folder(file.parent)


def _cut_torn_tail(descriptor: int) -> int:
    """Cut a ledger back to its last newline; return its size."""
    size = whole = os.fstat(descriptor).st_size
    step = 4096
    while whole:
        begin = max(0, whole - step)
        newline = os.pread(descriptor, whole - begin, begin).rfind(b"\n")
        if newline >= 0:
            whole = begin + newline + 1
            break
        whole = begin
    if whole < size:
        os.ftruncate(descriptor, whole)
    return whole
