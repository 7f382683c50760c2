"""Damaging a shard's file at a known place, and what verifying finds."""

from __future__ import annotations

from pathlib import Path

from hiddenstream.contracts.shard import decode_header, header_length
from hiddenstream.verify.verify import verify_run
from tests.factories import a_run, store_shard


def a_complete_run(root: Path):
    """A complete run of three shards with five samples."""
    paths = a_run(root, ((3, 1), (2,), (5, 4)))
    for shard in range(3):
        store_shard(paths, shard)
    return paths


def found(paths):
    """Return (kind, shard, sample) of every finding."""
    return {(finding.kind, finding.shard, finding.sample_id) for finding in verify_run(paths).findings}


def tensor_begin(paths, shard: int, name: str) -> int:
    data = paths.shard(shard).read_bytes()
    start = header_length(data)
    return start + decode_header(data[:start])[0].tensors[name].begin


def overwrite(file: Path, offset: int, data: bytes) -> None:
    with open(file, "r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def flip(file: Path, offset: int) -> None:
    overwrite(file, offset, bytes([file.read_bytes()[offset] ^ 1]))
