"""What failed, by reason: rejected rows from the plan, stuck shards from the producer."""

from __future__ import annotations

from collections.abc import Mapping, Set

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hiddenstream.contracts.errors import RunDirectoryError
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import REJECTED
from hiddenstream.status_page.parts import Example, FailureGroup
from hiddenstream.status_page.totals import MOST_EXAMPLES

_COLUMNS = ["id", "source_row", "source", "reason", "detail"]


def rejected_groups(paths: RunPaths, rejected: Mapping[str, int]) -> tuple[FailureGroup, ...]:
    """Return the rejected rows by reason, with the first few of each. Reads the plan's table, so call it once.

    Args:
        rejected: rows by reason, of the run's record.

    Raises:
        RunDirectoryError: the table cannot be read.
    """
    if not rejected:
        return ()
    try:
        table = pq.read_table(paths.samples, columns=_COLUMNS, filters=pc.field("status") == REJECTED)
    except (OSError, pa.ArrowException) as error:
        raise RunDirectoryError(f"{paths.samples} cannot be read: {error}") from error
    return tuple(
        FailureGroup(kind="rejected", reason=reason, count=count, examples=_examples(table, reason))
        for reason, count in sorted(rejected.items())
    )


def _examples(table: pa.Table, reason: str) -> tuple[Example, ...]:
    rows = table.filter(pc.equal(table["reason"].cast(pa.string()), reason)).slice(0, MOST_EXAMPLES).to_pylist()
    return tuple(
        Example(name=row["id"] or row["source"], row=row["source_row"], detail=(row["detail"] or "")[:300])
        for row in rows
    )


def stuck_group(shards: Set[int], most_failures: int) -> tuple[FailureGroup, ...]:
    """Return the shards that were given up on after *most_failures* failed deliveries each."""
    if not shards:
        return ()
    examples = tuple(Example(name=f"shard {shard}") for shard in sorted(shards)[:MOST_EXAMPLES])
    reason = f"{most_failures} deliveries failed"
    return (FailureGroup(kind="stuck", reason=reason, count=len(shards), examples=examples),)
