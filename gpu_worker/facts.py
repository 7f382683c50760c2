"""What one delivery did. Logged and counted from this object, so the two cannot disagree."""

from __future__ import annotations

from dataclasses import dataclass

SHARD_EXTRACTED = "shard_extracted"
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
            and waiting for the durable answer.
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
    upload_attempts: int = 0
    message: str = ""
