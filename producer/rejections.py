"""Why a row of the input becomes no sample, and why planning stops."""

from __future__ import annotations

from collections.abc import Mapping

from hiddenstream.contracts.errors import HiddenstreamError

UNREADABLE_LINE = "unreadable_line"
EMPTY_ROW = "empty_row"
MALFORMED_ID = "malformed_id"
MALFORMED_TOKENS = "malformed_tokens"
NO_TOKENS = "no_tokens"
TOKEN_OUT_OF_RANGE = "token_out_of_range"
MALFORMED_MASK = "malformed_mask"
MASK_LENGTH = "mask_length"
MALFORMED_MESSAGES = "malformed_messages"
OVER_LONG = "over_long"
REJECTION_REASONS = frozenset(
    {
        UNREADABLE_LINE,
        EMPTY_ROW,
        MALFORMED_ID,
        MALFORMED_TOKENS,
        NO_TOKENS,
        TOKEN_OUT_OF_RANGE,
        MALFORMED_MASK,
        MASK_LENGTH,
        MALFORMED_MESSAGES,
        OVER_LONG,
    }
)


class BadRow(HiddenstreamError):
    """A row that cannot be a sample; it becomes a rejection, and the next row goes on.

    Attributes:
        reason: one of :data:`REJECTION_REASONS`.
        detail: the evidence, for people.
    """

    def __init__(self, reason: str, detail: str) -> None:
        assert reason in REJECTION_REASONS, reason
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class StrictRejection(HiddenstreamError):
    """A bad row where ``--strict`` allows none."""

    reason = "strict"
    exit_code = 2

    def __init__(self, source: str, reason: str, detail: str) -> None:
        super().__init__(f"{source} is rejected ({reason}): {detail}; correct it, or plan without --strict")
        self.source, self.rejected_for, self.detail = source, reason, detail


class ConflictingIds(HiddenstreamError):
    """Two rows with one id and different tokens or masks."""

    reason = "conflicting_ids"
    exit_code = 2

    def __init__(self, sample_id: str, *, first: str, second: str) -> None:
        super().__init__(
            f"id {sample_id!r} is used by {first} and by {second} with different tokens or masks; give each its own id"
        )
        self.sample_id, self.first, self.second = sample_id, first, second


class NothingPlanned(HiddenstreamError):
    """An input without a single usable row."""

    reason = "nothing_planned"
    exit_code = 2

    def __init__(self, rejected: Mapping[str, int]) -> None:
        counted = ", ".join(f"{rows} {reason}" for reason, rows in sorted(rejected.items()))
        super().__init__(f"the input holds no usable row; rejected: {counted or 'none, it has no rows at all'}")
        self.rejected = rejected
