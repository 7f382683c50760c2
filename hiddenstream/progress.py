"""How far a run is, told from its run directory alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hiddenstream.contracts.commit import CommitLine
from hiddenstream.contracts.errors import RunDirectoryError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.statistics import TapStatistics, merge_taps, statistics_from_wire
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.paths import RunPaths

RATE_WINDOW_SECONDS = 300
RATE_COMMITS = 16  # commits that the rate is told from where the window holds fewer than two


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Where time went, summed over the committed shards; stages overlap, so this is more than went by.

    Attributes:
        model_load_seconds: the longest load of each worker, summed over workers.
        forward_seconds: forward passes.
        copy_seconds: copies to the host.
        check_seconds: checks of the states and their hash, in the worker.
        receive_seconds: from a shard's first byte to its last, in the sink.
        fsync_seconds: making it durable, in the sink.
    """

    model_load_seconds: float
    forward_seconds: float
    copy_seconds: float
    check_seconds: float
    receive_seconds: float
    fsync_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is planned, stored and still to do: planned = committed + quarantined + to do.

    Attributes:
        run: the run's name.
        input_rows: planned samples + rejected + merged rows.
        rejected: rejected rows by reason.
        merged: rows that repeat another.
        planned_samples, committed_samples, quarantined_samples, to_do_samples: counts of samples.
        planned_tokens, committed_tokens: their tokens; those of quarantined samples are planned, never committed.
        planned_shards, committed_shards: counts of shards.
        committed_bytes: bytes of the committed shards' files.
        quarantined: quarantined samples by reason.
        committed_samples_by_worker: counts by worker's name.
        stages: where time went.
        statistics: of all committed states, by tap.
        tokens_per_second: over the last five minutes of commits, or None before the second commit.
        eta_seconds: time that the rest takes at that rate, or None where there is no rate; 0 when complete.
        last_commit_time: ISO 8601, UTC, or None.
        unreadable_ledger_lines: lines that count for nothing; ``hiddenstream verify`` names them.
    """

    run: str
    input_rows: int
    rejected: Mapping[str, int]
    merged: int
    planned_samples: int
    committed_samples: int
    quarantined_samples: int
    to_do_samples: int
    planned_tokens: int
    committed_tokens: int
    planned_shards: int
    committed_shards: int
    committed_bytes: int
    quarantined: Mapping[str, int]
    committed_samples_by_worker: Mapping[str, int]
    stages: StageSeconds
    statistics: Mapping[str, TapStatistics]
    tokens_per_second: float | None
    eta_seconds: float | None
    last_commit_time: str | None
    unreadable_ledger_lines: int

    @property
    def is_complete(self) -> bool:
        """Whether every planned shard is committed."""
        return self.committed_shards == self.planned_shards

    @property
    def exit_code(self) -> int:
        """What a command that reports this exits with: 0 complete, 3 with quarantined samples, 4 not complete."""
        if not self.is_complete:
            return 4
        return 3 if self.quarantined_samples else 0


def read_progress(paths: RunPaths) -> Progress:
    """Read a run's progress from its record, the number of rows of its plan, and its ledger.

    Raises:
        RunDirectoryError: no run, a damaged one, or counts that do not add up.
    """
    record = paths.read_record()
    ledger = LedgerReader(paths.ledger)
    ledger.poll()
    try:
        rows = pq.read_metadata(paths.samples).num_rows
    except (OSError, pa.ArrowException) as error:
        raise RunDirectoryError(f"{paths.samples} cannot be read: {error}") from error
    if rows != record.input_rows:
        raise RunDirectoryError(
            f"{paths.samples} has {rows} rows, but planned + rejected + merged is {record.input_rows}; this is a bug"
        )
    return progress_of(record, ledger.commits.values(), unreadable_ledger_lines=len(ledger.problems))


def progress_of(record: RunRecord, commits: Iterable[CommitLine], *, unreadable_ledger_lines: int = 0) -> Progress:
    """Count what the commits leave to do of the plan.

    Args:
        record: the run's record.
        commits: one line for each committed shard.

    Raises:
        RunDirectoryError: planned is not committed + quarantined + to do.
    """
    done = sorted(commits, key=_time)
    committed, tokens = sum(commit.samples for commit in done), sum(commit.tokens for commit in done)
    quarantined = Counter(entry.reason for commit in done for entry in commit.quarantined)
    to_do = record.samples - committed - quarantined.total()
    _refuse_impossible(record, done, to_do)
    rate = _tokens_per_second(done)
    by_worker: Counter[str] = Counter()
    for commit in done:
        by_worker[str(commit.made_by.get("worker", "unknown"))] += commit.samples
    parts = (statistics_from_wire(commit.made_by.get("statistics")) for commit in done)
    described: dict[str, TapStatistics] = reduce(merge_taps, parts, {})
    return Progress(
        run=record.run,
        input_rows=record.input_rows,
        rejected=record.rejected,
        merged=record.merged,
        planned_samples=record.samples,
        committed_samples=committed,
        quarantined_samples=quarantined.total(),
        to_do_samples=to_do,
        planned_tokens=record.tokens,
        committed_tokens=tokens,
        planned_shards=record.shards,
        committed_shards=len(done),
        committed_bytes=sum(commit.file_bytes for commit in done),
        quarantined=dict(quarantined),
        committed_samples_by_worker=dict(by_worker),
        stages=_stages(done),
        statistics={tap: described[tap] for tap in record.identity.taps if tap in described},
        tokens_per_second=rate,
        eta_seconds=0.0 if len(done) == record.shards else (record.tokens - tokens) / rate if rate else None,
        last_commit_time=done[-1].time if done else None,
        unreadable_ledger_lines=unreadable_ledger_lines,
    )


def _refuse_impossible(record: RunRecord, commits: Sequence[CommitLine], to_do: int) -> None:
    strange = sorted({commit.shard for commit in commits if commit.shard >= record.shards})
    is_done = len(commits) == record.shards
    if strange or to_do < 0 or (to_do == 0) != is_done or len({commit.shard for commit in commits}) != len(commits):
        raise RunDirectoryError(
            f"{len(commits)} of {record.shards} shards are committed"
            + (f", with shards {strange[:10]} that are not planned" if strange else "")
            + f", and {to_do} of {record.samples} samples are to do; this is a bug"
        )


def _tokens_per_second(commits: Sequence[CommitLine]) -> float | None:
    """Count tokens from the first to the last recent commit; the first one's were made before."""
    if len(commits) < 2:
        return None
    newest = _time(commits[-1])
    recent = [commit for commit in commits if (newest - _time(commit)).total_seconds() <= RATE_WINDOW_SECONDS]
    if len(recent) < 2:
        recent = list(commits[-RATE_COMMITS:])
    elapsed = (newest - _time(recent[0])).total_seconds()
    return sum(commit.tokens for commit in recent[1:]) / elapsed if elapsed > 0 else None


def _stages(commits: Sequence[CommitLine]) -> StageSeconds:
    loads: dict[str, float] = {}
    for commit in commits:
        worker = str(commit.made_by.get("worker", "unknown"))
        loads[worker] = max(loads.get(worker, 0.0), _seconds(commit.made_by, "model_load_seconds"))
    return StageSeconds(
        model_load_seconds=sum(loads.values()),
        forward_seconds=sum(_seconds(commit.made_by, "forward_seconds") for commit in commits),
        copy_seconds=sum(_seconds(commit.made_by, "copy_seconds") for commit in commits),
        check_seconds=sum(_seconds(commit.made_by, "check_seconds") for commit in commits),
        receive_seconds=sum(commit.receive_seconds for commit in commits),
        fsync_seconds=sum(commit.fsync_seconds for commit in commits),
    )


def _seconds(made_by: Mapping[str, Any], stage: str) -> float:
    """What a worker says is evidence, not contract: anything but a time counts as none."""
    value = made_by.get(stage, 0.0)
    return float(value) if type(value) in (int, float) and 0 <= value < math.inf else 0.0


def _time(commit: CommitLine) -> datetime:
    return datetime.fromisoformat(commit.time)
