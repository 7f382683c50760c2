"""What the stack tests share: an engine, a clean checkout, the images."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack.engine import NoEngine, docker_engine
from tests.stack.images import ready_images

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def engine() -> Iterator[dict[str, str]]:
    """The environment in which docker works. None here: skipped on a laptop, failed in CI."""
    try:
        with docker_engine() as environment:
            yield environment
    except NoEngine as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is in the repository, so that nobody's .env and no leftovers play a part."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def images(engine: dict[str, str], checkout: Path) -> dict[str, str]:
    """Our images, built; yields the engine's environment."""
    compose = (checkout / "docker-compose.yml").read_text()
    redis_image, prometheus_image = (
        re.findall(rf"image: \$\{{{name}:-(.*)\}}", compose)[0] for name in ("REDIS_IMAGE", "PROMETHEUS_IMAGE")
    )
    ready_images(engine, checkout, redis_image=redis_image, prometheus_image=prometheus_image)
    return engine
