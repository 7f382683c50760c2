"""A stored shard's file, mapped into memory and held against the plan and the ledger."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import xxhash

from hiddenstream.contracts.commit import CommitLine
from hiddenstream.contracts.errors import RunDirectoryError, WireError
from hiddenstream.contracts.run import FORMAT_VERSION, RunRecord
from hiddenstream.contracts.shard import ShardLayout, ShardMetadata, decode_header, header_length, shard_layout

NUMPY_DTYPES = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int64": np.dtype("<i8"),
    "int32": np.dtype("<i4"),
    "uint8": np.dtype("u1"),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MappedShard:
    """A shard's arrays, read-only views of its file. n samples, T tokens, M mask values, k taps, H hidden size.

    Attributes:
        sample_ids: the stored samples, in order.
        sample_rows: int64 [n, 2], first row and rows of each sample.
        mask_offsets: int64 [n + 1].
        input_ids: int32 [T].
        hidden_states: [T, k, H].
        loss_mask: uint8 [M].
    """

    sample_ids: tuple[str, ...]
    sample_rows: npt.NDArray[np.int64]
    mask_offsets: npt.NDArray[np.int64]
    input_ids: npt.NDArray[np.int32]
    hidden_states: npt.NDArray[Any]
    loss_mask: npt.NDArray[np.uint8]


def map_shard(file: Path, *, record: RunRecord, commit: CommitLine, planned_ids: Sequence[str]) -> MappedShard:
    """Map a committed shard; reads its header and the rows' index, no states.

    Raises:
        RunDirectoryError: the file is absent or of another size, or its header is not the one that was
            committed, or does not fit the plan; names the shard.
    """
    try:
        content = map_file(file)
        if len(content) != commit.file_bytes:
            raise WireError(f"the file has {len(content)} bytes, {commit.file_bytes} were committed")
        start = header_length(bytes(content[:8]))
        header = bytes(content[:start])
        if xxhash.xxh3_128_hexdigest(header) != commit.header_xxh3:
            raise WireError("its header is not the one that was committed")
        layout, metadata = decode_header(header)
        misfits = header_misfits(layout, metadata, record=record, shard=commit.shard)
        misfits += sample_misfits(metadata, commit=commit, planned_ids=planned_ids)
        if start + layout.tensor_bytes != len(content):
            misfits.append(f"its tensors take {layout.tensor_bytes} bytes, the file holds {len(content) - start}")
        if misfits:
            raise WireError("; ".join(misfits))
        shard = MappedShard(sample_ids=metadata.sample_ids, **views_of(content[start:], layout))
        if rows_misfit(shard.sample_rows, shard.mask_offsets, layout):
            raise WireError("its sample_rows or mask_offsets do not cover it without gap or overlap")
    except (OSError, ValueError, WireError) as error:
        raise RunDirectoryError(f"shard {commit.shard} ({file}): {error}; run `hiddenstream verify`") from error
    return shard


def map_file(file: Path) -> memoryview:
    """Map a file for reading. Raises OSError, or ValueError where it is empty."""
    with open(file, "rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


def views_of(tensors: memoryview, layout: ShardLayout) -> dict[str, npt.NDArray[Any]]:
    """Return a view of each tensor of a shard, given all tensor bytes."""
    return {
        name: np.frombuffer(tensors[place.begin : place.end], NUMPY_DTYPES[place.dtype]).reshape(place.shape)
        for name, place in layout.tensors.items()
    }


def header_misfits(layout: ShardLayout, metadata: ShardMetadata, *, record: RunRecord, shard: int) -> list[str]:
    """Return a line for everything in which a header disagrees with the run and with itself."""
    identity = record.identity
    told = {
        "format_version": (metadata.format_version, FORMAT_VERSION),
        "run": (metadata.run, record.run),
        "fingerprint": (metadata.fingerprint, identity.fingerprint),
        "plan_id": (metadata.plan_id, identity.plan_id),
        "shard": (metadata.shard, shard),
        "taps": (metadata.taps, identity.taps),
    }
    misfits = [f"{name} is {is_!r}, not {planned!r}" for name, (is_, planned) in told.items() if is_ != planned]
    shapes = {name: place.shape for name, place in layout.tensors.items()}
    if len(shapes["input_ids"]) != 1 or len(shapes["loss_mask"]) != 1:
        return [*misfits, f"input_ids {shapes['input_ids']} and loss_mask {shapes['loss_mask']} must have one axis"]
    expected = shard_layout(
        samples=len(metadata.sample_ids),
        tokens=shapes["input_ids"][0],
        mask_values=shapes["loss_mask"][0],
        states=(len(identity.taps), identity.hidden_size, identity.stored_dtype),
    )
    for name, place in expected.tensors.items():
        if layout.tensors[name] != place:
            misfits.append(f"{name} is {layout.tensors[name]}, not {place}")
    return misfits


def sample_misfits(metadata: ShardMetadata, *, commit: CommitLine, planned_ids: Sequence[str]) -> list[str]:
    """Return a line for everything in which a header's samples disagree with the plan and the ledger."""
    misfits = []
    left_out = {entry.id for entry in metadata.quarantined}
    if tuple(sample_id for sample_id in planned_ids if sample_id not in left_out) != metadata.sample_ids:
        misfits.append("its samples are not those that are planned, in their order, less the quarantined ones")
    if len(left_out) != len(metadata.quarantined) or not left_out.issubset(planned_ids):
        misfits.append("it quarantines a sample twice, or one that is not planned in it")
    if metadata.quarantined != commit.quarantined:
        misfits.append("its quarantined samples are not those of the ledger")
    if metadata.xxh3 != commit.xxh3:
        misfits.append(f"its header says xxh3 {metadata.xxh3}, the ledger {commit.xxh3}")
    if len(metadata.sample_ids) != commit.samples:
        misfits.append(f"it stores {len(metadata.sample_ids)} samples, the ledger says {commit.samples}")
    return misfits


def rows_misfit(rows: npt.NDArray[np.int64], mask_offsets: npt.NDArray[np.int64], layout: ShardLayout) -> bool:
    """Whether samples' rows or masks leave a gap, overlap, or do not end where the tensors do."""
    tokens, mask_values = layout.tensors["input_ids"].shape[0], layout.tensors["loss_mask"].shape[0]
    counts, masks = rows[:, 1], np.diff(mask_offsets)
    return not (
        np.all((counts > 0) & (counts <= tokens))
        and np.array_equal(rows[:, 0], np.cumsum(counts) - counts)
        and int(counts.sum()) == tokens
        and mask_offsets[0] == 0
        and mask_offsets[-1] == mask_values
        and np.all((masks == 0) | (masks == counts))
    )
