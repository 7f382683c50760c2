"""What the engine tells its supervisor, one JSON object a line over a pipe. No I/O but the writer's.

loaded     the model is ready; carries :class:`gpu_worker.facts.ModelReady`
refused    this engine cannot serve the run, and why
took       a shard was taken from the queue; its lease is set
computing  its forward passes begin: from now on silence means a stall
beat       a forward batch is done; carries :class:`gpu_worker.facts.BatchDone`
computed   its states are on the host
done       its delivery has ended; carries :class:`gpu_worker.facts.ShardExtracted`
activity   what one of its threads is at from now on, by the clock that both processes share
logged     a line of its log that people should see
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from typing import Any

from gpu_worker.facts import BatchDone, ModelReady, ShardExtracted

LOADED, REFUSED, TOOK, COMPUTING, BEAT, COMPUTED = "loaded", "refused", "took", "computing", "beat", "computed"
DONE, ACTIVITY, LOGGED = "done", "activity", "logged"
MAIN_THREAD = "main"


class Reporter:
    """The engine's end of the pipe; safe to use from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def loaded(self, ready: ModelReady) -> None:
        """Say that the model is ready."""
        self._send({"kind": LOADED, "facts": dataclasses.asdict(ready)})

    def refused(self, message: str, *, gate: str) -> None:
        """Say that no engine can serve this run, and how the exactness gate had judged by then."""
        self._send({"kind": REFUSED, "message": message, "gate": gate})

    def took(self, shard: int, delivery: str) -> None:
        """Say that a shard is in hand."""
        self._send({"kind": TOOK, "shard": shard, "delivery": delivery})

    def beat(self, batch: BatchDone) -> None:
        """Say that the device works."""
        self._send({"kind": BEAT, "facts": dataclasses.asdict(batch)})

    def computing(self) -> None:
        """Say that forward passes begin."""
        self._send({"kind": COMPUTING})

    def computed(self) -> None:
        """Say that forward passes have ended, well or not."""
        self._send({"kind": COMPUTED})

    def done(self, facts: ShardExtracted) -> None:
        """Say how a delivery ended."""
        self._send({"kind": DONE, "facts": dataclasses.asdict(facts)})

    def is_at(self, activity: str, *, thread: str = MAIN_THREAD) -> None:
        """Say what a thread is at from now on: one of ACTIVITIES for the main one, of UPLOADING for the others."""
        self._send({"kind": ACTIVITY, "thread": thread, "activity": activity, "at": time.monotonic()})

    def logged(self, line: str) -> None:
        """Pass a log line on."""
        self._send({"kind": LOGGED, "line": line})

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            while line:
                try:
                    line = line[os.write(self._descriptor, line) :]
                except BrokenPipeError:
                    os._exit(70)  # without its supervisor an engine holds no lease


def facts_of(message: dict[str, Any]) -> ShardExtracted:
    """Return the facts that a ``done`` message carries."""
    return ShardExtracted(**message["facts"])
