"""``hiddenstream plan RUN_DIR``: plan a run, or say what a plan would be."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hiddenstream.chassis.logs import start_logging
from hiddenstream.chassis.settings import from_process, is_on, setting
from hiddenstream.run_directory.paths import RunPaths, producer_lock
from producer.plan import make_plan
from producer.plan_report import PlanReport, report_plan
from producer.resume import ensure_plan, plan_request
from producer.settings import PlanFlags


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCommandFlags(PlanFlags):
    """Plan a run: read the data once, and write which sample goes into which shard. Needs no GPU and no Redis."""

    json: bool = setting(False, means="print the figures as JSON", parse=is_on)
    dry_run: bool = setting(False, means="say what the plan would be, and keep nothing", parse=is_on)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code. Raises HiddenstreamError."""
    flags = from_process(PlanCommandFlags, command="hiddenstream plan", arguments=arguments)
    start_logging("producer", stream=sys.stderr)  # standard output is the report's
    report = _planned_and_deleted(flags) if flags.dry_run else _planned(flags)
    if flags.json:
        print(json.dumps(report.to_wire(), indent=2))
    else:
        print("\n".join(report.lines()))
    return 0


def _planned(flags: PlanFlags) -> PlanReport:
    paths = RunPaths(flags.run_directory)
    with producer_lock(paths):
        record = ensure_plan(flags)
        return report_plan(paths, record)


def _planned_and_deleted(flags: PlanFlags) -> PlanReport:
    request = plan_request(flags)
    beside = next(folder for folder in flags.run_directory.absolute().parents if folder.is_dir())
    with tempfile.TemporaryDirectory(prefix=".hiddenstream-dry-run-", dir=beside) as folder:
        record = make_plan(replace(request, run_directory=Path(folder)))
        return report_plan(RunPaths(Path(folder)), record)
