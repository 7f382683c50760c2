"""Changing a made-up run, and committing shards that differ from the plain ones of tests/factories.py."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from hiddenstream.contracts.commit import CommitLine
from hiddenstream.contracts.run import RunIdentity
from hiddenstream.contracts.shard import decode_header, encode_header, header_length, sample_tensors, shard_layout
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import Plan, plan_id_of
from tests.factories import HIDDEN_SIZE, TAPS, a_shard


def with_record(paths: RunPaths, **changed: Any) -> None:
    """Rewrite run.json with *changed* fields of the record or its identity."""
    record = paths.read_record()
    of_identity = {field.name for field in fields(RunIdentity)} & set(changed)
    identity = replace(record.identity, **{name: changed.pop(name) for name in of_identity})
    paths.run_json.write_text(replace(record, identity=identity, **changed).to_json())


def with_column(paths: RunPaths, name: str, values: Sequence[Any], *, keep_plan_id: bool = False) -> None:
    """Rewrite one column of samples.parquet, and the plan's id with it."""
    table = pq.read_table(paths.samples)
    index = table.schema.get_field_index(name)
    pq.write_table(
        table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type)),
        paths.samples,
    )
    if not keep_plan_id:
        with_record(paths, plan_id=plan_id_of(Plan(paths).digests()))


def with_raw_states(paths: RunPaths, shard: int, states: bytes) -> bytes:
    """Return a shard file with these bytes for states, in the run's stored dtype."""
    plain = a_shard(paths, shard)
    _, metadata = decode_header(plain[: header_length(plain)])
    samples = Plan(paths).samples_of(shard)
    layout = shard_layout(
        samples=len(samples),
        tokens=samples.tokens.size,
        mask_values=samples.masks.size,
        states=(len(TAPS), HIDDEN_SIZE, paths.read_record().identity.stored_dtype),
    )
    tensors = {**sample_tensors(samples), "hidden_states": states}
    body = b"".join(tensors[name] for name in layout.tensors)
    return encode_header(layout, replace(metadata, xxh3=xxhash.xxh3_128_hexdigest(body))) + body


def line_of(content: bytes, **changed: Any) -> CommitLine:
    """Return the ledger line of a shard's bytes, with *changed* fields."""
    start = header_length(content)
    layout, metadata = decode_header(content[:start])
    line = CommitLine(
        shard=metadata.shard,
        file_bytes=len(content),
        xxh3=xxhash.xxh3_128_hexdigest(content[start:]),
        header_xxh3=xxhash.xxh3_128_hexdigest(content[:start]),
        tokens=layout.tensors["input_ids"].shape[0],
        samples=len(metadata.sample_ids),
        quarantined=metadata.quarantined,
        delivery=metadata.delivery,
        made_by=metadata.made_by,
        receive_seconds=0.1,
        fsync_seconds=0.1,
        time="2026-01-01T00:00:00.000Z",
    )
    return replace(line, **changed)


def described(means: Mapping[str, float]) -> dict[str, Any]:
    """Return a shard's ``made_by`` with statistics of two values a tap, one below its mean by 1 and one above."""
    return {
        "worker": "w1",
        "statistics": {
            tap: {"count": 2, "mean": mean, "m2": 2.0, "largest": abs(mean) + 1.0} for tap, mean in means.items()
        },
    }


def append_line(paths: RunPaths, line: bytes, *, sink: str = "sink") -> None:
    """Append bytes to a sink's ledger."""
    paths.ledger.mkdir(parents=True, exist_ok=True)
    with open(paths.ledger / f"{sink}.jsonl", "ab") as ledger:
        ledger.write(line)


def commit_shard(paths: RunPaths, content: bytes, *, shard: int = 0, sink: str = "sink", **changed: Any) -> CommitLine:
    """Put a shard's bytes under *shard*'s name and into the ledger; *changed* replaces fields of its line."""
    line = line_of(content, **{"shard": shard, **changed})
    file = paths.shard(shard)
    file.parent.mkdir(parents=True, exist_ok=True)
    incoming = file.with_suffix(".part")
    incoming.write_bytes(content)
    os.replace(incoming, file)
    append_line(paths, line.to_line(), sink=sink)
    return line
