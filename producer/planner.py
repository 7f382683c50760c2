"""Which sample goes into which shard. No I/O here: lengths in, plan out.

Samples are sorted by length inside windows, so forward batches hold samples of like length. A window is sorted
the other way round than the one before it, so no batch mixes long and short where two windows meet. Batches are cut
with the worker's own rule; a shard is a whole number of them, and because that rule looks at nothing before a
batch's first sample, a worker that cuts the shard alone gets the same batches. Shards are put in random order,
so whoever follows the run sees all lengths from the beginning.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hiddenstream.contracts.batches import cut_batches

WINDOW_SAMPLES = 8192
MAX_SHARD_TOKENS = 131_072
LEAST_SHARDS = 64  # a run should have about so many at least: fewer leave GPUs idle at its end
_ORDER_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardPlan:
    """Where each sample goes.

    Attributes:
        shard: int32 [n], shard of each sample, in the order of the input.
        place: int32 [n], its place in that shard.
        shards: number of shards.
        batches: number of forward batches over all shards.
        token_slots: rows times longest row, summed over all batches.
    """

    shard: npt.NDArray[np.int32]
    place: npt.NDArray[np.int32]
    shards: int
    batches: int
    token_slots: int


def plan_shards(
    lengths: npt.NDArray[np.int64], *, token_budget: int, shard_bytes: int, bytes_per_token: int
) -> ShardPlan:
    """Assign every sample to a shard; the same lengths and settings give the same plan.

    Args:
        lengths: tokens of each sample, in the order of the input, 1 or more.
        token_budget: token slots of one forward batch, padding included.
        shard_bytes: bytes of states a shard should have at most; one batch may have more.
        bytes_per_token: bytes of one token's states.

    Raises:
        SampleTooLong: a sample alone is over the token budget.
    """
    order = _sorted_in_windows(lengths)
    ordered = lengths[order]
    batches = list(cut_batches(ordered.tolist(), max_token_slots=token_budget))
    starts = np.array([batch.start for batch in batches], dtype=np.int64)
    rows = np.diff(starts, append=len(lengths))
    batch_tokens = np.add.reduceat(ordered, starts) if batches else starts
    widths = np.maximum.reduceat(ordered, starts) if batches else starts
    limit = _shard_tokens(int(lengths.sum()), shard_bytes, bytes_per_token)
    shard_of_batch = _group(batch_tokens.tolist(), limit)
    shards = shard_of_batch[-1] + 1 if batches else 0
    first = shard_of_batch[int(np.argmax(widths))] if batches else 0
    cut_order = np.repeat(np.array(shard_of_batch, dtype=np.int64), rows)
    shard_starts = np.searchsorted(cut_order, np.arange(shards))
    shard, place = np.empty(len(lengths), np.int32), np.empty(len(lengths), np.int32)
    shard[order] = _new_numbers(shards, first=first)[cut_order]
    place[order] = np.arange(len(lengths)) - shard_starts[cut_order]
    return ShardPlan(
        shard=shard, place=place, shards=shards, batches=len(batches), token_slots=int((rows * widths).sum())
    )


def _sorted_in_windows(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    parts = []
    for window, begin in enumerate(range(0, len(lengths), WINDOW_SAMPLES)):
        inside = lengths[begin : begin + WINDOW_SAMPLES]
        parts.append(begin + np.argsort(inside if window % 2 == 0 else -inside, kind="stable"))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _shard_tokens(total_tokens: int, shard_bytes: int, bytes_per_token: int) -> int:
    return min(MAX_SHARD_TOKENS, shard_bytes // bytes_per_token, -(-total_tokens // LEAST_SHARDS))


def _group(batch_tokens: Sequence[int], limit: int) -> list[int]:
    """Return the shard of each batch: as many consecutive ones as stay within *limit* tokens, at least one."""
    shards: list[int] = []
    shard, filled = -1, limit
    for tokens in batch_tokens:
        filled += tokens
        if filled > limit:
            shard, filled = shard + 1, tokens
        shards.append(shard)
    return shards


def _new_numbers(shards: int, *, first: int) -> npt.NDArray[np.int32]:
    """Return each shard's number in the run: random, but *first*, which needs most memory, becomes 0."""
    others = [shard for shard in range(shards) if shard != first]
    random.Random(_ORDER_SEED).shuffle(others)
    numbers = np.empty(shards, np.int32)
    numbers[[first, *others][:shards]] = np.arange(shards)
    return numbers
