"""Wrapping a shard's states, which lie in a host buffer, as the pieces of a shard file."""

from __future__ import annotations

import time
from collections.abc import Mapping

import xxhash

from gpu_worker.buffers import HostBuffer
from gpu_worker.compute import ShardWork
from gpu_worker.facts import ShardExtracted
from gpu_worker.upload import FinishedShard
from hiddenstream.contracts.job import ExtractionJob
from hiddenstream.contracts.run import FORMAT_VERSION, RunRecord
from hiddenstream.contracts.shard import ShardMetadata, encode_header, sample_tensors, shard_layout
from hiddenstream.contracts.statistics import statistics_to_wire


def finish_shard(
    job: ExtractionJob,
    record: RunRecord,
    work: ShardWork,
    buffer: HostBuffer,
    *,
    made_by: Mapping[str, object],
    wait_seconds: float,
) -> FinishedShard:
    """Hash the shard and put its header before it; samples with a fault are left out.

    The states are sent from where they lie; only when a sample is left out do its successors move up.
    """
    kept = [place for place in range(len(job.samples)) if place not in work.faults]
    stored = job.samples.take(kept) if work.faults else job.samples
    if work.faults:
        _close_ranks(work, kept)
    identity = record.identity
    layout = shard_layout(
        samples=len(stored),
        tokens=stored.tokens.size,
        mask_values=stored.masks.size,
        states=(len(identity.taps), identity.hidden_size, identity.stored_dtype),
    )
    states = layout.tensors["hidden_states"]
    tensors: dict[str, bytes | memoryview] = {
        **sample_tensors(stored),
        "hidden_states": buffer.bytes(states.end - states.begin),
    }
    body = [tensors[name] for name in layout.tensors]
    hashing = time.monotonic()
    checksum = xxhash.xxh3_128()
    for piece in body:
        checksum.update(piece)
    hash_seconds = time.monotonic() - hashing
    timings = {name: round(getattr(work, name), 4) for name in ("forward_seconds", "copy_seconds", "check_seconds")}
    header = encode_header(
        layout,
        ShardMetadata(
            format_version=FORMAT_VERSION,
            run=record.run,
            fingerprint=identity.fingerprint,
            plan_id=identity.plan_id,
            shard=job.shard,
            delivery=job.delivery,
            digest=job.samples.digest(),
            taps=identity.taps,
            xxh3=checksum.hexdigest(),
            sample_ids=stored.ids,
            quarantined=tuple(work.faults[place] for place in sorted(work.faults)),
            made_by={
                **made_by,
                **timings,
                "token_slots": work.token_slots,
                "batches": work.batches,
                "statistics": statistics_to_wire(work.statistics),
            },
        ),
    )
    facts = ShardExtracted(
        shard=job.shard,
        delivery=job.delivery,
        outcome="committed",
        samples=len(stored),
        tokens=stored.tokens.size,
        token_slots=work.token_slots,
        batches=work.batches,
        quarantined=len(work.faults),
        out_of_memory_splits=work.out_of_memory_splits,
        file_bytes=len(header) + layout.tensor_bytes,
        wait_seconds=wait_seconds,
        forward_seconds=work.forward_seconds,
        copy_seconds=work.copy_seconds,
        check_seconds=work.check_seconds,
        hash_seconds=hash_seconds,
        overflowed_values=work.overflowed_values,
        statistics=statistics_to_wire(work.statistics),
    )
    return FinishedShard(pieces=(header, *body), buffer=buffer, facts=facts)


def _close_ranks(work: ShardWork, kept: list[int]) -> None:
    end = 0
    for place in kept:
        first, rows = work.first_rows[place], work.token_rows[place].size
        if first != end:
            work.states_TKD[end : end + rows] = work.states_TKD[first : first + rows].clone()
        end += rows
