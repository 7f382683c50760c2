"""How fast planning is: python -m bench.planning [ROWS]. Prints rows/s and tokens/s of each part."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hiddenstream.model_reference import ModelReference
from producer.dataset import read_rows
from producer.plan import make_plan
from producer.plan_request import PlanRequest
from producer.planner import plan_shards

BYTES_PER_TOKEN, LIMITS = 51_200, {"token_budget": 12_288, "shard_bytes": 2**30}
MODEL = ModelReference(
    name="none",
    revision=None,
    digest="xxh3:0",
    num_blocks=64,
    hidden_size=16,  # small, so that the check of the disk passes anywhere
    vocabulary_rows=151_936,
    max_positions=None,
)


@contextmanager
def timed(what: str, *, rows: int, tokens: int) -> Iterator[None]:
    started = time.perf_counter()
    yield
    took = time.perf_counter() - started
    print(f"{what:<28} {took:7.2f} s {rows / took:12,.0f} rows/s {tokens / took / 1e6:8.2f} million tokens/s")


def some_lengths(rows: int) -> np.ndarray:
    return np.random.default_rng(0).lognormal(5, 1, rows).clip(1, 4096).astype(np.int64)


def write_data(folder: Path, lengths: np.ndarray) -> tuple[Path, Path]:
    ids = np.random.default_rng(1).integers(0, 150_000, int(lengths.max()) + 1000)
    rows = [{"id": str(i), "input_ids": ids[i % 1000 : i % 1000 + n]} for i, n in enumerate(lengths)]
    with open(folder / "x.jsonl", "w") as file:
        file.writelines(json.dumps({**row, "input_ids": row["input_ids"].tolist()}) + "\n" for row in rows)
    pq.write_table(pa.Table.from_pylist(rows), folder / "x.parquet")
    return folder / "x.jsonl", folder / "x.parquet"


def main() -> None:
    lengths = some_lengths(int([*sys.argv, "200000"][1]))
    size = {"rows": len(lengths), "tokens": int(lengths.sum())}
    with tempfile.TemporaryDirectory() as folder:
        for file in write_data(Path(folder), lengths):
            with timed(f"read {file.suffix}", **size):
                deque(read_rows([file]), maxlen=0)
            request = PlanRequest(
                run_directory=Path(folder) / f"run{file.suffix}", run_name="bench", model=MODEL, taps=("block.1",),
                keeps_final=False, compute_dtype="bfloat16", stored_dtype="bfloat16", data=(file,), max_length=None,
                over_long="reject", is_strict=False, **LIMITS,
            )  # fmt: skip
            with timed(f"whole plan of {file.suffix}", **size):
                make_plan(request)
    for count in (len(lengths), 1_000_000):
        many = some_lengths(count)
        with timed(f"planner, {count:,} samples", rows=count, tokens=int(many.sum())):
            plan = plan_shards(many, bytes_per_token=BYTES_PER_TOKEN, **LIMITS)
        print(f"  {plan.shards:,} shards, {plan.batches:,} batches, {1 - many.sum() / plan.token_slots:.2%} padding")


if __name__ == "__main__":
    main()
