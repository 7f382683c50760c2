"""One row as it was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRow:
    """One row of the input.

    Attributes:
        source: where it stands, ``FILE:LINE`` or ``FILE row N``, counted from 1.
        row: its columns; lists of numbers may be numpy arrays. None where it could not be read.
        problem: why it could not be read, else None.
    """

    source: str
    row: Mapping[str, Any] | None
    problem: str | None = None


def shown(path: Path) -> str:
    """Return *path* as text that can be stored, also where its name is no valid UTF-8."""
    return str(path).encode("utf-8", "backslashreplace").decode()
