"""The worker's main path: a job comes in, its samples run through the model, a shard goes out.

    job ─▶ is it ours, is it still wanted? ─▶ forward batches into a host buffer ─▶ checked, hashed ─▶ uploader

A delivery is over for RQ when its states are on the host; the uploader sends them while the next one computes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from gpu_worker.buffers import HostBuffers
from gpu_worker.compute import ShardComputer
from gpu_worker.facts import ShardExtracted
from gpu_worker.messages import Reporter
from gpu_worker.shard_file import finish_shard
from gpu_worker.sink_client import SinkClient, SinkUnavailable
from gpu_worker.upload import FinishedShard, Uploader, log_waiting
from hiddenstream.chassis.lifecycle import StopRequest, backoff
from hiddenstream.contracts.errors import GateRefused, RunMismatch, WireError
from hiddenstream.contracts.job import ExtractionJob
from hiddenstream.contracts.run import RunRecord

EXTRACTION_FAILED = "extraction_failed"
REFERENCE_NOT_CHECKED = "reference_not_checked"
BROKEN_DEVICE_EXIT = 71
_MESSAGE_CHARACTERS = 1000
_LOGGER = logging.getLogger("gpu_worker.extract")


class Extraction:
    """What an engine needs to turn deliveries into shards."""

    def __init__(
        self,
        record: RunRecord,
        computer: ShardComputer,
        sink: SinkClient,
        *,
        buffers: HostBuffers,
        reporter: Reporter,
        made_by: dict[str, object],
        after_shard: Callable[[int], None],
        stop: StopRequest,
    ) -> None:
        """Remember what is needed; *after_shard* raises GateRefused where the model is not what it was."""
        self._record = record
        self._computer = computer
        self._sink = sink
        self._buffers = buffers
        self._reporter = reporter
        self._made_by = made_by
        self._after_shard = after_shard
        self._stop = stop
        self._uploader = Uploader(
            sink, buffers, self._on_sent, on_phase=lambda thread, phase: reporter.is_at(phase, thread=thread)
        )
        self._in_hand: set[int] = set()
        self._changed = threading.Condition()
        self._taken = (0, "")

    def take(self, shard: int, delivery: str) -> None:
        """Note which delivery comes next, so that a payload that cannot be read still has a name."""
        self._taken = (shard, delivery)
        self._reporter.is_at("other")
        self._reporter.took(shard, delivery)

    def deliver(self, payload: bytes) -> None:
        """Compute a shard and hand it to the uploader, or say why not. Never raises: RQ must not redeliver."""
        shard, delivery = self._taken
        try:
            outcome, message = self._compute_and_hand_over(payload), ""
        except RunMismatch as error:
            outcome, message = "refused", str(error)
        except SinkUnavailable as error:  # only when asked to stop: nothing was computed, another worker may have it
            outcome, message = "given_back", str(error)
        except Exception as error:
            _LOGGER.exception(EXTRACTION_FAILED, extra={"facts": {"shard": shard, "delivery": delivery}})
            outcome, message = "failed", repr(error)[:_MESSAGE_CHARACTERS]
        if outcome != "handed_over":
            self._reporter.done(ShardExtracted(shard=shard, delivery=delivery, outcome=outcome, message=message))
        if _is_sticky(message):
            os._exit(BROKEN_DEVICE_EXIT)
        if outcome == "handed_over":
            self._refuse_changed_model(shard)
        self._reporter.is_at("wait_for_job")

    def _refuse_changed_model(self, shard: int) -> None:
        try:
            self._after_shard(shard)
        except GateRefused as error:
            self._reporter.refused(str(error), gate="failed")
            os._exit(error.exit_code)  # without sending what waits: it should not be stored
        except Exception as error:
            _LOGGER.exception(REFERENCE_NOT_CHECKED)  # tried again after the next shard
            if _is_sticky(repr(error)):
                os._exit(BROKEN_DEVICE_EXIT)

    def wait_until_idle(self) -> None:
        """Wait until every shard handed over has its answer."""
        self._reporter.is_at("wait_for_sink")
        with self._changed:
            self._changed.wait_for(lambda: not self._in_hand)

    def _compute_and_hand_over(self, payload: bytes) -> str:
        job = ExtractionJob.decode(payload)
        refuse_other_run(job, self._record)
        if (job.shard, job.delivery) != self._taken:  # its lease and its end would be of different shards
            raise WireError(f"a job for {self._taken} that holds shard {job.shard}, delivery {job.delivery!r:.40}")
        with self._changed:
            if job.shard in self._in_hand:
                return "in_hand"
        if self._is_stored(job.shard):
            return "already_there"
        started = time.monotonic()
        self._reporter.is_at("wait_for_buffer")
        buffer = self._buffers.take()
        wait_seconds = time.monotonic() - started
        self._reporter.computing()
        try:
            work = self._computer.compute(job, buffer)
            self._reporter.is_at("hash")
            shard = finish_shard(job, self._record, work, buffer, made_by=self._made_by, wait_seconds=wait_seconds)
        except BaseException:
            self._buffers.give_back(buffer)
            raise
        finally:
            self._reporter.computed()
        self._hand_over(shard)
        return "handed_over"

    def _is_stored(self, shard: int) -> bool:
        self._reporter.is_at("wait_for_sink")
        for pause_seconds in backoff():
            try:
                return self._sink.has_shard(shard)
            except SinkUnavailable as error:
                log_waiting(error)
                if self._stop.wait(pause_seconds):
                    raise
        raise AssertionError("backoff never ends")

    def _hand_over(self, shard: FinishedShard) -> None:
        with self._changed:
            self._in_hand.add(shard.facts.shard)
        self._uploader.hand_over(shard)

    def _on_sent(self, facts: ShardExtracted) -> None:
        with self._changed:  # a delivery that comes meanwhile is told "in hand" before this end, or not at all
            self._reporter.done(facts)
            self._in_hand.discard(facts.shard)
            self._changed.notify_all()


def _is_sticky(message: str) -> bool:
    """Whether nothing on this CUDA context will work again."""
    return "CUDA error" in message or "AcceleratorError" in message


def refuse_other_run(job: ExtractionJob, record: RunRecord) -> None:
    """Refuse a job of another run.

    Raises:
        RunMismatch: name or fingerprint differ.
    """
    ours = {"run": record.run, "fingerprint": record.identity.fingerprint}
    theirs = {"run": job.run, "fingerprint": job.fingerprint}
    differences = [f"{key}: ours is {ours[key]!r}, its is {theirs[key]!r}" for key in ours if ours[key] != theirs[key]]
    if differences:
        raise RunMismatch(f"the job for shard {job.shard}", differences)
