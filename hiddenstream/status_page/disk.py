"""Looking at the run directory's disk."""

from __future__ import annotations

from pathlib import Path

from hiddenstream.chassis.disk import disk_room
from hiddenstream.status_page.parts import DiskStatus


def look_at_disk(folder: Path, reserve_bytes: int) -> DiskStatus | None:
    """Return the disk's state without what the run will still take, or None where there is no such folder."""
    try:
        room = disk_room(folder)
    except OSError:
        return None
    return DiskStatus(
        free_bytes=room.free_bytes,
        total_bytes=room.total_bytes,
        reserve_bytes=reserve_bytes,
        to_come_bytes=0,
    )
