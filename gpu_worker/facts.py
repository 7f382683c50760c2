"""What one delivery did. Logged and counted from this object, so the two cannot disagree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SHARD_EXTRACTED = "shard_extracted"
GATE_VERDICTS = ("not_run", "passed", "failed")  # of the exactness gate, gpu_worker/canary.py
GATE_TESTS = ("blocks", "swap", "reference")
OUTCOMES = ("committed", "duplicate", "already_there", "in_hand", "given_back", "refused", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardExtracted:
    """One delivery of one shard, from the queue to the sink's answer.

    Attributes:
        outcome: one of OUTCOMES. ``committed``: stored by this delivery. ``duplicate``: computed, but another was
            stored first. ``already_there``: stored before, not computed. ``in_hand``: this worker is at it already.
            ``given_back``: asked to stop while the sink was away. ``refused``: of another run. ``failed``: an
            error; the shard will be delivered again.
        token_slots: slots computed, padding included, reruns too.
        forward_seconds: model. copy_seconds: device to host. check_seconds: finite, non-zero, reruns.
        hash_seconds: checksum. wait_seconds: for a free host buffer, that is, for the sink. upload_seconds: sending
            and waiting for the durable answer; of it, send_seconds: bytes onto the socket, answer_seconds: waiting for
            the sink, pauses between attempts included.
        overflowed_values: values, in samples left out for it, that the stored dtype cannot hold.
        statistics: count, mean, m2 and largest of the states of each tap; see contracts/statistics.py.
        message: the error, where there was one.
    """

    shard: int
    delivery: str
    outcome: str
    samples: int = 0
    tokens: int = 0
    token_slots: int = 0
    batches: int = 0
    quarantined: int = 0
    out_of_memory_splits: int = 0
    file_bytes: int = 0
    wait_seconds: float = 0.0
    forward_seconds: float = 0.0
    copy_seconds: float = 0.0
    check_seconds: float = 0.0
    hash_seconds: float = 0.0
    upload_seconds: float = 0.0
    send_seconds: float = 0.0
    answer_seconds: float = 0.0
    upload_attempts: int = 0
    overflowed_values: int = 0
    statistics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """One forward batch.

    Attributes:
        tokens: real ones. token_slots: padding included.
        allocated_bytes, reserved_bytes: of device memory by torch's allocator, on all its GPUs; looked up now and then.
    """

    tokens: int
    token_slots: int
    allocated_bytes: int = 0
    reserved_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReady:
    """An engine whose model is loaded.

    Attributes:
        device: what it runs on, for people. torch: its version.
        load_seconds: reading weights. warm_seconds: first forward passes.
        gate: one of GATE_VERDICTS; ``not_run`` where there was nothing finite to compare.
        way: of batching, one of WAYS of contracts/worker_report.py.
        gate_differences: the largest difference by test, of GATE_TESTS, where one was made.
    """

    device: str
    torch: str
    load_seconds: float
    warm_seconds: float
    gate: str
    way: str = "padded"
    gate_differences: Mapping[str, float] = field(default_factory=dict)
