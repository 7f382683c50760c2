"""Which hiddenstream this is."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def program_version() -> str:
    """Return the installed version; ``unknown`` where hiddenstream runs from a folder that was never installed."""
    try:
        return metadata.version("hiddenstream")
    except metadata.PackageNotFoundError:
        return "unknown"
