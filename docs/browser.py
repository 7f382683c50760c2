"""Chromium without a screen, for pictures and tests of pages."""

from __future__ import annotations

import shutil
from pathlib import Path

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


def browser_command(profile: Path, *, size: tuple[int, int], milliseconds: int = 3000) -> list[str]:
    """Return the beginning of a command that loads a page; what to do with it, and its URL, follow.

    Args:
        profile: a folder of its own.
        size: of the window, in pixels.
        milliseconds: that the page's scripts may take, by a clock that does not wait for them.

    Raises:
        FileNotFoundError: there is no Chromium on PATH.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise FileNotFoundError("there is no Chromium on PATH: neither chromium nor google-chrome; install one")
    window = f"--window-size={size[0]},{size[1]}"
    return [program, *_FLAGS, f"--user-data-dir={profile}", f"--virtual-time-budget={milliseconds}", window]
