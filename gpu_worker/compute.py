"""Computing one shard: its samples through the model in batches, their states into a host buffer.

Shape letters: T tokens of the shard, K taps, D model width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.buffers import HostBuffer
from gpu_worker.forward import BatchStates, ForwardPass, fault_of
from gpu_worker.model import TORCH_DTYPES
from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.job import ExtractionJob
from hiddenstream.contracts.run import RunIdentity


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
    sums_of_squares_K: Tensor | None = None  # float64, of the sound samples' states
    summed_tokens: int = 0

    def tap_rms(self, taps: tuple[str, ...]) -> dict[str, float]:
        """Return the root mean square of the states of each tap, where it is finite."""
        if self.sums_of_squares_K is None or not self.summed_tokens:
            return {}
        mean_K = (self.sums_of_squares_K / (self.summed_tokens * self.states_TKD.shape[2])).sqrt()
        return {tap: float(mean) for tap, mean in zip(taps, mean_K, strict=True) if bool(torch.isfinite(mean))}


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
        return work

    def _run(self, work: ShardWork, places: list[int], job: ExtractionJob) -> None:
        """Run samples as one batch; what fails in company is run alone before it is blamed."""
        states = self._run_or_split(work, places, job)
        if states is None:
            return
        lengths = [work.token_rows[place].size for place in places]
        copying = time.monotonic()
        self._on_activity("copy")
        self._copy(work, places, states)
        checking = time.monotonic()
        self._on_activity("check")
        work.copy_seconds += checking - copying
        faults = self._faults(work, places, states)
        _sum_squares(work, places, states, faults)
        work.check_seconds += time.monotonic() - checking
        self._on_batch(sum(lengths), states.token_slots)
        for place, (reason, detail) in faults.items():
            if len(places) > 1:
                self._run(work, [place], job)
            else:
                work.faults[place] = Quarantined(id=job.samples.ids[place], reason=reason, detail=detail)

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
        first = work.first_rows[places[0]]
        work.states_TKD[first : first + states.hidden_NKD.shape[0]].copy_(states.hidden_NKD)

    def _faults(self, work: ShardWork, places: list[int], states: BatchStates) -> dict[int, tuple[str, str]]:
        found, begin = {}, 0
        for place in places:
            end = begin + work.token_rows[place].size
            fault = fault_of(states.largest_NK[begin:end], self._identity.taps)
            if fault is not None:
                found[place] = fault
            begin = end
        return found


def _sum_squares(work: ShardWork, places: list[int], states: BatchStates, faults: Container[int]) -> None:
    """Add up what the sound samples of a batch hold; the others run again, or are left out."""
    begin = 0
    if work.sums_of_squares_K is None:
        work.sums_of_squares_K = torch.zeros(states.norms_NK.shape[1], dtype=torch.float64)
    for place in places:
        end = begin + work.token_rows[place].size
        if place not in faults:
            work.sums_of_squares_K += states.norms_NK[begin:end].double().square().sum(dim=0)
            work.summed_tokens += end - begin
        begin = end
