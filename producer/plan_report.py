"""The figures of a plan, for people and for programs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hiddenstream.contracts.run import RunRecord
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import PLANNED, REJECTED

_MAX_EXAMPLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionExample:
    """One rejected row."""

    source: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """What ``hiddenstream plan`` tells; names as in :class:`hiddenstream.contracts.run.RunRecord`."""

    run: str
    fingerprint: str
    taps: tuple[str, ...]
    input_rows: int
    samples: int
    tokens: int
    shards: int
    state_bytes: int
    padding_share: float
    longest_sample_tokens: int
    truncated: int
    without_mask: int
    merged: int
    rejected: Mapping[str, int]
    rejection_examples: tuple[RejectionExample, ...]
    free_bytes: int
    planning_seconds: float

    def to_wire(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the report as a table for people."""
        rejected = sum(self.rejected.values())
        table = [
            ("run", f"{self.run} ({self.fingerprint})"),
            ("layers", ", ".join(self.taps)),
            ("input rows", f"{self.input_rows:,}"),
            ("samples", f"{self.samples:,}"),
            ("tokens", f"{self.tokens:,}"),
            ("longest sample", f"{self.longest_sample_tokens:,} tokens"),
            ("shards", f"{self.shards:,}"),
            ("padding", f"{self.padding_share:.2%} of all token slots"),
            ("states", f"{self.state_bytes / 1e9:,.3f} GB"),
            ("free on disk", f"{self.free_bytes / 1e9:,.3f} GB"),
            ("truncated", f"{self.truncated:,}"),
            ("without mask", f"{self.without_mask:,}"),
            ("merged", f"{self.merged:,} repeated rows"),
            ("rejected", f"{rejected:,}"),
            *((f"  {reason}", f"{rows:,}") for reason, rows in sorted(self.rejected.items())),
            ("planned in", f"{self.planning_seconds:,.1f} s"),
        ]
        examples = [f"  {e.source}: {e.reason}: {e.detail}" for e in self.rejection_examples]
        return [f"{name:<20} {value}" for name, value in table] + (
            ["rejected, for example:", *examples] * bool(examples)
        )


def _examples(rejected: pa.Table) -> list[dict[str, Any]]:
    """Return the first row of each reason, as far as examples go."""
    reasons = rejected["reason"].cast(pa.string()).to_pylist()
    first_rows = sorted({reason: row for row, reason in reversed(list(enumerate(reasons)))}.values())
    examples: list[dict[str, Any]] = rejected.take(pa.array(first_rows[:_MAX_EXAMPLES], pa.int64())).to_pylist()
    return examples


def report_plan(paths: RunPaths, record: RunRecord) -> PlanReport:
    """Gather the figures of the plan in *paths*."""
    table = pq.read_table(paths.samples, columns=["status", "tokens", "source", "reason", "detail"])
    status = table["status"].cast(pa.string())
    rejected = _examples(table.filter(pc.equal(status, REJECTED)))
    planned = table["tokens"].filter(pc.equal(status, PLANNED))
    return PlanReport(
        run=record.run,
        fingerprint=record.identity.fingerprint,
        taps=record.identity.taps,
        input_rows=record.input_rows,
        samples=record.samples,
        tokens=record.tokens,
        shards=record.shards,
        state_bytes=record.tokens * record.identity.bytes_per_token,
        padding_share=1 - record.tokens / record.token_slots,
        longest_sample_tokens=pc.max(planned).as_py(),
        truncated=record.truncated,
        without_mask=record.without_mask,
        merged=record.merged,
        rejected=record.rejected,
        rejection_examples=tuple(
            RejectionExample(source=row["source"], reason=row["reason"], detail=row["detail"]) for row in rejected
        ),
        free_bytes=shutil.disk_usage(paths.root).free,
        planning_seconds=record.planning_seconds,
    )
