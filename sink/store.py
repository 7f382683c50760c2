"""Storing one shard: the sink's main path.

A shard is answered for when its file, its name and its ledger line are durable, in this order, so that a ledger
never promises what a power cut can take away. Whoever gets the final name first wins: a name is only ever given
by ``link``, which fails where there is one. See design.md, decision 4, and docs/formats.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import xxhash

from hiddenstream.chassis.logs import now
from hiddenstream.contracts.commit import CommitLine
from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.shard import header_length
from sink.admission import AdmittedShard, PlannedShard, admit_header
from sink.body import Body
from sink.conflict import settle_conflict
from sink.disk import DiskSpace
from sink.files import IncomingFolder, TemporaryFile, link_durably
from sink.metrics import ShardCommitted
from sink.refusals import ShardRefused
from sink.served_run import ServedRun
from sink.verify import check_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """What storing needs."""

    run: ServedRun
    incoming: IncomingFolder
    disk: DiskSpace


def store_shard(store: Store, shard: int, body: Body) -> ShardCommitted | None:
    """Receive a shard, check it against the plan, and store it durably.

    Returns:
        What was committed, or None where the shard was there already.

    Raises:
        ShardRefused: the shard does not fit the plan, or the disk is short; nothing of it is left behind.
        UploadAborted: the client went away; nothing is left behind.
    """
    planned = store.run.planned_shard(shard)
    _check_size(body, planned)
    if body.is_awaited_by_client and store.run.is_committed(shard):
        return None
    started = perf_counter()
    with store.disk.claim(body.length_bytes), store.incoming.temporary(f"{shard:06d}") as temporary:
        admitted = _receive(body, planned, temporary)
        received = perf_counter()
        temporary.sync()
        synced = perf_counter()
        final = store.run.paths.shard(shard)
        if not link_durably(temporary.path, final):
            existing = settle_conflict(store.run, planned, temporary)
            if existing:
                store.run.ledger.record(commit_line(existing))
                return None
        line = commit_line(admitted, receive_seconds=received - started, fsync_seconds=synced - received)
        store.run.ledger.record(line)
    return ShardCommitted.of(line, commit_seconds=perf_counter() - synced)


def _check_size(body: Body, planned: PlannedShard) -> None:
    if body.length_bytes > planned.max_file_bytes:
        raise ShardRefused(
            "too_large", f"a body of {body.length_bytes} bytes; the shard has {planned.max_file_bytes} at most"
        )
    if body.length_bytes < 8:
        raise ShardRefused("wrong_length", f"a body of {body.length_bytes} bytes is no shard")


def _receive(body: Body, planned: PlannedShard, temporary: TemporaryFile) -> AdmittedShard:
    header = _receive_header(body)
    admitted = admit_header(header, planned, file_bytes=body.length_bytes)
    temporary.write(header)
    tensors_xxh3 = xxhash.xxh3_128()
    for chunk in body.chunks():
        tensors_xxh3.update(chunk)
        temporary.write(chunk)
    check_tensors(temporary.descriptor, admitted, xxh3=tensors_xxh3.hexdigest())
    return admitted


def _receive_header(body: Body) -> bytes:
    first = body.read_exactly(8)
    try:
        header_bytes = header_length(first)
    except WireError as error:
        raise ShardRefused("malformed", str(error)) from error
    if header_bytes > body.length_bytes:
        raise ShardRefused("wrong_length", f"a header of {header_bytes} bytes in a body of {body.length_bytes}")
    return first + body.read_exactly(header_bytes - 8)


def commit_line(
    shard: AdmittedShard, *, delivery: str | None = None, receive_seconds: float = 0.0, fsync_seconds: float = 0.0
) -> CommitLine:
    """Return the ledger line of a file that was verified."""
    return CommitLine(
        shard=shard.metadata.shard,
        file_bytes=shard.file_bytes,
        xxh3=shard.metadata.xxh3,
        header_xxh3=shard.header_xxh3,
        tokens=shard.stored.tokens.size,
        samples=len(shard.stored),
        quarantined=shard.metadata.quarantined,
        delivery=delivery or shard.metadata.delivery,
        made_by=shard.metadata.made_by,
        receive_seconds=round(receive_seconds, 6),
        fsync_seconds=round(fsync_seconds, 6),
        time=now(),
    )
