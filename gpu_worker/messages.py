"""What the engine tells its supervisor, one JSON object a line over a pipe. No I/O but the writer's.

loaded     the model is ready
took       a shard was taken from the queue; its lease is set
computing  its forward passes begin: from now on silence means a stall
beat       a forward batch is done
computed   its states are on the host
done       its delivery has ended; carries :class:`gpu_worker.facts.ShardExtracted`
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from typing import Any

from gpu_worker.facts import ShardExtracted

LOADED, TOOK, COMPUTING, BEAT, COMPUTED, DONE = "loaded", "took", "computing", "beat", "computed", "done"


class Reporter:
    """The engine's end of the pipe; safe to use from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def loaded(self) -> None:
        """Say that the model is ready."""
        self._send({"kind": LOADED})

    def took(self, shard: int, delivery: str) -> None:
        """Say that a shard is in hand."""
        self._send({"kind": TOOK, "shard": shard, "delivery": delivery})

    def beat(self) -> None:
        """Say that the device works."""
        self._send({"kind": BEAT})

    def computing(self) -> None:
        """Say that forward passes begin."""
        self._send({"kind": COMPUTING})

    def computed(self) -> None:
        """Say that forward passes have ended, well or not."""
        self._send({"kind": COMPUTED})

    def done(self, facts: ShardExtracted) -> None:
        """Say how a delivery ended."""
        self._send({"kind": DONE, "facts": dataclasses.asdict(facts)})

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
