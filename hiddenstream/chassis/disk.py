"""How much room a folder's disk has, for this process's user."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRoom:
    """A disk at one moment, without what only the system's administrator may use.

    Attributes:
        free_bytes: unused. total_bytes: used and unused.
    """

    free_bytes: int
    total_bytes: int


def disk_room(folder: Path) -> DiskRoom:
    """Return the room on the disk of *folder*. Raises OSError where there is no such folder."""
    disk = os.statvfs(folder)
    return DiskRoom(
        free_bytes=disk.f_bavail * disk.f_frsize,
        total_bytes=(disk.f_blocks - disk.f_bfree + disk.f_bavail) * disk.f_frsize,
    )
