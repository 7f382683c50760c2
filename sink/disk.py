"""Keeping some of the disk free."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hiddenstream.chassis.disk import disk_room
from sink.refusals import ShardRefused

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskSpace:
    """Free space of the run directory's disk, less a reserve. Safe to use from several threads."""

    def __init__(self, folder: Path, *, reserve_bytes: int) -> None:
        self._folder, self._reserve_bytes = folder, reserve_bytes
        self._claims = 0
        self._claimed_bytes = 0  # by uploads under way; what they wrote already counts twice, on the safe side
        self._lock = threading.Lock()

    def free_bytes(self) -> int:
        """Return what is free for this process's user, reserve included."""
        return disk_room(self._folder).free_bytes

    def total_bytes(self) -> int:
        """Return the disk's size, less what only the system's administrator may use."""
        return disk_room(self._folder).total_bytes

    def claims(self) -> int:
        """Return how many uploads hold space now."""
        with self._lock:
            return self._claims

    @contextmanager
    def claim(self, file_bytes: int) -> Iterator[None]:
        """Hold space for one upload; a disk that fills up meanwhile is a refusal, too.

        Raises:
            ShardRefused: the file would touch the reserve, or the disk or quota is full.
        """
        with self._lock:
            free = self.free_bytes() - self._claimed_bytes
            if free - file_bytes < self._reserve_bytes:
                raise ShardRefused(
                    "disk_full",
                    f"the upload has {file_bytes} bytes; {free} are free or unclaimed"
                    f" and {self._reserve_bytes} are kept in reserve; free some space",
                )
            self._claimed_bytes += file_bytes
            self._claims += 1
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise ShardRefused("disk_full", f"the disk filled up: {error.strerror}; free some space") from error
            raise
        finally:
            with self._lock:
                self._claimed_bytes -= file_bytes
                self._claims -= 1
