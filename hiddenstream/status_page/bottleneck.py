"""What holds a run back, in one word and one sentence. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hiddenstream.status_page.parts import DiskStatus, QueueStatus, WorkerStatus
from hiddenstream.status_page.totals import Recent
from hiddenstream.status_page.words import counted

_COMPUTING = ("working", "idle", "draining")
_SENTENCES = {
    "gpu": "The forward passes are the limit, as it should be.",
    "copy": "Copying states off the GPUs is the limit.",
    "host": "The workers' CPUs are the limit: checks and hashes take longer than the forward passes.",
    "upload": "The network between workers and sink is the limit.",
    "sink": "The sink is the limit: workers wait for its answers.",
    "disk": "The disk is the limit: the sink spends most of its time making shards durable.",
    "queue": "Redis is the limit: jobs are on the queue, and workers still wait for them.",
    "producer": "The producer is the limit: workers wait for jobs, and the queue is empty.",
    "none": "Nothing holds the workers back.",
}


def bottleneck_of(
    workers: Sequence[WorkerStatus],
    *,
    to_do_shards: int,
    queue: QueueStatus | None,
    disk: DiskStatus | None,
    recent: Recent,
) -> tuple[str, str]:
    """Return one of RUN_BOTTLENECKS and a sentence.

    The word is that of most workers that compute; what they cannot tell apart, the queue's depth and the sink's times
    in the ledger do.

    Args:
        workers: those that report.
        to_do_shards: neither committed nor stuck.
        recent: the last minutes' commits.
    """
    if to_do_shards <= 0:
        return "none", "Nothing is left to do."
    if disk is not None and disk.free_bytes < disk.reserve_bytes:
        return "disk", "The disk is full up to its reserve: no new shards are delivered until some space is free."
    if not workers:
        return "none", "No worker reports itself; start one."
    computing = [worker for worker in workers if worker.state in _COMPUTING]
    if not computing:
        return _of_states(workers)
    word, count = Counter(worker.bottleneck for worker in computing).most_common(1)[0]
    word, sentence = _told_apart(word, to_do_shards, queue, recent)
    share = f" So say {count} of {counted(len(computing), 'worker')}." if len(computing) > 1 else ""
    return word, sentence + (share if word != "none" else "")


def _of_states(workers: Sequence[WorkerStatus]) -> tuple[str, str]:
    state, count = Counter(worker.state for worker in workers).most_common(1)[0]
    who = f"{count} of {counted(len(workers), 'worker')}"
    if state == "waiting_for_sink":
        return "sink", f"The sink cannot be reached, or says to wait: {who} wait for it."
    if state == "waiting_for_queue":
        return "queue", f"Redis cannot be reached: {who} wait for it."
    return "none", f"No worker computes yet: {who} {'is' if count == 1 else 'are'} {state.replace('_', ' ')}."


def _told_apart(word: str, to_do_shards: int, queue: QueueStatus | None, recent: Recent) -> tuple[str, str]:
    if word == "queue" and queue is not None and queue.waiting == 0:
        if to_do_shards <= queue.in_work:
            return "none", "The last shards are in work; workers without one have nothing left to do."
        word = "producer"
    if word in ("sink", "upload") and recent.fsync_seconds > recent.receive_seconds:
        word = "disk"
    return word, _SENTENCES[word]
