"""How a command ends when something was refused."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hiddenstream.contracts.errors import HiddenstreamError


def exit_code_of(command: Callable[[], int]) -> int:
    """Run *command*; write an error of ours to standard error and return its exit code."""
    try:
        return command()
    except HiddenstreamError as error:
        sys.stderr.write(f"hiddenstream: {error}\n")
        return error.exit_code
