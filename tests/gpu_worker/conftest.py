from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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
