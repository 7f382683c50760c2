"""Looking at the run directory's disk."""

from __future__ import annotations

import os
from pathlib import Path

from hiddenstream.status_page.parts import DiskStatus


def look_at_disk(folder: Path, reserve_bytes: int) -> DiskStatus | None:
    """Return the disk's state without what the run will still take, or None where there is no such folder."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return DiskStatus(
        free_bytes=disk.f_bavail * disk.f_frsize,
        total_bytes=(disk.f_blocks - disk.f_bfree + disk.f_bavail) * disk.f_frsize,
        reserve_bytes=reserve_bytes,
        to_come_bytes=0,
    )
