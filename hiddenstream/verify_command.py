"""``hiddenstream verify``: check a run directory to the last byte, and recompute some samples if asked."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, cast

from hiddenstream.chassis.settings import from_process, is_on, setting, whole_number
from hiddenstream.contracts.errors import UsageError
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.status_command import progress_lines
from hiddenstream.verify.findings import VerifyReport
from hiddenstream.verify.verify import verify_run

LISTED_SAMPLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """Check a run directory. Exits with 0 all good, 3 good with quarantined samples, 4 not complete, 1 damaged."""

    run_directory: Path = setting(means="the run directory", parse=Path, is_argument=True)
    json: bool = setting(False, means="print JSON, one object", parse=is_on)
    recompute: int = setting(
        0,
        means="stored samples to run through the model again and compare, a count; 100 shows a wrong model or batching",
        parse=whole_number(least=0),
    )
    model: str | None = setting(None, means="where the model is, for --recompute; the run's own if not given")
    seed: int = setting(0, means="which samples --recompute draws, any whole number", parse=whole_number(least=0))


class RecomputeReport(Protocol):
    """What ``gpu_worker.recompute`` answers."""

    @property
    def is_within(self) -> bool:
        """Whether every recomputed state is as near as the tolerance asks."""

    def summary(self) -> str:
        """Return the report in words."""


def main(arguments: Sequence[str]) -> int:
    """Verify a run directory and print what was found; return the exit code."""
    settings = from_process(VerifySettings, command="hiddenstream verify", arguments=arguments)
    report = verify_run(RunPaths(settings.run_directory))
    recomputed = recompute(settings) if settings.recompute and not report.damage else None
    if settings.json:
        print(json.dumps(as_json(report, recomputed), indent=2))
    else:
        print("\n".join(report_lines(report)))
        if recomputed is not None:
            print(recomputed.summary())
        elif settings.recompute:
            print("nothing was recomputed: the run is damaged")
    return 1 if recomputed is not None and not recomputed.is_within else report.exit_code


def recompute(settings: VerifySettings) -> RecomputeReport:
    """Run some stored samples through the model again; loads torch.

    Raises:
        UsageError: this machine has no worker installed.
    """
    try:
        worker = importlib.import_module("gpu_worker.recompute")
    except ImportError as error:
        raise UsageError(f"--recompute needs the worker: pip install 'hiddenstream[worker]' ({error})") from error
    sys.stderr.write(f"recomputing {settings.recompute} samples with plain transformers\n")
    report = worker.recompute_samples(
        run_directory=settings.run_directory, count=settings.recompute, model=settings.model, seed=settings.seed
    )
    return cast(RecomputeReport, report)


def as_json(report: VerifyReport, recomputed: RecomputeReport | None) -> dict[str, object]:
    """Return the report as plain data."""
    return {
        "is_good": not report.damage,
        "is_complete": report.progress is not None and report.progress.is_complete,
        "findings": [{**asdict(finding), "is_damage": finding.is_damage} for finding in report.findings],
        "to_do": list(report.to_do),
        "progress": None if report.progress is None else asdict(report.progress),
        "read_bytes": report.read_bytes,
        "seconds": round(report.seconds, 3),
        "recomputed": None
        if recomputed is None
        else {"is_within": recomputed.is_within, "summary": recomputed.summary()},
    }


def report_lines(report: VerifyReport) -> Iterator[str]:
    """Yield the lines that tell people what was found."""
    for finding in report.findings:
        yield f"{'DAMAGE' if finding.is_damage else 'note'} {finding}"
    if report.progress is not None:
        yield from progress_lines(report.progress)
    if report.to_do:
        more = f" and {len(report.to_do) - LISTED_SAMPLES:,} more" if len(report.to_do) > LISTED_SAMPLES else ""
        yield f"missing    {', '.join(map(repr, report.to_do[:LISTED_SAMPLES]))}{more}"
    verdict = f"{len(report.damage)} places are damaged" if report.damage else "every byte is as committed"
    yield f"verified   {report.read_bytes / 1e9:.2f} GB in {report.seconds:.1f} s: {verdict}"
