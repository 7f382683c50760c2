"""A real browser for the tests of pages."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from docs.browser import browser_command

_SECONDS = 120


def browse(profile: Path, url: str, *flags: str, size: tuple[int, int] = (1280, 800), milliseconds: int = 3000) -> str:
    """Load a page in Chromium and do what *flags* say; return what it prints. No browser: skipped, failed in CI."""
    try:
        command = [*browser_command(profile, size=size, milliseconds=milliseconds), *flags, url]
    except FileNotFoundError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
