"""Whether a file holds what its header and the plan say."""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.shard import header_length, sample_tensors
from sink.admission import AdmittedShard, PlannedShard, admit_header
from sink.refusals import ShardRefused

_READ_BYTES = 1 << 20


def verify_file(file: Path, planned: PlannedShard) -> AdmittedShard:
    """Read a shard's file and check all of it against the plan and its own checksum.

    Raises:
        ShardRefused: it is damaged, or another shard's.
        FileNotFoundError: there is none.
    """
    with open(file, "rb", buffering=0) as raw:
        descriptor = raw.fileno()
        file_bytes = os.fstat(descriptor).st_size
        try:
            header = os.pread(descriptor, header_length(os.pread(descriptor, 8, 0)), 0)
        except WireError as error:
            raise ShardRefused("malformed", str(error)) from error
        admitted = admit_header(header, planned, file_bytes=file_bytes)
        check_tensors(descriptor, admitted, xxh3=xxh3_from(descriptor, admitted.header_bytes))
    return admitted


def check_tensors(descriptor: int, admitted: AdmittedShard, *, xxh3: str) -> None:
    """Check an open file's tensors.

    Args:
        xxh3: xxh3-128 of all tensor bytes as they were received or read.

    Raises:
        ShardRefused: the checksum is another, or a tensor that the plan determines has other bytes.
    """
    if xxh3 != admitted.metadata.xxh3:
        raise ShardRefused("wrong_hash", f"tensor bytes have xxh3 {xxh3}, the header says {admitted.metadata.xxh3:.64}")
    for name, expected in sample_tensors(admitted.stored).items():
        place = admitted.layout.tensors[name]
        if os.pread(descriptor, len(expected), admitted.header_bytes + place.begin) != expected:
            raise ShardRefused("wrong_samples", f"{name} differs from the plan's")


def xxh3_from(descriptor: int, offset: int) -> str:
    """Return the xxh3-128 of an open file's bytes from *offset* on."""
    state = xxhash.xxh3_128()
    while chunk := os.pread(descriptor, _READ_BYTES, offset):
        state.update(chunk)
        offset += len(chunk)
    return state.hexdigest()
