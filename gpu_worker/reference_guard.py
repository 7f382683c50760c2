"""Keeping a worker's states equal to those that the run's first worker stored: at its start, and now and then.

The run file ``reference`` holds the fixed samples of gpu_worker/reference.py. Whoever finds none makes it; where two do
at once, the first one counts, and the other is compared with it.

Shape letters: N tokens of all samples, K taps, D model width.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_worker.forward import ForwardPass
from gpu_worker.model import LoadedModel
from gpu_worker.reference import ReferenceStates, compute_reference, differences_from, refuse_other_states
from gpu_worker.sink_client import SinkClient, SinkRefused, SinkUnavailable
from gpu_worker.upload import log_waiting
from hiddenstream.chassis.lifecycle import StopRequest, backoff
from hiddenstream.chassis.logs import log
from hiddenstream.contracts.errors import GateRefused, WireError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.run_file import RawTensor, encode_run_file
from hiddenstream.mapped_run_file import decode_run_file

REFERENCE_STORED = "reference_stored"
REFERENCE_MATCHED = "reference_matched"
REFERENCE_LOST = "reference_lost"
NAME = "reference"
_SHARDS_BETWEEN_CHECKS = 256
_WRONG_HASH_ATTEMPTS = 3  # damaged on the way, or in our memory: the latter does not mend
_LOGGER = logging.getLogger("gpu_worker.reference")


class ReferenceGuard:
    """Compares a worker with the run's reference.

    Attributes:
        difference: largest relative L2 of a tap that the last comparison found; 0 for whoever made the reference.
    """

    def __init__(self, record: RunRecord, model: LoadedModel, forward: ForwardPass) -> None:
        """Remember what to compare; :meth:`match` does it."""
        self._record, self._model, self._forward = record, model, forward
        self._reference: ReferenceStates | None = None
        self._shards_since_check: list[int] = []
        self.difference = 0.0

    def match(self, sink: SinkClient, stop: StopRequest, made_by: Mapping[str, Any]) -> None:
        """Match the run's reference, or make it; waits for the sink.

        Raises:
            GateRefused: this worker's states are others; names the mistake where it can be told.
            SinkUnavailable: asked to stop while the sink was away.
        """
        for attempt, pause_seconds in enumerate(backoff(), start=1):
            try:
                self._match(sink, made_by)
                return
            except SinkUnavailable as error:
                log_waiting(error)
                if stop.wait(pause_seconds):
                    raise
            except SinkRefused as error:
                if error.sink_reason != "wrong_hash" or attempt >= _WRONG_HASH_ATTEMPTS:
                    raise

    def after_shard(self, shard: int) -> None:
        """Compare one of the fixed samples again, every 256 shards.

        Raises:
            GateRefused: its states have changed since; the shards made in between are named, and should not be trusted.
        """
        self._shards_since_check.append(shard)
        if self._reference is None or len(self._shards_since_check) < _SHARDS_BETWEEN_CHECKS:
            return
        try:
            self._compare(sample=len(self._reference.rows) - 1)
        except GateRefused as error:
            facts = {"shards": self._shards_since_check, "message": str(error)}
            log(_LOGGER, REFERENCE_LOST, facts, level=logging.ERROR)
            raise
        self._shards_since_check = []

    def _match(self, sink: SinkClient, made_by: Mapping[str, Any]) -> None:
        content = sink.fetch_file(NAME)
        if content is None:
            longest = self._record.longest_tokens
            mine = compute_reference(self._model, self._forward, self._record.identity.taps, longest)
            if sink.put_file(NAME, encode_reference(mine, self._record, made_by)) == "committed":
                self._reference = mine
                log(_LOGGER, REFERENCE_STORED, {"noise": _rounded(mine.noise)})
                return
            content = sink.fetch_file(NAME)
        self._reference = decode_reference(content or b"", self._record)
        self._compare()

    def _compare(self, *, sample: int | None = None) -> None:
        assert self._reference is not None
        taps = self._record.identity.taps
        differences = differences_from(self._reference, self._forward, taps, sample=sample)
        identity = self._record.identity
        self.difference = refuse_other_states(differences, self._reference, self._model, self._forward, identity)
        log(_LOGGER, REFERENCE_MATCHED, {"differences": _rounded(differences)})


def encode_reference(
    reference: ReferenceStates, record: RunRecord, made_by: Mapping[str, Any]
) -> tuple[bytes | memoryview, ...]:
    """Return the run file's bytes in pieces."""
    lengths = np.array([row.size for row in reference.rows], np.int64)
    sample_rows = np.stack([lengths.cumsum() - lengths, lengths], axis=1)
    states_NKD = reference.states_NKD
    tensors = {
        "sample_rows": RawTensor(dtype="int64", shape=sample_rows.shape, data=sample_rows.astype("<i8").tobytes()),
        "input_ids": RawTensor(
            dtype="int32", shape=(int(lengths.sum()),), data=np.concatenate(reference.rows).astype("<i4").tobytes()
        ),
        "hidden_states": RawTensor(dtype="float32", shape=states_NKD.shape, data=states_NKD.astype("<f4").tobytes()),
    }
    facts = {
        "taps": json.dumps(record.identity.taps),
        "noise": json.dumps(dict(reference.noise)),
        "made_by": json.dumps(dict(made_by)),
    }
    return encode_run_file(NAME, record, tensors, facts)


def decode_reference(content: bytes, record: RunRecord) -> ReferenceStates:
    """Read what :func:`encode_reference` wrote.

    Raises:
        GateRefused: it is damaged, or another run's; deleting it lets the next worker make it anew.
    """
    try:
        run_file = decode_run_file(NAME, record, content)
        arrays = run_file.arrays
        rows = [arrays["input_ids"][first : first + count] for first, count in arrays["sample_rows"].tolist()]
        noise = json.loads(run_file.metadata.facts["noise"])
        shape = (sum(row.size for row in rows), len(record.identity.taps), record.identity.hidden_size)
        if arrays["hidden_states"].shape != shape or set(noise) != set(record.identity.taps):
            raise WireError(f"hidden_states {arrays['hidden_states'].shape}, noise of {sorted(noise)}")
    except (WireError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise GateRefused(
            f"reference.safetensors of the run directory cannot be used ({error}); where it is damaged, delete it, and"
            " the next worker makes it anew"
        ) from error
    return ReferenceStates(rows=rows, states_NKD=np.array(arrays["hidden_states"]), noise=noise)


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{figure:.2e}") for name, figure in figures.items()}
