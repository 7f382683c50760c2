"""Asking a producer's status page, for programs of ours."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException

from hiddenstream.contracts.errors import WireError
from hiddenstream.status_page.server import TERMINAL_AGENT
from hiddenstream.status_page.status import RunStatus

_MOST_BYTES = 8 * 1024 * 1024
_SECONDS = 1.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy could not reach this machine


def fetch_status(url: str) -> RunStatus | None:
    """Return what the page at *url* says, or None where it cannot be reached or is no such page."""
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/status.json", headers={"User-Agent": TERMINAL_AGENT})
        with _OPENER.open(request, timeout=_SECONDS) as answer:
            return RunStatus.from_wire(json.loads(answer.read(_MOST_BYTES)))
    except (OSError, HTTPException, ValueError, WireError, RecursionError):
        return None
