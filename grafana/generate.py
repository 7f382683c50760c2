"""Writing the dashboards' JSON.

    python -m grafana.generate [--check]

``--check`` writes nothing, and exits with 1 where a file is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from grafana import overview, queue, sink, workers
from grafana.build import json_of

FOLDER = Path(__file__).parent / "dashboards"
BOARDS = (overview.BOARD, workers.BOARD, sink.BOARD, queue.BOARD)


def main(arguments: Sequence[str]) -> int:
    """Write the dashboards, or check them; return the exit code."""
    stale = []
    for board in BOARDS:
        file, text = FOLDER / f"{board.uid}.json", json_of(board)
        if not file.exists() or file.read_text() != text:
            stale.append(file.name)
            if "--check" not in arguments:
                file.write_text(text)
    if stale and "--check" in arguments:
        sys.stdout.write(f"{', '.join(stale)} stale; run: python -m grafana.generate\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
