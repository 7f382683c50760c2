"""Pictures of the dashboards without Grafana: their panels and queries, drawn by this package.

    python -m grafana.pictures PROMETHEUS_URL OUT_FOLDER [SECONDS [END]]

draws the last SECONDS (1800) before END (Unix time; now) and needs Chromium. They show what a panel asks for and what
comes back, in something like Grafana's dark theme; they are no proof of what Grafana would draw.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from docs.browser import browser_command
from grafana.drawing import page_of, size_of
from grafana.generate import BOARDS, FOLDER
from grafana.queries import Window

_SCALE = 0.76  # so that a picture stays under 250 KB
_POINTS = 150


def main(arguments: Sequence[str]) -> int:
    """Draw every dashboard; return the exit code."""
    url, folder = arguments[0], Path(arguments[1])
    seconds = float(arguments[2]) if len(arguments) > 2 else 1800.0
    step = max(5.0, seconds / _POINTS)
    end = float(arguments[3]) if len(arguments) > 3 else time.time()
    end = end // step * step
    folder.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        dashboard = json.loads((FOLDER / f"{board.uid}.json").read_text())
        window = Window(start=end - seconds, end=end, step_seconds=step)
        picture = folder / f"{board.uid.replace('hiddenstream-', 'grafana-')}.png"
        photograph(page_of(dashboard, url, window), size_of(dashboard), picture)
        sys.stdout.write(f"{picture}: {picture.stat().st_size / 1024:.0f} KiB\n")
    return 0


def photograph(page: str, size: tuple[int, int], picture: Path) -> None:
    """Let Chromium draw a page of *size* pixels.

    Raises:
        FileNotFoundError: there is no Chromium.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "page.html"
        file.write_text(page)
        command = browser_command(Path(scratch) / "profile", size=size, milliseconds=2000)
        command += [f"--force-device-scale-factor={_SCALE}", f"--screenshot={picture}", f"file://{file}"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
