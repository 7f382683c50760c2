"""``hiddenstream status``: how far a run is."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hiddenstream.chassis.settings import from_process, is_on, setting
from hiddenstream.contracts.errors import UsageError
from hiddenstream.progress import Progress, read_progress
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.status_page.live import Live
from hiddenstream.status_page.look import RunLook
from hiddenstream.status_page.words import duration

_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSettings:
    """Say how far a run is. Exits with 0 complete, 3 complete with quarantined samples, 4 not complete, 1 damaged."""

    run_directory: Path = setting(means="the run directory", parse=Path, is_argument=True)
    json: bool = setting(False, means="print JSON, one object", parse=is_on)
    watch: bool = setting(
        False,
        means="go on showing it until the run is complete or Ctrl-C comes: drawn in place on a terminal, else one line"
        " a minute",
        parse=is_on,
    )
    url: str | None = setting(
        None, means="the producer's status page, which --watch asks for workers, queue and GPUs; none unless given"
    )


def main(arguments: Sequence[str]) -> int:
    """Print a run's progress; return the exit code."""
    settings = from_process(StatusSettings, command="hiddenstream status", arguments=arguments)
    if settings.watch or settings.url is not None:
        return _watch(settings)
    progress = read_progress(RunPaths(settings.run_directory))
    if settings.json:
        print(json.dumps({**asdict(progress), "is_complete": progress.is_complete}, indent=2))
    else:
        print("\n".join(progress_lines(progress)))
    return progress.exit_code


def _watch(settings: StatusSettings) -> int:
    """Show a run's status until it is complete; return the exit code."""
    if settings.json or not settings.watch:
        raise UsageError("--watch goes without --json" if settings.json else "--url is for --watch")
    paths = RunPaths(settings.run_directory)
    look, live = RunLook(paths, paths.read_record()), Live(sys.stdout, os.environ)
    try:
        status = look.status(settings.url)
        while status.committed.shards < status.planned.shards:
            live.show(status, url=settings.url)
            time.sleep(_LOOK_SECONDS)
            status = look.status(settings.url)
    except KeyboardInterrupt:  # the usual way to end it
        status = look.status()
    live.close(status)
    return read_progress(paths).exit_code


def progress_lines(progress: Progress) -> Iterator[str]:
    """Yield the lines that tell people of a run's progress."""
    p = progress
    share = p.committed_tokens / p.planned_tokens if p.planned_tokens else 1.0
    yield f"run        {p.run}: {'complete' if p.is_complete else f'{share:.1%} of the tokens'}"
    yield (
        f"samples    {p.planned_samples:,} planned = {p.committed_samples:,} committed"
        f" + {p.quarantined_samples:,} quarantined{_reasons(p.quarantined)} + {p.to_do_samples:,} to do"
    )
    yield (
        f"input      {p.input_rows:,} rows = {p.planned_samples:,} planned"
        f" + {sum(p.rejected.values()):,} rejected{_reasons(p.rejected)} + {p.merged:,} merged"
    )
    yield f"tokens     {p.committed_tokens:,} of {p.planned_tokens:,} committed"
    yield f"shards     {p.committed_shards:,} of {p.planned_shards:,} committed, {p.committed_bytes / 1e9:.2f} GB"
    if p.tokens_per_second is not None:
        rest = "" if p.eta_seconds is None or p.is_complete else f", {duration(p.eta_seconds)} to go"
        yield f"speed      {p.tokens_per_second:,.0f} tokens/s over the last commits{rest}"
    if p.last_commit_time is not None:
        yield f"last       commit at {p.last_commit_time}"
    if p.unreadable_ledger_lines:
        yield f"ledger     {p.unreadable_ledger_lines:,} lines cannot be read; `hiddenstream verify` names them"
    for worker, samples in sorted(p.committed_samples_by_worker.items()):
        yield f"worker     {worker}: {samples:,} samples"
    stages = (f"{stage.removesuffix('_seconds')} {seconds:,.1f} s" for stage, seconds in asdict(p.stages).items())
    yield f"stages     {', '.join(stages)}"
    for tap, known in p.statistics.items():
        yield f"states     {tap}: RMS {known.rms:.4g}, mean {known.mean:.3g}, largest {known.largest:.4g}"


def _reasons(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{reason} {count:,}' for reason, count in sorted(counts.items()))})" if counts else ""
