"""The images of the stack: base images pulled, or made on the spot where no registry answers; ours built from them."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STAND_IN = Path(__file__).parent / "stand_in_image.sh"
PYTHON_IMAGE = "python:3.11-slim-bookworm"  # as in the Dockerfile; a test holds them together
_PULL_SECONDS = 300
_BUILD_SECONDS = 900


def ready_images(environment: Mapping[str, str], checkout: Path, *, redis_image: str, prometheus_image: str) -> None:
    """Have the base images, pulled or stood in for, and build ours; what waits for nothing goes on beside it."""
    wanted = {"python": PYTHON_IMAGE, "redis": redis_image, "prometheus": prometheus_image}
    is_there = _docker(environment, "image", "inspect", *wanted.values())
    if is_there or all(_pulled(environment, image) for image in wanted.values()):
        build_images(environment, checkout)
        return
    if shutil.which("mmdebstrap") is None:
        raise RuntimeError("no image registry answers, and there is no mmdebstrap to make images with")
    _stand_in(environment, "python", PYTHON_IMAGE)
    with ThreadPoolExecutor() as pool:
        building = [pool.submit(build_images, environment, checkout)]
        for kind in ("redis", "prometheus"):
            building.append(pool.submit(_stand_in, environment, kind, wanted[kind], PYTHON_IMAGE))
        for one in building:
            one.result()


def _stand_in(environment: Mapping[str, str], *arguments: str) -> None:
    made = subprocess.run(
        [STAND_IN, *arguments],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    if made.returncode != 0:
        raise RuntimeError(f"{STAND_IN.name} {' '.join(arguments)}: {made.stderr[-3000:]}")


def _pulled(environment: Mapping[str, str], image: str) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return _docker(environment, "pull", "--quiet", image, seconds=_PULL_SECONDS)
    return False


def _docker(environment: Mapping[str, str], *arguments: str, seconds: float = 60) -> bool:
    command = ["docker", *arguments]
    return (
        subprocess.run(command, env=dict(environment), capture_output=True, timeout=seconds, check=False).returncode
        == 0
    )


def build_images(environment: Mapping[str, str], checkout: Path) -> None:
    """Build our images as ``docker compose build`` does, with the wheels that pip is set to find on this disk."""
    with _local_wheels() as arguments:
        built = subprocess.run(
            ["docker", "compose", "build", "--quiet"],
            cwd=checkout,
            env={**environment, "DOCKER_BUILDKIT": "0", "BUILD_NETWORK": "host", **arguments},
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    if built.returncode != 0:
        raise RuntimeError(f"docker compose build: {built.stdout[-3000:]}{built.stderr[-3000:]}")


@contextlib.contextmanager
def _local_wheels() -> Iterator[dict[str, str]]:
    """Serve the folder of wheels that pip is configured to find, if there is one; yield the build arguments for it."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not found or not Path(found).is_dir():
        yield {}
        return
    handler = functools.partial(_Quiet, directory=found)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "PIP_FIND_LINKS": f"http://127.0.0.1:{server.server_address[1]}/",
            "PIP_TRUSTED_HOST": "127.0.0.1",
        }
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Downloads are no news."""


def image_bytes(environment: Mapping[str, str], image: str) -> int:
    """Return an image's size, its base's included."""
    command = ["docker", "image", "inspect", image]
    shown = subprocess.run(command, env=dict(environment), capture_output=True, check=True).stdout
    return int(json.loads(shown)[0]["Size"])
