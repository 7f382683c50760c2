"""Sending finished shards to the sink while the next ones are computed."""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpu_worker.activity import UPLOADING
from gpu_worker.buffers import HostBuffer, HostBuffers
from gpu_worker.facts import ShardExtracted
from gpu_worker.sink_client import SinkClient, SinkRefused, SinkUnavailable
from hiddenstream.chassis.lifecycle import backoff
from hiddenstream.chassis.logs import log

UPLOAD_FAILED = "upload_failed"
SINK_WAITED_FOR = "sink_waited_for"
UPLOAD_THREADS = 2
_WRONG_HASH_ATTEMPTS = 3  # damaged on the way, or in our memory: the latter does not mend
_LOGGER = logging.getLogger("gpu_worker.upload")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedShard:
    """A shard on the host, ready to be sent.

    Attributes:
        pieces: the file's bytes in order; some lie in *buffer*, which is given back after the answer.
        facts: what is known of the delivery so far.
    """

    pieces: tuple[bytes | memoryview, ...]
    buffer: HostBuffer
    facts: ShardExtracted


class _Phases:
    """Adds up how long a shard was sent and waited for."""

    def __init__(self, on_phase: Callable[[str], None]) -> None:
        self.seconds = dict.fromkeys(UPLOADING, 0.0)
        self._on_phase = on_phase
        self._phase, self._since = "nothing", time.monotonic()

    def enter(self, phase: str) -> None:
        """Note what comes next."""
        if phase != self._phase:
            now = time.monotonic()
            self.seconds[self._phase] += now - self._since
            self._phase, self._since = phase, now
            self._on_phase(phase)


class Uploader:
    """Two threads that send shards and wait for the durable answer."""

    def __init__(
        self,
        sink: SinkClient,
        buffers: HostBuffers,
        on_done: Callable[[ShardExtracted], None],
        on_phase: Callable[[str, str], None] = lambda _thread, _phase: None,
    ) -> None:
        """Start the threads.

        Args:
            on_done: called with the facts of each delivery once the sink has answered for good.
            on_phase: called with a thread's name and what of UPLOADING it is at from now on.
        """
        self._sink = sink
        self._buffers = buffers
        self._on_done = on_done
        self._on_phase = on_phase
        self._waiting: queue.SimpleQueue[FinishedShard] = queue.SimpleQueue()
        for number in range(UPLOAD_THREADS):
            name = f"upload-{number}"
            threading.Thread(target=self._send_for_ever, args=(name,), name=name, daemon=True).start()

    def hand_over(self, shard: FinishedShard) -> None:
        """Have *shard* sent; its buffer bounds how many can wait."""
        self._waiting.put(shard)

    def _send_for_ever(self, thread: str) -> None:
        while True:
            shard = self._waiting.get()
            phases = _Phases(lambda phase: self._on_phase(thread, phase))
            try:
                facts = self._send(shard, phases)
            except Exception as error:
                _LOGGER.exception(UPLOAD_FAILED, extra={"facts": {"shard": shard.facts.shard}})
                facts = dataclasses.replace(shard.facts, outcome="failed", message=repr(error))
            finally:
                phases.enter("nothing")
                self._buffers.give_back(shard.buffer)
            del shard  # its pieces would keep a buffer's old memory alive while the buffer takes more
            self._on_done(facts)

    def _send(self, shard: FinishedShard, phases: _Phases) -> ShardExtracted:
        started = time.monotonic()
        attempts = 0
        waits = backoff()
        while True:
            attempts += 1
            try:
                outcome, message = self._sink.put_shard(shard.facts.shard, shard.pieces, on_phase=phases.enter), ""
                break
            except SinkUnavailable as error:
                log_waiting(error)
                time.sleep(next(waits))
            except SinkRefused as error:
                outcome, message = "failed", str(error)
                if error.sink_reason != "wrong_hash" or attempts >= _WRONG_HASH_ATTEMPTS:
                    break
        phases.enter("nothing")
        return dataclasses.replace(
            shard.facts,
            outcome=outcome,
            message=message,
            upload_seconds=time.monotonic() - started,
            send_seconds=phases.seconds["send"],
            answer_seconds=phases.seconds["answer"],
            upload_attempts=attempts,
        )


def log_waiting(error: SinkUnavailable) -> None:
    """Say that the sink is waited for."""
    log(_LOGGER, SINK_WAITED_FOR, {"message": str(error)}, level=logging.WARNING)
