"""Turning a row of the input into a sample, or into a rejection that says why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from producer.columns import CHATS, IDS, LABELS, MASKS, TOKENS
from producer.masks import mask_from_column
from producer.raw_row import RawRow
from producer.rejections import (
    EMPTY_ROW,
    MALFORMED_ID,
    MALFORMED_TOKENS,
    MASK_LENGTH,
    NO_TOKENS,
    OVER_LONG,
    REJECTION_REASONS,
    TOKEN_OUT_OF_RANGE,
    UNREADABLE_LINE,
    BadRow,
)

__all__ = ["REJECTION_REASONS", "Limits", "Rejection", "Sample", "read_sample"]

Tokens = npt.NDArray[np.int32]
Mask = npt.NDArray[np.uint8]
RenderChat = Callable[[Mapping[str, Any]], tuple[Tokens, Mask | None]]
MAX_ID_BYTES = 2048  # ids travel in every job and shard header


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sample may be.

    Attributes:
        vocabulary_rows: rows of the model's embedding; token ids are below it.
        max_length: tokens a sample may have.
        over_long: ``reject`` or ``truncate``.
    """

    vocabulary_rows: int
    max_length: int
    over_long: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """A sample to be planned.

    Attributes:
        id: any text.
        tokens: int32 [S], 1 or more.
        mask: uint8 [S] of 0 and 1, or None where the input has none.
        is_truncated: whether it was cut to the maximum length.
        source_row, source: the row it comes from.
    """

    id: str
    tokens: Tokens
    mask: Mask | None
    is_truncated: bool
    source_row: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A row that becomes no sample.

    Attributes:
        reason: one of :data:`REJECTION_REASONS`.
        detail: the evidence, for people.
        id: the row's id, or None where it has no usable one.
        source_row, source: the row.
    """

    reason: str
    detail: str
    id: str | None
    source_row: int
    source: str


def read_sample(raw: RawRow, *, source_row: int, limits: Limits, render_chat: RenderChat) -> Sample | Rejection:
    """Make a sample of a row, or say why it cannot be one.

    Args:
        source_row: the row's number over all input files, from 0.
        render_chat: makes tokens and mask of a row with a conversation.
    """
    sample_id: str | None = None
    try:
        if raw.row is None:
            raise BadRow(UNREADABLE_LINE, raw.problem or f"{raw.source} cannot be read")
        sample_id = _sample_id(raw.row, source_row)
        tokens, mask = _tokens_and_mask(raw.row, limits.vocabulary_rows, render_chat)
        if len(tokens) > limits.max_length and limits.over_long == "reject":
            raise BadRow(OVER_LONG, f"{len(tokens)} tokens; the limit is {limits.max_length}")
    except BadRow as error:
        return Rejection(
            reason=error.reason, detail=error.detail, id=sample_id, source_row=source_row, source=raw.source
        )
    return Sample(
        id=sample_id,
        tokens=tokens[: limits.max_length],
        mask=None if mask is None else mask[: limits.max_length],
        is_truncated=len(tokens) > limits.max_length,
        source_row=source_row,
        source=raw.source,
    )


def _sample_id(row: Mapping[str, Any], source_row: int) -> str:
    value = next((row[name] for name in IDS if row.get(name) is not None), f"row-{source_row}")
    if type(value) is int:
        value = str(value)
    if not isinstance(value, str):
        raise BadRow(MALFORMED_ID, f"the id {str(value)[:80]!r} is neither text nor a whole number")
    try:
        id_bytes = len(value.encode())
    except UnicodeEncodeError as error:
        raise BadRow(MALFORMED_ID, f"the id is no valid Unicode text: {ascii(value)[:80]}: {error.reason}") from error
    if id_bytes > MAX_ID_BYTES:
        raise BadRow(MALFORMED_ID, f"the id takes {id_bytes} bytes; the limit is {MAX_ID_BYTES}")
    return value


def _tokens_and_mask(
    row: Mapping[str, Any], vocabulary_rows: int, render_chat: RenderChat
) -> tuple[Tokens, Mask | None]:
    mask: Mask | None
    if row.get(TOKENS) is not None:
        tokens = _tokens(row[TOKENS], vocabulary_rows)
        mask = _mask(row, tokens)
    elif any(row.get(name) is not None for name in CHATS):
        rendered, mask = render_chat(row)
        tokens = _tokens(rendered, vocabulary_rows)
    else:
        raise BadRow(EMPTY_ROW, f"the row has neither {TOKENS} nor {' nor '.join(CHATS)}")
    return tokens, mask


def _tokens(value: Any, vocabulary_rows: int) -> Tokens:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "iu":
            raise BadRow(MALFORMED_TOKENS, f"{TOKENS} holds {value.dtype.name}, not whole numbers")
    elif not isinstance(value, list):
        raise BadRow(MALFORMED_TOKENS, f"{TOKENS} is a {type(value).__name__}, not a list of whole numbers")
    elif other := set(map(type, value)) - {int}:  # a bool is an int to numpy
        names = ", ".join(sorted(kind.__name__ for kind in other))
        raise BadRow(MALFORMED_TOKENS, f"{TOKENS} holds {names}, not only whole numbers")
    if len(value) == 0:
        raise BadRow(NO_TOKENS, f"{TOKENS} is empty")
    try:
        numbers = np.asarray(value)
    except OverflowError:
        numbers = np.array(value, dtype=object)
    outside = np.flatnonzero((numbers < 0) | (numbers >= vocabulary_rows))
    if outside.size:
        first = int(outside[0])
        raise BadRow(
            TOKEN_OUT_OF_RANGE,
            f"token id {str(numbers[first])[:40]} at position {first}; the model has ids 0 to {vocabulary_rows - 1}",
        )
    return numbers.astype(np.int32)


def _mask(row: Mapping[str, Any], tokens: Tokens) -> Mask | None:
    name = next((name for name in MASKS if row.get(name) is not None), None)
    if name is None:
        return None
    mask = mask_from_column(name, row[name], tokens if name == LABELS else None)
    if len(mask) != len(tokens):
        raise BadRow(MASK_LENGTH, f"{name} has {len(mask)} values for {len(tokens)} tokens")
    return mask
