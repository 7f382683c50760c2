"""What a plan holds, read back from its files."""

from __future__ import annotations

import pyarrow.parquet as pq

from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import Plan

GOOD = {"id": "good", "input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}


def table_of(paths: RunPaths) -> list[dict]:
    return pq.read_table(paths.samples).to_pylist()


def samples_of(paths: RunPaths) -> dict[str, tuple[list[int], list[int]]]:
    """Return tokens and mask of every planned id, read as a worker would get them."""
    plan, found = Plan(paths), {}
    for shard in range(plan.shards):
        packed = plan.samples_of(shard)
        for i, sample_id in enumerate(packed.ids):
            one = packed.take([i])
            assert sample_id not in found
            found[sample_id] = (one.tokens.tolist(), one.masks.tolist())
    return found
