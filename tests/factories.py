"""Run directories and shard files for tests, written through the same contracts as the real ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from hiddenstream.contracts.commit import CommitLine, Quarantined
from hiddenstream.contracts.run import FORMAT_VERSION, PlanSettings, RunIdentity, RunRecord
from hiddenstream.contracts.run_file import RawTensor, encode_run_file
from hiddenstream.contracts.samples import PackedSamples
from hiddenstream.contracts.shard import ShardMetadata, encode_header, sample_tensors, shard_layout
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import Plan, encode_sample, plan_id_of, write_table

TAPS = ("block.1", "block.2")
HIDDEN_SIZE = 4


def a_run(root: Path, shards: Sequence[Sequence[int]] = ((3, 1), (2,)), *, with_masks: bool = True) -> RunPaths:
    """Write a planned run whose shards have samples of these lengths: ids s0, s1, ..., tokens from a fixed seed."""
    paths = RunPaths(root)
    paths.plan.mkdir(parents=True)
    generator = np.random.default_rng(0)
    records, columns = b"", {name: [] for name in ("shard", "place", "offset", "tokens")}
    for shard, lengths in enumerate(shards):
        for place, length in enumerate(lengths):
            tokens = generator.integers(0, 100, length).astype(np.int32)
            mask = generator.integers(0, 2, length).astype(np.uint8) if with_masks else None
            for name, value in (("shard", shard), ("place", place), ("offset", len(records)), ("tokens", length)):
                columns[name].append(value)
            records += encode_sample(tokens, mask)
    paths.tokens.write_bytes(records)
    n = len(columns["shard"])
    table = write_table(
        paths,
        {
            **columns,
            "id": [f"s{i}" for i in range(n)],
            "source_row": range(n),
            "source": [f"data.jsonl:{i + 1}" for i in range(n)],
            "status": ["planned"] * n,
            "reason": [None] * n,
            "detail": [None] * n,
            "has_mask": [with_masks] * n,
            "is_truncated": [False] * n,
        },
    )
    plan = Plan(paths, table)
    identity = RunIdentity(
        format_version=FORMAT_VERSION,
        model_digest="xxh3:0",
        taps=TAPS,
        hidden_size=HIDDEN_SIZE,
        compute_dtype="float32",
        stored_dtype="float32",
        plan_id=plan_id_of(plan.digests()),
    )
    record = RunRecord(
        run="test",
        identity=identity,
        model="tiny",
        revision=None,
        num_blocks=4,
        keeps_final=False,
        settings=PlanSettings(
            max_length=100, over_long="reject", token_budget=100, shard_bytes=1 << 20, is_strict=False
        ),
        sources=(),
        shards=plan.shards,
        samples=n,
        tokens=sum(columns["tokens"]),
        longest_tokens=max(columns["tokens"], default=0),
        rejected={},
        merged=0,
        truncated=0,
        without_mask=0,
        token_slots=sum(columns["tokens"]),
        planning_seconds=0.1,
        created="2026-01-01T00:00:00.000Z",
    )
    paths.run_json.write_text(record.to_json())
    return paths


def the_states(samples: PackedSamples) -> np.ndarray:
    """Return made-up states that depend on the tokens: float32 [T, taps, hidden]."""
    steps = np.arange(len(TAPS) * HIDDEN_SIZE, dtype=np.float32).reshape(1, len(TAPS), HIDDEN_SIZE)
    return samples.tokens.astype(np.float32).reshape(-1, 1, 1) + steps / 100 + 1


def a_shard(
    paths: RunPaths, shard: int, *, quarantined: Sequence[Quarantined] = (), states: Any = None, **changed: Any
) -> bytes:
    """Return the bytes of a shard file that the run accepts; *changed* replaces fields of its metadata."""
    record = paths.read_record()
    planned = Plan(paths).samples_of(shard)
    left_out = {entry.id for entry in quarantined}
    stored = planned.take([i for i, sample_id in enumerate(planned.ids) if sample_id not in left_out])
    layout = shard_layout(
        samples=len(stored),
        tokens=stored.tokens.size,
        mask_values=stored.masks.size,
        states=(len(TAPS), HIDDEN_SIZE, record.identity.stored_dtype),
    )
    tensors = sample_tensors(stored)
    tensors["hidden_states"] = (the_states(stored) if states is None else states).astype("<f4").tobytes()
    body = b"".join(tensors[name] for name in layout.tensors)
    metadata = ShardMetadata(
        format_version=FORMAT_VERSION,
        run=record.run,
        fingerprint=record.identity.fingerprint,
        plan_id=record.identity.plan_id,
        shard=shard,
        delivery="a1",
        digest=planned.digest(),
        taps=record.identity.taps,
        xxh3=xxhash.xxh3_128_hexdigest(body),
        sample_ids=stored.ids,
        quarantined=tuple(quarantined),
        made_by={"worker": "w1", "way": "padded"},
    )
    return encode_header(layout, replace(metadata, **changed)) + body


def store_shard(paths: RunPaths, shard: int, *, content: bytes | None = None, sink: str = "sink") -> CommitLine:
    """Put a shard and its ledger line into the run directory, as a sink would; return the line."""
    data = a_shard(paths, shard) if content is None else content
    header = 8 + int.from_bytes(data[:8], "little")
    samples = Plan(paths).samples_of(shard)
    file = paths.shard(shard)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    line = CommitLine(
        shard=shard,
        file_bytes=len(data),
        xxh3=xxhash.xxh3_128_hexdigest(data[header:]),
        header_xxh3=xxhash.xxh3_128_hexdigest(data[:header]),
        tokens=samples.tokens.size,
        samples=len(samples),
        quarantined=(),
        delivery="a1",
        made_by={"worker": "w1", "way": "padded"},
        receive_seconds=0.1,
        fsync_seconds=0.1,
        time="2026-01-01T00:00:00.000Z",
    )
    paths.ledger.mkdir(exist_ok=True)
    with open(paths.ledger / f"{sink}.jsonl", "ab") as ledger:
        ledger.write(line.to_line())
    return line


def a_run_file(paths: RunPaths, name: str, *, value: int = 1) -> tuple[bytes | memoryview, ...]:
    """Return a run file that the run accepts, in pieces: one tensor of *value*."""
    tensor = RawTensor(dtype="float32", shape=(2, 3), data=np.full(6, value, "<f4").tobytes())
    return encode_run_file(name, paths.read_record(), {"weight": tensor}, {"made_by": "test"})
