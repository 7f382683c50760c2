from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hiddenstream.run_directory.paths import RunPaths
from tests.factories import a_run
from tests.tiny import save_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a maker of tiny models by family; each is saved once, so do not change its files."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = save_tiny_model(family, tmp_path_factory.mktemp(family))
        return made[family]

    return make


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A planned run of two shards that needs no model: samples of 3 and 1 tokens, and one of 2."""
    return a_run(tmp_path / "run")
