"""The plan on disk: ``samples.parquet`` and ``tokens.bin``. The producer writes it, everybody reads it.

``tokens.bin`` holds, for each planned sample in the order of the input, its int32 token ids, then its uint8
mask if it has one, then zeros to a multiple of 4 bytes; ``offset`` in the table says where. Docs: docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from hiddenstream.contracts.errors import RunDirectoryError
from hiddenstream.contracts.samples import PackedSamples
from hiddenstream.run_directory.paths import RunPaths

PLANNED, REJECTED, MERGED = "planned", "rejected", "merged"
NULLABLE = ("id", "reason", "detail")
SAMPLES_SCHEMA = pa.schema(
    [
        ("id", pa.large_string()),  # null where the row could not be read
        ("source_row", pa.int64()),  # 0, 1, 2, ... over all input files in order
        ("source", pa.large_string()),  # "FILE:LINE" or "FILE row N", for people
        ("tokens", pa.int32()),
        ("status", pa.dictionary(pa.int8(), pa.string())),  # planned, rejected, merged
        ("reason", pa.dictionary(pa.int8(), pa.string())),  # why rejected; null else
        ("detail", pa.large_string()),  # the rejection in words; for a merged row, the row it repeats
        ("shard", pa.int32()),  # -1 unless planned, as in the next two
        ("place", pa.int32()),
        ("offset", pa.int64()),
        ("has_mask", pa.bool_()),
        ("is_truncated", pa.bool_()),
    ]
)


def encode_sample(tokens: npt.NDArray[np.int32], mask: npt.NDArray[np.uint8] | None) -> bytes:
    """Return one sample's record in ``tokens.bin``."""
    record = tokens.astype("<i4", copy=False).tobytes() + (b"" if mask is None else mask.tobytes())
    return record + bytes(-len(record) % 4)


