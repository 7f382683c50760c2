"""Verifying the plan against the run's identity, and the ledger against the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from hiddenstream.contracts.commit import CommitLine
from hiddenstream.contracts.errors import HiddenstreamError, WireError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import MERGED, PLANNED, REJECTED, Plan, plan_id_of
from hiddenstream.verify.findings import Finding


def check_plan(plan: Plan, record: RunRecord) -> Iterator[Finding]:
    """Check the table's counts and ids, and every planned token, against ``run.json``."""
    yield from _check_counts(plan.table, plan.shards, record)
    planned = plan.table.filter(pc.greater_equal(plan.table["shard"], 0))
    if len(plan.places) != planned.num_rows:
        for sample_id, count in Counter(planned["id"].to_pylist()).items():
            if count > 1:
                message = f"planned {count} times"
                yield Finding(kind="id_repeated", message=message, shard=plan.places[sample_id][0], sample_id=sample_id)
    digests = []
    for shard in range(plan.shards):
        try:
            digests.append(plan.samples_of(shard).digest())
        except HiddenstreamError as error:
            yield Finding(kind="plan_altered", message=str(error), shard=shard)
    if plan_id_of(digests) != record.identity.plan_id:
        message = f"samples.parquet and tokens.bin give plan {plan_id_of(digests)}, run.json {record.identity.plan_id}"
        yield Finding(kind="plan_altered", message=message)


def _check_counts(table: pa.Table, shards: int, record: RunRecord) -> Iterator[Finding]:
    statuses = Counter(table["status"].to_pylist())
    reasons = Counter(table.filter(pc.equal(table["status"], REJECTED))["reason"].to_pylist())
    is_planned = pc.greater_equal(table["shard"], 0)
    counts = {
        "planned samples": (statuses[PLANNED], record.samples),
        "samples in shards": (pc.sum(is_planned).as_py() or 0, record.samples),
        "tokens": (pc.sum(table.filter(is_planned)["tokens"]).as_py() or 0, record.tokens),
        "rejected rows": (dict(reasons), {reason: n for reason, n in record.rejected.items() if n}),
        "merged rows": (statuses[MERGED], record.merged),
        "rows": (table.num_rows, record.input_rows),
        "shards": (shards, record.shards),
    }
    for what, (in_table, in_record) in counts.items():
        if in_table != in_record:
            yield Finding(kind="counts_differ", message=f"{what}: samples.parquet has {in_table}, run.json {in_record}")


def check_ledger(paths: RunPaths, ledger: LedgerReader, plan: Plan) -> Iterator[Finding]:
    """Check every ledger line: readable, of a planned shard, and naming the same bytes as its shard's newest."""
    for problem in ledger.problems:
        yield Finding(kind="ledger_line", message=f"ledger/{problem.file}, line {problem.line}: {problem.message}")
    for shard in sorted(ledger.commits):
        if shard >= plan.shards:
            yield Finding(kind="unknown_shard", message=f"{plan.shards} shards are planned", shard=shard)
    for file in sorted(paths.ledger.glob("*.jsonl")):
        yield from _check_ledger_file(file, ledger)


def _check_ledger_file(file: Path, ledger: LedgerReader) -> Iterator[Finding]:
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                message = f"ledger/{file.name}, line {number} ends without a newline: {line[:80]!r}"
                yield Finding(kind="unfinished_line", message=message)
                continue
            try:
                commit = CommitLine.from_line(line)
            except WireError:
                continue  # among the reader's problems
            newest = ledger.commits.get(commit.shard, commit)
            if (newest.xxh3, newest.header_xxh3) != (commit.xxh3, commit.header_xxh3):
                message = f"ledger/{file.name}, line {number} says xxh3 {commit.xxh3}, the newest line {newest.xxh3}"
                yield Finding(kind="committed_twice", message=message, shard=commit.shard)
