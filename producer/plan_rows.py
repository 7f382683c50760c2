"""The plan while rows are read: tokens go to disk at once, the table's columns stay in memory."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from hiddenstream.run_directory.plan import MERGED, PLANNED, REJECTED, encode_sample
from producer.planner import ShardPlan
from producer.rejections import ConflictingIds
from producer.rows import Rejection, Sample


class PlanRows:
    """Takes samples and rejections in the order of the input.

    Attributes:
        rejected: rows by reason.
        merged: rows that repeat an earlier one.
        truncated, without_mask: samples of these kinds.
        token_count: tokens of all samples.
        record_bytes: size of ``tokens.bin``.
    """

    def __init__(self, tokens_file: Path) -> None:
        self.rejected: Counter[str] = Counter()
        self.merged = self.truncated = self.without_mask = self.token_count = self.record_bytes = 0
        self._file = open(tokens_file, "wb+", buffering=1 << 20)  # noqa: SIM115 - closed by __exit__
        self._row_of_id: dict[str, int] = {}
        self._ids: list[str | None] = []
        self._sources: list[str] = []
        self._statuses: list[str] = []
        self._reasons: list[str | None] = []
        self._details: list[str | None] = []
        self._tokens, self._offsets = array("i"), array("q")
        self._masked, self._cut = array("b"), array("b")

    def __enter__(self) -> PlanRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def samples(self) -> int:
        """Planned samples."""
        return len(self._row_of_id)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each planned sample, in the order of the input."""
        return np.array(self._tokens, dtype=np.int64)[self._planned()]

    def add_sample(self, sample: Sample) -> None:
        """Plan a sample, or merge it with an equal one.

        Raises:
            ConflictingIds: an earlier sample has its id and other tokens or another mask.
        """
        record = encode_sample(sample.tokens, sample.mask)
        first = self._row_of_id.get(sample.id)
        if first is not None:
            self._merge(sample, record, first)
            return
        self._row_of_id[sample.id] = len(self._ids)
        self._append(sample.id, sample.source, PLANNED, tokens=len(sample.tokens), offset=self.record_bytes)
        self._masked[-1], self._cut[-1] = sample.mask is not None, sample.is_truncated
        self._file.write(record)
        self.record_bytes += len(record)
        self.token_count += len(sample.tokens)
        self.truncated += sample.is_truncated
        self.without_mask += sample.mask is None

    def add_rejection(self, rejection: Rejection) -> None:
        """Keep account of a row that is no sample."""
        self.rejected[rejection.reason] += 1
        self._append(rejection.id, rejection.source, REJECTED, reason=rejection.reason, detail=rejection.detail)

    def finish_tokens(self) -> None:
        """Make ``tokens.bin`` durable."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def columns(self, shards: ShardPlan) -> dict[str, Sequence[Any] | npt.NDArray[Any]]:
        """Return the columns of the plan's table."""
        shard, place = np.full(len(self), -1, np.int32), np.full(len(self), -1, np.int32)
        planned = self._planned()
        shard[planned], place[planned] = shards.shard, shards.place
        return {
            "id": self._ids,
            "source_row": np.arange(len(self)),
            "source": self._sources,
            "tokens": np.array(self._tokens, dtype=np.int32),
            "status": self._statuses,
            "reason": self._reasons,
            "detail": self._details,
            "shard": shard,
            "place": place,
            "offset": np.array(self._offsets, dtype=np.int64),
            "has_mask": np.array(self._masked, dtype=bool),
            "is_truncated": np.array(self._cut, dtype=bool),
        }

    def _planned(self) -> npt.NDArray[np.int64]:
        return np.fromiter(self._row_of_id.values(), np.int64, len(self._row_of_id))

    def _merge(self, sample: Sample, record: bytes, first: int) -> None:
        self._file.flush()
        kept = os.pread(self._file.fileno(), len(record), self._offsets[first])
        is_same = (self._tokens[first], self._masked[first]) == (len(sample.tokens), sample.mask is not None)
        if not is_same or kept != record:
            raise ConflictingIds(sample.id, first=self._sources[first], second=sample.source)
        self.merged += 1
        self._append(sample.id, sample.source, MERGED, tokens=len(sample.tokens), detail=self._sources[first])

    def _append(
        self,
        sample_id: str | None,
        source: str,
        status: str,
        *,
        tokens: int = 0,
        offset: int = -1,
        reason: str | None = None,
        detail: str | None = None,
    ) -> None:
        self._ids.append(sample_id)
        self._sources.append(source)
        self._statuses.append(status)
        self._reasons.append(reason)
        self._details.append(detail)
        self._tokens.append(tokens)
        self._offsets.append(offset)
        self._masked.append(False)
        self._cut.append(False)
