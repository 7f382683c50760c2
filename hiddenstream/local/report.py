"""What a local run shows a person."""

from __future__ import annotations

import logging
import sys
import time

from tqdm import tqdm

from hiddenstream.contracts.run import RunRecord
from hiddenstream.progress import Progress
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.paths import RunPaths
from producer.plan import ROWS_READ

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


class Bar:
    """A progress bar over tokens that follows the ledger. Where there is no terminal it prints a line now and then."""

    def __init__(self, record: RunRecord, ledger: LedgerReader) -> None:
        self._record = record
        self._ledger = ledger
        self._is_extracting = False
        self._is_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=record.tokens,
            initial=sum(commit.tokens for commit in ledger.commits.values()),
            desc="loading the model",
            unit="tok",
            unit_scale=True,
            dynamic_ncols=True,
            smoothing=0,
            mininterval=0.2 if self._is_terminal else 10.0,
        )

    def update(self, *, is_model_loaded: bool = True) -> bool:
        """Read the ledger and redraw; return whether there was news."""
        fresh = self._ledger.poll()
        if is_model_loaded and not self._is_extracting:
            self._is_extracting = True
            self._bar.set_description("extracting", refresh=False)
            self._bar.initial, self._bar.start_t = self._bar.n, time.time()  # the rate is of extracting alone
        if fresh:
            commits = self._ledger.commits.values()
            samples = f"{sum(c.samples for c in commits):,}/{self._record.samples:,} samples"
            self._bar.set_postfix_str(samples, refresh=False)
            self._bar.update(sum(commit.tokens for commit in fresh))
        elif self._is_terminal:
            self._bar.refresh()  # its clock goes on while nothing arrives
        return bool(fresh)

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.write(text)
        sys.stdout.flush()  # a pipe would keep it back

    def close(self) -> None:
        """Draw the bar for the last time."""
        self.update(is_model_loaded=self._is_extracting)
        self._bar.close()


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
