"""Reading a run: samples by id, in order, or as they arrive. Needs no source data, no model and no torch.

A sample lies in one shard; the ledger says which shards are stored, the plan which samples each holds. So opening
a run reads the plan's table and the ledger, and a shard's file is mapped when a sample of it is asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

from hiddenstream.contracts.commit import CommitLine, Quarantined
from hiddenstream.contracts.errors import RunDirectoryError, WireError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.final_norm import FinalNorm
from hiddenstream.heads import Heads
from hiddenstream.mapped_run_file import RunFile, map_run_file
from hiddenstream.mapped_shard import MappedShard, map_shard
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import Plan
from hiddenstream.sample import Sample, SampleNotCommitted, SampleQuarantined, UnknownSample

MAPPED_SHARDS = 64  # maps kept at a time; a map costs address space, not memory


def open_run(run_dir: str | PathLike[str]) -> Run:
    """Open a run directory, finished or growing.

    Raises:
        RunDirectoryError: no run is there, its record or plan is damaged, or its ledger is another plan's. A ledger
            line that cannot be read counts as a shard that is not stored yet; ``hiddenstream verify`` names it.
    """
    return Run(RunPaths(Path(run_dir)))


class Run:
    """The stored samples of a run, in the plan's order: by shard, and by place in it.

    ``run["an-id"]``, ``run[0]``, ``run[10:20]``, ``"an-id" in run`` (is it stored?), ``len(run)`` and iteration all
    mean the samples that were stored at the last :meth:`refresh`. Can be pickled, for data loaders.

    Attributes:
        record: the content of ``run.json``.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.record: RunRecord = paths.read_record()
        self._paths = paths
        self._plan = Plan(paths)
        if self._plan.shards != self.record.shards:
            raise RunDirectoryError(f"{paths.samples} plans {self._plan.shards} shards, run.json {self.record.shards}")
        self._ledger = LedgerReader(paths.ledger)
        self._mapped = lru_cache(MAPPED_SHARDS)(self._map)
        blocks = self.record.num_blocks
        self._final_tap = f"block.{blocks - 1}" if f"block.{blocks - 1}" in self.taps else None
        self._final_norm: FinalNorm | None = None
        self.refresh()

    def __reduce__(self) -> tuple[object, ...]:
        return open_run, (self._paths.root,)

    @property
    def taps(self) -> tuple[str, ...]:
        """Names along the second axis of every sample's hidden states."""
        return self.record.identity.taps

    @property
    def ids(self) -> tuple[str, ...]:
        """Every planned id, stored or not, in the plan's order."""
        return tuple(self._plan.places)

    @property
    def quarantined(self) -> Mapping[str, Quarantined]:
        """Planned samples that have no states, and why."""
        return {entry.id: entry for shard in self._shards for entry in self._commit(int(shard)).quarantined}

    @property
    def is_complete(self) -> bool:
        """Whether every planned shard was stored at the last :meth:`refresh`."""
        return len(self._shards) == self.record.shards

    def refresh(self) -> None:
        """Read what was appended to the ledger since.

        Raises:
            RunDirectoryError: the ledger names a shard that is not planned.
        """
        self._ledger.poll()
        commits = self._ledger.commits
        self._shards: npt.NDArray[np.int64] = np.array(sorted(commits), np.int64)
        if self._shards.size and self._shards[-1] >= self._plan.shards:
            raise RunDirectoryError(f"the ledger names shard {self._shards[-1]}; {self._plan.shards} are planned")
        stored = [commits[int(shard)].samples for shard in self._shards]
        self._ends: npt.NDArray[np.int64] = np.cumsum(np.array(stored, np.int64))

    def final_norm(self) -> FinalNorm:
        """Return the model's final norm, which :meth:`hiddenstream.sample.Sample.final_normed` uses.

        Raises:
            RunDirectoryError: it is not stored (``--final`` was not given, or no worker has started yet), or damaged.
        """
        if self._final_norm is None:
            run_file = self._run_file("final_norm", flag="--final")
            try:
                self._final_norm = FinalNorm.from_run_file(run_file.metadata, run_file.arrays)
            except WireError as error:
                raise RunDirectoryError(f"{self._paths.run_file('final_norm')}: {error}") from error
        return self._final_norm

    def heads(self) -> Heads:
        """Return the model's embedding and lm_head, mapped, not read.

        Raises:
            RunDirectoryError: they are not stored (no ``--heads``, or no worker has started yet), or damaged.
        """
        run_file = self._run_file("heads", flag="--heads")
        try:
            return Heads.from_run_file(run_file.metadata, run_file.arrays)
        except WireError as error:
            raise RunDirectoryError(f"{self._paths.run_file('heads')}: {error}") from error

    def _run_file(self, name: str, *, flag: str) -> RunFile:
        file = self._paths.run_file(name)
        try:
            return map_run_file(name, self.record, file)
        except FileNotFoundError as error:
            why = f"a run has it where {flag} was given, once a worker has loaded the model"
            raise RunDirectoryError(f"{file} is not there: {why}") from error

    def follow(self, poll_seconds: float = 1.0) -> Iterator[Sample]:
        """Yield every stored sample once, then those of each shard as it commits, until the run is complete.

        Within what is there at one look the order is the plan's; quarantined samples are left out.

        Args:
            poll_seconds: how often to look for new shards.
        """
        given: set[int] = set()
        pause = threading.Event()
        while True:
            is_last = self.is_complete
            for shard in self._shards.tolist():
                if shard not in given:
                    given.add(shard)
                    yield from self._samples_of(shard)
            if is_last:
                return
            pause.wait(poll_seconds)
            self.refresh()

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    def __contains__(self, sample_id: object) -> bool:
        if not isinstance(sample_id, str) or sample_id not in self._plan.places:
            return False
        commit = self._ledger.commits.get(self._plan.places[sample_id][0])
        return commit is not None and all(entry.id != sample_id for entry in commit.quarantined)

    def __iter__(self) -> Iterator[Sample]:
        for shard in self._shards.tolist():
            yield from self._samples_of(shard)

    @overload
    def __getitem__(self, key: str | int) -> Sample: ...

    @overload
    def __getitem__(self, key: slice) -> list[Sample]: ...

    def __getitem__(self, key: str | int | slice) -> Sample | list[Sample]:
        """Return a sample by id or by number among the stored ones, or a slice of these.

        Raises:
            UnknownSample, SampleNotCommitted, SampleQuarantined: why an id has no sample; all are KeyErrors.
            IndexError: a number outside the stored samples.
            RunDirectoryError: the shard's file disagrees with the plan or the ledger.
        """
        if isinstance(key, str):
            return self._by_id(key)
        if isinstance(key, slice):
            return [self._by_number(number) for number in range(*key.indices(len(self)))]
        number = int(key) + (len(self) if key < 0 else 0)
        if not 0 <= number < len(self):
            raise IndexError(f"sample {key} of a run that has {len(self)} stored samples")
        return self._by_number(number)

    def _by_id(self, sample_id: str) -> Sample:
        if sample_id not in self._plan.places:
            raise UnknownSample(sample_id, "is not planned in this run")
        shard, place = self._plan.places[sample_id]
        commit = self._ledger.commits.get(shard)
        if commit is None:
            raise SampleNotCommitted(sample_id, f"is not committed yet: shard {shard} is not stored")
        for entry in commit.quarantined:
            if entry.id == sample_id:
                raise SampleQuarantined(entry)
        left_out = {self._plan.places[entry.id][1] for entry in commit.quarantined if entry.id in self._plan.places}
        return self._sample(self._mapped(shard), place - sum(other < place for other in left_out))

    def _by_number(self, number: int) -> Sample:
        index = int(np.searchsorted(self._ends, number, side="right"))
        shard = int(self._shards[index])
        return self._sample(self._mapped(shard), number - int(self._ends[index]) + self._commit(shard).samples)

    def _samples_of(self, shard: int) -> Iterator[Sample]:
        mapped = self._mapped(shard)
        for place in range(len(mapped.sample_ids)):
            yield self._sample(mapped, place)

    def _sample(self, mapped: MappedShard, place: int) -> Sample:
        first, rows = mapped.sample_rows[place].tolist()
        begin, end = mapped.mask_offsets[place : place + 2].tolist()
        return Sample(
            id=mapped.sample_ids[place],
            input_ids=mapped.input_ids[first : first + rows],
            loss_mask=mapped.loss_mask[begin:end] if end > begin else None,
            hidden_states=mapped.hidden_states[first : first + rows],
            taps=self.taps,
            final_tap=self._final_tap,
            find_final_norm=self.final_norm,
        )

    def _commit(self, shard: int) -> CommitLine:
        return self._ledger.commits[shard]

    def _map(self, shard: int) -> MappedShard:
        planned_ids = self._plan.ids_of(shard)
        commit = self._commit(shard)
        return map_shard(self._paths.shard(shard), record=self.record, commit=commit, planned_ids=planned_ids)
