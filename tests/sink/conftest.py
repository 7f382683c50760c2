from __future__ import annotations

from pathlib import Path

import pytest

from hiddenstream.run_directory.paths import RunPaths
from tests.factories import a_run


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A planned run of two shards: samples of 3 and 1 tokens, and one of 2."""
    return a_run(tmp_path / "run")