def write_table(paths: RunPaths, columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> pa.Table:
    """Write ``samples.parquet`` from one sequence per column of :data:`SAMPLES_SCHEMA`; return the table."""
    arrays = []
    for field in SAMPLES_SCHEMA:
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        array = pa.array(columns[field.name], plain)
        arrays.append(array.cast(field.type) if plain is not field.type else array)
    table = pa.Table.from_arrays(arrays, schema=SAMPLES_SCHEMA)
    pq.write_table(table, paths.samples, compression="zstd")
    return table


def _refuse_other_schema(table: pa.Table) -> None:
    if not table.schema.equals(SAMPLES_SCHEMA):
        raise RunDirectoryError(f"samples.parquet has the columns {table.schema.to_string()}, not those of a plan")
    holed = [name for name in table.column_names if name not in NULLABLE and table[name].null_count]
    if holed:
        raise RunDirectoryError(f"samples.parquet has empty cells in {', '.join(holed)}")
    if pc.any(pc.and_(pc.is_null(table["id"]), pc.greater_equal(table["shard"], 0))).as_py():
        raise RunDirectoryError("samples.parquet plans a sample without an id")


def plan_id_of(shard_digests: Iterable[str]) -> str:
    """Return the plan's id: xxh3-128 over the digests of its shards, in order, as ASCII."""
    return xxhash.xxh3_128_hexdigest("".join(shard_digests).encode())


class Plan:
    """What is to be done, read from a run directory. Tokens stay on disk and are mapped.

    Attributes:
        table: ``samples.parquet``, one row per input row.
        shards: number of shards.
    """

    def __init__(self, paths: RunPaths, table: pa.Table | None = None) -> None:
        try:
            self.table = pq.read_table(paths.samples) if table is None else table
            size = paths.tokens.stat().st_size
            self._tokens: npt.NDArray[np.uint8] = (
                np.memmap(paths.tokens, np.uint8, mode="r") if size else np.empty(0, np.uint8)
            )
        except (OSError, pa.ArrowException) as error:
            raise RunDirectoryError(f"the plan in {paths.plan} cannot be read: {error}") from error
        _refuse_other_schema(self.table)
        self._ids = self.table["id"].combine_chunks()  # taking a few of a million from chunks takes 3 ms, not 0.02
        self._shard_of_row = self.table["shard"].to_numpy()
        planned = np.flatnonzero(self._shard_of_row >= 0)
        place = self.table["place"].to_numpy()
        order = np.lexsort((place[planned], self._shard_of_row[planned]))
        self._rows: npt.NDArray[np.int64] = planned[order]  # rows of the table, by shard and place
        self.shards = int(self._shard_of_row.max(initial=-1)) + 1
        if self.shards > self._rows.size:
            raise RunDirectoryError(
                f"{paths.samples} names shard {self.shards - 1}, but plans {self._rows.size} samples"
            )
        self._starts = np.searchsorted(self._shard_of_row[self._rows], np.arange(self.shards + 1))
        self._token_counts = self.table["tokens"].to_numpy().astype(np.int64)
        self._offsets = self.table["offset"].to_numpy()
        self._has_mask = self.table["has_mask"].to_numpy(zero_copy_only=False)
        if not np.array_equal(
            place[self._rows], np.arange(planned.size) - self._starts[self._shard_of_row[self._rows]]
        ):
            raise RunDirectoryError(f"{paths.samples}: the places in a shard are not 0, 1, 2, ...")
        if min(self._offsets[planned].min(initial=0), self._token_counts[planned].min(initial=1) - 1) < 0:
            raise RunDirectoryError(f"{paths.samples}: a planned sample has no tokens, or a negative offset")

    def rows_of(self, shard: int) -> npt.NDArray[np.int64]:
        """Return the table rows of a shard's samples, in the shard's order.

        Raises:
            IndexError: no such shard.
        """
        if not 0 <= shard < self.shards:
            raise IndexError(f"shard {shard} is not planned; shards are 0 to {self.shards - 1}")
        return self._rows[self._starts[shard] : self._starts[shard + 1]]

    def ids_of(self, shard: int) -> tuple[str, ...]:
        """Return the ids of a shard's samples, in order."""
        return tuple(self._ids.take(pa.array(self.rows_of(shard))).to_pylist())

    def token_counts_of(self, shard: int) -> npt.NDArray[np.int64]:
        """Return the tokens of each of a shard's samples, in order."""
        counts: npt.NDArray[np.int64] = self._token_counts[self.rows_of(shard)]
        return counts

    def samples_of(self, shard: int) -> PackedSamples:
        """Read a shard's ids, tokens and masks.

        Raises:
            RunDirectoryError: ``tokens.bin`` is shorter than the table says.
        """
        tokens: list[npt.NDArray[np.int32]] = []
        masks: list[npt.NDArray[np.uint8]] = []
        rows = self.rows_of(shard)
        for row in rows:
            begin, count = int(self._offsets[row]), int(self._token_counts[row])
            end = begin + count * 4 + (count if self._has_mask[row] else 0)
            if end > self._tokens.size:
                raise RunDirectoryError(f"tokens.bin ends at byte {self._tokens.size}; shard {shard} needs byte {end}")
            tokens.append(self._tokens[begin : begin + count * 4].view("<i4"))
            masks.append(self._tokens[begin + count * 4 : end])
        counts = self._token_counts[rows]
        return PackedSamples(
            ids=self.ids_of(shard),
            token_counts=counts,
            tokens=np.concatenate(tokens) if tokens else np.empty(0, np.int32),
            mask_counts=np.where(self._has_mask[rows], counts, 0).astype(np.int64),
            masks=np.concatenate(masks) if masks else np.empty(0, np.uint8),
        )

    def digests(self) -> Iterator[str]:
        """Yield each shard's digest, in order; reads every token."""
        for shard in range(self.shards):
            yield self.samples_of(shard).digest()

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Each planned id's shard and place in it, in the plan's order."""
        ids = self._ids.take(pa.array(self._rows)).to_pylist()
        shards = self._shard_of_row[self._rows]
        places = self.table["place"].to_numpy()[self._rows]
        return {sample_id: (int(s), int(p)) for sample_id, s, p in zip(ids, shards, places, strict=True)}
