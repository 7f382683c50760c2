"""What a local run shows a person."""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import replace

from hiddenstream.contracts.run import RunRecord
from hiddenstream.progress import Progress
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.status_page.live import Live
from hiddenstream.status_page.look import RunLook
from producer.plan import ROWS_READ

_REDRAW_SECONDS = 1.0
_STAGES = {
    "forward_seconds": "forward passes",
    "copy_seconds": "copies to the host",
    "check_seconds": "checks",
    "receive_seconds": "sink, receiving",
    "fsync_seconds": "sink, making durable",
}


def say(text: str) -> None:
    """Print a line for the user."""
    print(text, flush=True)  # noqa: T201 - this is the command's output


class PlanningProgress(logging.Handler):
    """Shows how many rows planning has read: a large corpus takes minutes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line for each such event."""
        if record.getMessage() == ROWS_READ:
            facts = getattr(record, "facts", {})
            say(f"  {facts.get('rows', 0):,} rows read")


class Display:
    """Shows how a run goes, on standard error: from its producer's page once that is there, before from its ledger."""

    def __init__(self, look: RunLook) -> None:
        self._look = look
        self._live = Live(sys.stderr, os.environ)
        self._shown_at = -_REDRAW_SECONDS
        self.url: str | None = None

    def update(self) -> None:
        """Draw anew, at most about once a second."""
        if time.monotonic() - self._shown_at >= _REDRAW_SECONDS:
            self._shown_at = time.monotonic()
            status = self._look.status(self.url)
            if self.url is None and not status.state.startswith("complete"):
                status = replace(status, state="waiting_for_workers", message="The services are starting.")
            self._live.show(status, url=self.url)

    def note(self, text: str) -> None:
        """Print a line above what is drawn."""
        self._live.note(lambda: say(text))

    def close(self) -> None:
        """Draw for the last time, when the services have ended."""
        self._live.close(self._look.status(has_ended=True))


def summary(paths: RunPaths, record: RunRecord, before: Progress, after: Progress, *, seconds: float) -> str:
    """Return the closing lines: what was done, how fast, where the time went, where the output is."""
    tokens = after.committed_tokens - before.committed_tokens
    state = "complete" if after.is_complete else "not complete; run the same command again to continue"
    lines = [
        f"{state}: {after.committed_samples:,} of {after.planned_samples:,} samples,"
        f" {after.committed_tokens:,} tokens, {after.committed_bytes / 1e9:.3f} GB stored",
        f"this time: {tokens:,} tokens in {seconds:.1f} s, {tokens / seconds:,.0f} tokens/s with starting and stopping",
    ]
    if after.tokens_per_second:
        lines.append(f"while extracting: {after.tokens_per_second:,.0f} tokens/s")
    lines += [f"{count:,} samples quarantined: {reason}" for reason, count in after.quarantined.items()]
    lines.append("time by stage (stages overlap):")
    stages = {"planning": record.planning_seconds, "loading the model": after.stages.model_load_seconds}
    stages |= {about: getattr(after.stages, name) - getattr(before.stages, name) for name, about in _STAGES.items()}
    lines += [f"  {about:<22}{spent:9.2f} s" for about, spent in stages.items()]
    lines.append(f"output: {paths.root}  (hiddenstream.open({str(paths.root)!r}); logs in {paths.logs})")
    return "\n".join(lines)


def recompute_report(paths: RunPaths, count: int, model: str | None) -> bool:
    """Recompute samples with plain transformers and print the differences; return whether they are within bounds."""
    from gpu_worker.recompute import recompute_samples  # loads torch

    say(f"recomputing {count} samples with plain transformers")
    report = recompute_samples(paths.root, count, model, seed=None)
    say(report.summary())
    return report.is_within
