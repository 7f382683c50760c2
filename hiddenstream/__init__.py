"""Hidden states of a frozen language model, read from a run directory while it is being made.

``hiddenstream.open(run_dir)`` is where a trainer begins. Needs neither torch nor the model nor the source data.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hiddenstream.reader import Run

__all__ = ["open"]


def open(run_dir: str | PathLike[str]) -> Run:  # noqa: A001 - users write hiddenstream.open
    """Open a run directory for reading; see :func:`hiddenstream.reader.open_run`."""
    from hiddenstream.reader import open_run  # the services import this package without needing the reader

    return open_run(run_dir)
