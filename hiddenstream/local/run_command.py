"""The ``run`` command: plan, start everything, show progress, stop everything, sum up."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.logs import log, start_logging
from hiddenstream.chassis.redis_connection import make_client, refuse_unfit_if_reachable
from hiddenstream.chassis.settings import device_name, from_process, setting, whole_number
from hiddenstream.contracts.run import RunRecord
from hiddenstream.local.news import News
from hiddenstream.local.pipeline import LocalPlan, Pipeline
from hiddenstream.local.report import Display, PlanningProgress, recompute_report, say, summary
from hiddenstream.progress import Progress, progress_of
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.paths import RunPaths, producer_lock
from hiddenstream.status_page.look import RunLook
from producer.resume import ensure_plan
from producer.settings import PageFlags

SERVICE_RESTARTED = "service_restarted"
_LOGGER = logging.getLogger("hiddenstream.local")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(PageFlags):
    """Run the whole pipeline on this machine: queue, producer, workers, sink. Run it again to continue."""

    workers: int = setting(1, parse=whole_number(least=1, most=64), means="worker processes; one per GPU")
    device: str = setting("auto", parse=device_name, means="cpu, cuda or cuda:N; auto takes CUDA where there is one")
    redis: str | None = setting(None, means="URL of a Redis to use; one of its own is started unless given")
    recompute: int = setting(
        0, parse=whole_number(least=0), means="samples to recompute with plain transformers at the end, drawn at random"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; return the command's exit code.

    Raises:
        HiddenstreamError: the settings, the data, the model or a service refuse.
    """
    settings = from_process(RunSettings, command="hiddenstream run", arguments=arguments)
    paths = RunPaths(settings.run_directory)
    if settings.redis is not None:
        refuse_unfit_if_reachable(make_client(settings.redis))
    paths.logs.mkdir(parents=True, exist_ok=True)
    with open(paths.logs / "run.jsonl", "a") as log_file:
        start_logging("run", stream=log_file)
        logging.getLogger("producer").addHandler(PlanningProgress())
        say(f"planning {paths.root}" if not paths.is_planned() else f"continuing {paths.root}")
        with producer_lock(paths):
            record = ensure_plan(settings)
        return _run(paths, record, settings)


def _run(paths: RunPaths, record: RunRecord, settings: RunSettings) -> int:
    ledger = LedgerReader(paths.ledger)
    ledger.poll()
    before = progress_of(record, ledger.commits.values())
    if before.is_complete:
        say(
            f"nothing to do: all {before.committed_samples:,} samples are stored in {paths.root}"
            " (no forward pass was made; `hiddenstream verify` proves that they are whole, and recomputes with"
            " --recompute)"
        )
        return before.exit_code
    _say_plan(paths, record, before)
    started = time.monotonic()
    _run_services(paths, record, settings, ledger)
    ledger.poll()
    after = progress_of(record, ledger.commits.values())
    say(summary(paths, record, before, after, seconds=time.monotonic() - started))
    if after.is_complete and settings.recompute:
        return after.exit_code if recompute_report(paths, settings.recompute, settings.model) else 1
    return after.exit_code


def _say_plan(paths: RunPaths, record: RunRecord, before: Progress) -> None:
    states_gb = record.tokens * record.identity.bytes_per_token / 1e9
    say(
        f"{record.samples:,} samples, {record.tokens:,} tokens, {record.shards:,} shards,"
        f" {states_gb:.2f} GB of states; taps {', '.join(record.identity.taps)}"
    )
    for reason, rows in sorted(record.rejected.items()):
        say(f"  rejected rows: {rows:,} {reason}")
    for count, what in (
        (record.merged, "rows that repeat another, merged"),
        (record.truncated, f"samples cut to {record.settings.max_length:,} tokens"),
        (record.without_mask, "samples without a loss mask"),
    ):
        if count:
            say(f"  {what}: {count:,}")
    if record.rejected:
        say(f"  {paths.samples} names each of them")
    if before.committed_shards:
        say(f"  {before.committed_samples:,} samples are stored already")


def _run_services(paths: RunPaths, record: RunRecord, settings: RunSettings, ledger: LedgerReader) -> None:
    """Run the services until the run is complete or Ctrl-C, then stop them, whatever happened."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stop = StopRequest().install()
    plan = LocalPlan(
        workers=settings.workers,
        model=settings.model or record.model,
        device=settings.device,
        queue_url=settings.redis,
        token_budget=settings.token_budget,
        status_listen=settings.status_listen,
        status_hosts=settings.status_hosts,
    )
    display = Display(RunLook(paths, record))
    news = News(display.note)
    for log_file in paths.logs.glob("*.jsonl"):
        news.skip(log_file)
    pipeline = Pipeline(paths, record, plan)

    def look() -> bool:
        for name, child in pipeline.children.items():
            news.read(name, child.log_file)
        if news.status_url != display.url:
            display.url = news.status_url
            display.note(f"status page: {display.url}")
        display.update()
        return bool(ledger.poll())

    def tell_restart(name: str, exit_code: int) -> None:
        log(_LOGGER, SERVICE_RESTARTED, {"name": name, "exit_code": exit_code}, level=logging.WARNING)
        display.note(f"{name} died (exit code {exit_code}) and was started again")

    try:
        pipeline.watch(stop, look, tell_restart)
        if stop.is_set():
            display.note("stopping: workers finish the shard in hand; Ctrl-C again ends them at once")
    finally:
        pipeline.stop(lambda: stop.is_urgent)
        display.close()
        for number, handler in before.items():
            signal.signal(number, handler)
