"""Verifying one committed shard: its bytes against the ledger, its content against the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from hiddenstream.contracts.commit import CommitLine
from hiddenstream.contracts.errors import HiddenstreamError, WireError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.samples import PackedSamples
from hiddenstream.contracts.shard import ShardLayout, ShardMetadata, decode_header, header_length
from hiddenstream.mapped_shard import header_misfits, map_file, rows_misfit, sample_misfits, views_of
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import Plan
from hiddenstream.verify.findings import Damage, Finding

READ_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCheck:
    """What one shard's check read and found."""

    read_bytes: int
    findings: tuple[Finding, ...]


def check_shard(paths: RunPaths, record: RunRecord, plan: Plan, commit: CommitLine) -> ShardCheck:
    """Check a committed shard to the last byte; reads its file once, and its small tensors again."""
    file = paths.shard(commit.shard)
    try:
        size = file.stat().st_size
        findings = tuple(_check_file(file, size, record, plan, commit))
    except FileNotFoundError:
        return ShardCheck(read_bytes=0, findings=(_found(commit, "file_missing", f"{file} is not there"),))
    except OSError as error:
        return ShardCheck(read_bytes=0, findings=(_found(commit, "file_missing", f"{file} cannot be read: {error}"),))
    return ShardCheck(read_bytes=size, findings=findings)


def _found(commit: CommitLine, kind: Damage, message: str, sample_id: str | None = None) -> Finding:
    return Finding(kind=kind, message=message, shard=commit.shard, sample_id=sample_id)


def _check_file(file: Path, size: int, record: RunRecord, plan: Plan, commit: CommitLine) -> Iterator[Finding]:
    if size != commit.file_bytes:
        yield _found(commit, "file_size", f"{file} has {size} bytes, {commit.file_bytes} were committed")
    with open(file, "rb", buffering=0) as stream:
        try:
            start = header_length(stream.read(8))
        except WireError as error:
            yield _found(commit, "header_malformed", f"{file}: {error}")
            return
        stream.seek(0)
        header = stream.read(start)
        if xxhash.xxh3_128_hexdigest(header) != commit.header_xxh3:
            yield _found(commit, "header_altered", f"{file}: the header is not the one that was committed")
        digest = _tensor_digest(stream)
    is_altered = digest != commit.xxh3
    if is_altered:
        yield _found(commit, "tensors_altered", f"{file}: the tensors have xxh3 {digest}, {commit.xxh3} was committed")
    try:
        layout, metadata = decode_header(header)
    except WireError as error:
        yield _found(commit, "header_malformed", f"{file}: {error}")
        return
    try:
        planned = plan.samples_of(commit.shard)
    except HiddenstreamError as error:
        yield _found(commit, "plan_altered", str(error))
        return
    misfits = header_misfits(layout, metadata, record=record, shard=commit.shard)
    yield from _check_header(layout, metadata, planned, misfits=misfits, commit=commit)
    if start + layout.tensor_bytes == size and not misfits:
        tensors = views_of(map_file(file)[start:], layout)
        yield from _check_content(tensors, layout, metadata, planned, commit)
        if is_altered:
            yield from _all_zero_samples(tensors, metadata, commit)


def _tensor_digest(stream: FileIO) -> str:
    state = xxhash.xxh3_128()
    view = memoryview(bytearray(READ_BYTES))
    while count := stream.readinto(view):
        state.update(view[:count])
    return state.hexdigest()


def _check_header(
    layout: ShardLayout,
    metadata: ShardMetadata,
    planned: PackedSamples,
    *,
    misfits: Sequence[str],
    commit: CommitLine,
) -> Iterator[Finding]:
    misfits = [*misfits, *sample_misfits(metadata, commit=commit, planned_ids=planned.ids)]
    if metadata.digest != planned.digest():
        misfits.append(f"its digest {metadata.digest} is not the plan's {planned.digest()}")
    if layout.tensors["input_ids"].shape != (commit.tokens,):
        misfits.append(f"input_ids {layout.tensors['input_ids'].shape}, but {commit.tokens} tokens were committed")
    for misfit in misfits:
        yield _found(commit, "header_misfit", misfit)
    times = Counter([*metadata.sample_ids, *(entry.id for entry in metadata.quarantined)])
    for sample_id in planned.ids:
        if times[sample_id] != 1:
            yield _found(commit, "sample_missing", f"stored or quarantined {times[sample_id]} times", sample_id)


def _check_content(
    tensors: dict[str, npt.NDArray[Any]],
    layout: ShardLayout,
    metadata: ShardMetadata,
    planned: PackedSamples,
    commit: CommitLine,
) -> Iterator[Finding]:
    """Compare each stored sample's tokens and mask with the plan's."""
    if rows_misfit(tensors["sample_rows"], tensors["mask_offsets"], layout):
        yield _found(commit, "rows_misfit", "sample_rows or mask_offsets leave a gap, overlap, or end elsewhere")
        return
    place_of = {sample_id: place for place, sample_id in enumerate(planned.ids)}
    token_offsets, mask_offsets = planned.token_offsets, planned.mask_offsets
    for number, sample_id in enumerate(metadata.sample_ids):
        place = place_of.get(sample_id)
        if place is None:
            continue  # a header misfit already
        first, rows = tensors["sample_rows"][number].tolist()
        begin, end = tensors["mask_offsets"][number : number + 2].tolist()
        planned_tokens = planned.tokens[token_offsets[place] : token_offsets[place + 1]]
        if not np.array_equal(tensors["input_ids"][first : first + rows], planned_tokens):
            yield _found(commit, "tokens_differ", "its token ids are not the planned ones", sample_id)
        planned_mask = planned.masks[mask_offsets[place] : mask_offsets[place + 1]]
        if not np.array_equal(tensors["loss_mask"][begin:end], planned_mask):
            yield _found(commit, "mask_differs", "its loss mask is not the planned one", sample_id)


def _all_zero_samples(
    tensors: dict[str, npt.NDArray[Any]], metadata: ShardMetadata, commit: CommitLine
) -> Iterator[Finding]:
    """Name the samples that a hole in an altered file hit: a lost block of a disk reads as zeros."""
    for sample_id, (first, rows) in zip(metadata.sample_ids, tensors["sample_rows"].tolist(), strict=True):
        if first < 0 or rows < 0:
            continue
        states = tensors["hidden_states"][first : first + rows]
        zero_rows = int(np.count_nonzero(~states.view(np.uint8).any(axis=(1, 2))))
        if zero_rows:
            yield _found(commit, "states_all_zero", f"{zero_rows} of its {rows} tokens have states of zero", sample_id)
