"""Computing one shard: its samples through the model in batches, their states into a host buffer.

Shape letters: T tokens of the shard, K taps, D model width.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.buffers import HostBuffer
from gpu_worker.forward import BatchStates, ForwardPass
from gpu_worker.judge import Fault, fault_of
from gpu_worker.model import TORCH_DTYPES
from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.job import ExtractionJob
from hiddenstream.contracts.run import RunIdentity
from hiddenstream.contracts.statistics import TapStatistics, merge_taps


@dataclass(slots=True)
class ShardWork:
    """One shard being computed: where its states go, and what happened so far."""

    states_TKD: Tensor  # on the host; rows of quarantined samples hold nothing of worth
    token_rows: list[npt.NDArray[np.int32]]
    first_rows: list[int]
    faults: dict[int, Quarantined] = field(default_factory=dict)
    batches: int = 0
    token_slots: int = 0
    out_of_memory_splits: int = 0
    forward_seconds: float = 0.0
    copy_seconds: float = 0.0
    check_seconds: float = 0.0
    overflowed_values: int = 0  # in quarantined samples
    statistics: dict[str, TapStatistics] = field(
        default_factory=dict
    )  # of the sound samples' states; a tap beyond float32 has none


class ShardComputer:
    """Computes shards of one run."""

    def __init__(
        self,
        identity: RunIdentity,
        forward: ForwardPass,
        *,
        token_budget: int | None,
        on_batch: Callable[[int, int], None],
        on_activity: Callable[[str], None],
    ) -> None:
        """Remember the run.

        Args:
            token_budget: most token slots of a batch on this worker, or None to follow the jobs.
            on_batch: called after each forward batch with its tokens and token slots.
            on_activity: called with what of ACTIVITIES comes next.
        """
        self._identity = identity
        self._forward = forward
        self._token_budget = token_budget
        self._on_batch = on_batch
        self._on_activity = on_activity

    def compute(self, job: ExtractionJob, buffer: HostBuffer) -> ShardWork:
        """Run a shard's samples through the model into *buffer*."""
        samples, identity = job.samples, self._identity
        shape = (samples.tokens.size, len(identity.taps), identity.hidden_size)
        work = ShardWork(
            states_TKD=buffer.shaped(shape, TORCH_DTYPES[identity.stored_dtype]),
            token_rows=np.split(samples.tokens, samples.token_offsets[1:-1]),
            first_rows=samples.token_offsets[:-1].tolist(),
        )
        budget = min(job.token_budget, self._token_budget or job.token_budget)
        for batch in self._forward.cut([row.size for row in work.token_rows], max_token_slots=budget):
            self._run(work, list(batch), job)
        work.statistics = {tap: known for tap, known in work.statistics.items() if known.is_finite}
        return work

    def _run(self, work: ShardWork, places: list[int], job: ExtractionJob) -> None:
        """Run samples as one batch; what fails in company is run alone, and so are its mates, before it is blamed."""
        faults = self._run_once(work, places, job)
        if faults and len(places) > 1:
            for place in places:  # what is wrong with one may have reached its mates
                self._run(work, [place], job)
            return
        for place, fault in faults.items():
            work.faults[place] = Quarantined(id=job.samples.ids[place], reason=fault.reason, detail=fault.detail)
            work.overflowed_values += fault.overflowed_values

    def _run_once(self, work: ShardWork, places: list[int], job: ExtractionJob) -> dict[int, Fault]:
        """Run samples as one batch and copy their states; return what is wrong, and hold no memory of the device."""
        states = self._run_or_split(work, places, job)
        if states is None:
            return {}
        copying = time.monotonic()
        self._on_activity("copy")
        self._copy(work, places, states)
        checking = time.monotonic()
        self._on_activity("check")
        work.copy_seconds += checking - copying
        faults = self._faults(work, places, states)
        if not faults:
            self._describe(work, states)
        work.check_seconds += time.monotonic() - checking
        self._on_batch(states.hidden_NKD.shape[0], states.token_slots)
        return faults

    def _run_or_split(self, work: ShardWork, places: list[int], job: ExtractionJob) -> BatchStates | None:
        self._on_activity("forward")
        try:
            states = self._forward.run([work.token_rows[place] for place in places])
        except torch.OutOfMemoryError as error:
            message = str(error).splitlines()[0]
        else:
            work.batches += 1
            work.token_slots += states.token_slots
            work.forward_seconds += states.forward_seconds
            return states
        work.out_of_memory_splits += 1  # outside the handler: the exception would keep the batch's memory
        if len(places) == 1:
            sample_id = job.samples.ids[places[0]]
            work.faults[places[0]] = Quarantined(id=sample_id, reason="out_of_memory", detail=message)
            return None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        for half in (places[: len(places) // 2], places[len(places) // 2 :]):
            self._run(work, half, job)
        return None

    def _copy(self, work: ShardWork, places: list[int], states: BatchStates) -> None:
        """Copy a batch's states to their rows; the samples of a whole batch lie end to end, so it is one copy."""
        assert states.hidden_NKD.shape[0] == sum(work.token_rows[place].size for place in places)
        first = work.first_rows[places[0]]
        work.states_TKD[first : first + states.hidden_NKD.shape[0]].copy_(states.hidden_NKD)

    def _faults(self, work: ShardWork, places: list[int], states: BatchStates) -> dict[int, Fault]:
        found, begin = {}, 0
        for place in places:
            tokens = work.token_rows[place]
            fault = fault_of(states, begin, tokens, self._identity.taps)
            if fault is not None:
                found[place] = fault
            begin += tokens.size
        return found

    def _describe(self, work: ShardWork, states: BatchStates) -> None:
        known = [x.numpy() for x in (states.means_NK, states.variances_NK, states.largest_NK)]
        described = {
            tap: TapStatistics.of_tokens(*(x[:, place] for x in known), width=self._identity.hidden_size)
            for place, tap in enumerate(self._identity.taps)
        }
        work.statistics = merge_taps(work.statistics, described)
