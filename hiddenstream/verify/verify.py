"""Verify a run directory: the main path."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hiddenstream.contracts.errors import RunDirectoryError
from hiddenstream.contracts.sink_api import RUN_FILES
from hiddenstream.progress import Progress, progress_of
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import Plan
from hiddenstream.verify.findings import Finding, VerifyReport
from hiddenstream.verify.plan_and_ledger import check_ledger, check_plan
from hiddenstream.verify.run_files import check_run_file
from hiddenstream.verify.shards import check_shard

FILES_AT_ONCE = 4


def verify_run(paths: RunPaths) -> VerifyReport:
    """Check everything in a run directory but the values of the states: reads every byte once.

    Safe while the run goes on: what commits after the ledger was read is not looked at.

    Raises:
        RunDirectoryError: there is no run, or its record or plan cannot be read at all.
    """
    began = time.monotonic()
    record, plan, ledger = paths.read_record(), Plan(paths), LedgerReader(paths.ledger)
    stored = _files_under(paths.shards)  # before the ledger, so a shard that commits meanwhile is not foreign
    ledger.poll()
    findings = [*check_plan(plan, record), *check_ledger(paths, ledger, plan)]
    committed = [ledger.commits[shard] for shard in sorted(ledger.commits) if shard < plan.shards]
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        checks = list(pool.map(lambda commit: check_shard(paths, record, plan, commit), committed))
    checks += [check_run_file(paths, record, name, is_due=bool(committed)) for name in RUN_FILES]
    findings += [finding for check in checks for finding in check.findings]
    foreign = set(stored) - {paths.shard(commit.shard) for commit in committed}
    findings += [Finding(kind="foreign_file", message=f"{file}: no commit names it") for file in sorted(foreign)]
    findings += [
        Finding(kind="leftover", message=f"{file}: on its way in, or left by a sink that died")
        for file in _files_under(paths.incoming)
        if file.name != "lock"
    ]
    progress: Progress | None = None
    try:
        progress = progress_of(record, committed)
    except RunDirectoryError as error:
        findings.append(Finding(kind="counts_differ", message=str(error)))
    return VerifyReport(
        findings=tuple(findings),
        progress=progress,
        to_do=tuple(i for shard in range(plan.shards) if shard not in ledger.commits for i in plan.ids_of(shard)),
        read_bytes=sum(check.read_bytes for check in checks),
        seconds=time.monotonic() - began,
    )


def _files_under(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if not file.is_dir())
