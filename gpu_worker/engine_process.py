"""An engine as its supervisor sees it: a child process that takes orders and sends messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from gpu_worker.orders import EngineOrders
from hiddenstream.chassis.lifecycle import dies_with_parent


class EngineProcess:
    """One engine process. The kernel kills it when its supervisor is gone: without leases it must not go on."""

    def __init__(self, orders: EngineOrders) -> None:
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpu_worker.engine", str(writing)],
            stdin=subprocess.PIPE,
            pass_fds=(writing,),
            env={**os.environ, **orders.environment()},
            preexec_fn=dies_with_parent(),
            text=True,
        )
        os.close(writing)
        self._messages = os.fdopen(reading, "rb")
        self.pid = self._process.pid
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(orders.to_json())
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it is dead already; the supervisor sees that next

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the engine's messages until its end of the pipe is closed; a line torn by its death is dropped."""
        with self._messages:
            for line in self._messages:
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; a dead engine takes it without a word."""
        self._process.send_signal(number)

    def wait_briefly(self, seconds: float) -> None:
        """Wait for the engine's end, but no longer than this."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def wait(self) -> int:
        """Wait for the engine's end; return its exit code, negative for a signal."""
        return self._process.wait()
