"""How a list of samples is cut into forward batches. No I/O here.

The planner cuts shards at these boundaries and the worker cuts the shard it was given in the same way,
so both must use this one rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hiddenstream.contracts.errors import HiddenstreamError


class SampleTooLong(HiddenstreamError):
    """One sample alone exceeds the token budget."""

    reason = "sample_too_long"

    def __init__(self, place: int, *, tokens: int, limit: int) -> None:
        super().__init__(f"sample {place} has {tokens} tokens; the token budget is {limit} token slots")
        self.place, self.tokens, self.limit = place, tokens, limit


def cut_batches(lengths: Iterable[int], *, max_token_slots: int) -> Iterator[range]:
    """Group samples, in order, into padded forward batches of at most *max_token_slots*.

    Order is kept, so the same lengths and budget give the same batches everywhere.

    Args:
        lengths: tokens of each sample, one or more each.
        max_token_slots: rows times longest row, padding included; unit: tokens.

    Yields:
        The places of one batch's samples, as a range; together they cover every sample once.

    Raises:
        SampleTooLong: a sample alone is over the budget.

    Source: the padded branch of text-embeddings-inference, core/src/queue.rs.
    """
    start, width, end = 0, 0, 0  # width: tokens of the longest row so far
    for place, tokens in enumerate(lengths):
        if tokens > max_token_slots:
            raise SampleTooLong(place, tokens=tokens, limit=max_token_slots)
        if place > start and (place - start + 1) * max(width, tokens) > max_token_slots:
            yield range(start, place)
            start, width = place, 0
        width, end = max(width, tokens), place + 1
    if end > start:
        yield range(start, end)
