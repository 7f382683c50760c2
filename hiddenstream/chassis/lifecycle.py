"""Starting, stopping and waiting, the same for every service."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

PR_SET_PDEATHSIG = 1


class StopRequest:
    """Set by SIGTERM and SIGINT. What runs looks at it, or waits on it instead of sleeping.

    Attributes:
        is_urgent: whether a second signal came: leave what is under way.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.is_urgent = False

    def install(self) -> StopRequest:
        """Take SIGTERM and SIGINT for a request to stop. Main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.is_urgent = self._event.is_set()
        self._event.set()

    def set(self) -> None:
        """Ask to stop."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether stopping was asked for."""
        return self._event.is_set()

    def wait(self, timeout_seconds: float) -> bool:
        """Sleep, but wake when stopping is asked for; return whether it was."""
        return self._event.wait(timeout_seconds)


def backoff(*, first_seconds: float = 0.2, most_seconds: float = 5.0) -> Iterator[float]:
    """Yield waiting times that double up to *most_seconds*, each shortened at random by up to a quarter."""
    wait = first_seconds
    while True:
        yield wait * random.uniform(0.75, 1.0)
        wait = min(wait * 2, most_seconds)


def dies_with_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Return a ``preexec_fn`` that has the kernel send *number* to the child when its parent is gone (Linux)."""
    library = ctypes.CDLL(None)
    parent = os.getpid()

    def prepare_child() -> None:
        library.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return prepare_child
