"""The child processes of a local run: started, watched, restarted, and ended with their parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hiddenstream.chassis.lifecycle import dies_with_parent
from hiddenstream.contracts.errors import HiddenstreamError

_RESTART_SECONDS = 1.0
_MOST_RESTARTS = 10  # without a commit in between
_REFUSED_EXIT = 2


class ChildFailed(HiddenstreamError):
    """A service of a local run that cannot do its work."""

    reason = "child_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """How to start one service.

    Attributes:
        name: what it is called; names its log.
        command: program and arguments.
        environment: its whole environment.
        ends_well: exit codes with which it is finished rather than dead.
    """

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    ends_well: frozenset[int] = frozenset()


class Child:
    """One service of a local run. Killed by the kernel if this process dies: all of them can take it."""

    def __init__(self, spec: ChildSpec, logs: Path) -> None:
        self.spec = spec
        self.log_file = logs / f"{spec.name}.jsonl"
        self._restarts = 0
        self._died_at: float | None = None
        self._start()

    def _start(self) -> None:
        self._log_begin = self.log_file.stat().st_size if self.log_file.exists() else 0
        with open(self.log_file, "ab") as log:
            self._process = subprocess.Popen(
                self.spec.command,
                env=self.spec.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process alone, which stops them in order
                preexec_fn=dies_with_parent(),
            )
        self._died_at = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def has_ended_well(self) -> bool:
        """Whether it finished its work."""
        return self._process.poll() in self.spec.ends_well

    def note_progress(self) -> None:
        """The run moves: count restarts anew."""
        self._restarts = 0

    def keep_alive(self) -> int | None:
        """Start it again some time after it died; return the exit code of the one that was replaced.

        Raises:
            ChildFailed: it refused to work, or keeps dying.
        """
        code = self._process.poll()
        if code is None or code in self.spec.ends_well:
            return None
        if code == _REFUSED_EXIT or self._restarts >= _MOST_RESTARTS:
            why = self.last_error() or f"it ended with exit code {code}"
            raise ChildFailed(f"{self.spec.name}: {why} (log: {self.log_file})")
        if self._died_at is None:
            self._died_at = time.monotonic()
        elif time.monotonic() - self._died_at >= _RESTART_SECONDS:
            self._restarts += 1
            self._start()
            return code
        return None

    def stop(self, *, patience_seconds: float) -> None:
        """Ask it to stop, and kill it if it does not within *patience_seconds*."""
        if self._process.poll() is None:
            self._process.terminate()
            self.wait(patience_seconds)

    def ask_to_stop(self) -> None:
        """Ask it to stop, without waiting."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, patience_seconds: float) -> None:
        """Wait for its end, and kill it when patience is out."""
        try:
            self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it now, with whatever it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def last_error(self) -> str | None:
        """Return the message of the last error it logged since it was started, if any."""
        with open(self.log_file, "rb") as log:
            log.seek(self._log_begin)
            lines = log.read().splitlines()
        for line in reversed(lines):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and entry.get("level") == "error" and "message" in entry:
                return str(entry["message"])
        return lines[-1].decode(errors="replace") if lines else None
