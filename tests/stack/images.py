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
from pathlib import Path

STAND_INS = Path(__file__).parent / "stand_in_images.sh"
PYTHON_IMAGE = "python:3.11-slim-bookworm"  # as in the Dockerfile; a test holds them together
_PULL_SECONDS = 300
_BUILD_SECONDS = 900


def ready_base_images(environment: Mapping[str, str], redis_image: str, prometheus_image: str) -> bool:
    """Have the base images; return whether they are stand-ins made from Debian's packages."""
    wanted = [PYTHON_IMAGE, redis_image, prometheus_image]
    if all(_docker(environment, "image", "inspect", image) or _pulled(environment, image) for image in wanted):
        return False
    if shutil.which("mmdebstrap") is None:
        raise RuntimeError("no image registry answers, and there is no mmdebstrap to make images with")
    subprocess.run([STAND_INS, *wanted], env=dict(environment), check=True, timeout=_BUILD_SECONDS)
    return True


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
