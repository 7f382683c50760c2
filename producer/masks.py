"""Loss masks as data sets write them, made one form: uint8, 1 where a token is trained on, unshifted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from producer.rejections import MALFORMED_MASK, MASK_LENGTH, BadRow

IGNORED_LABEL = -100  # transformers' and torch's value for "no loss here"


def mask_from_column(name: str, value: Any, labelled: npt.NDArray[np.int32] | None) -> npt.NDArray[np.uint8]:
    """Read a mask column.

    Args:
        labelled: the tokens, where the column holds labels; None where it holds 0 and 1.

    Raises:
        BadRow: no list of numbers, other values, or labels that do not repeat the tokens.
    """
    numbers = _numbers(name, value)
    if labelled is not None:
        return _mask_from_labels(numbers, labelled)
    wrong = np.flatnonzero((numbers != 0) & (numbers != 1))
    if wrong.size:
        raise BadRow(MALFORMED_MASK, f"{name} holds {numbers[wrong[0]]} at position {wrong[0]}; only 0 and 1 may be")
    return numbers.astype(np.uint8)


def _numbers(name: str, value: Any) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray) and value.dtype.kind in "iub":
        return value
    if not isinstance(value, list):
        raise BadRow(MALFORMED_MASK, f"{name} is a {type(value).__name__}, not a list of 0 and 1")
    if other := set(map(type, value)) - {int, bool}:
        names = ", ".join(sorted(kind.__name__ for kind in other))
        raise BadRow(MALFORMED_MASK, f"{name} holds {names}, not only 0 and 1")
    try:
        return np.array(value, dtype=np.int64)
    except OverflowError as error:
        raise BadRow(MALFORMED_MASK, f"{name} holds a number beyond 64 bits") from error


def _mask_from_labels(labels: npt.NDArray[Any], tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    if len(labels) != len(tokens):
        raise BadRow(MASK_LENGTH, f"labels has {len(labels)} values for {len(tokens)} tokens")
    wrong = np.flatnonzero((labels != IGNORED_LABEL) & (labels != tokens))
    if wrong.size:
        place = int(wrong[0])
        raise BadRow(
            MALFORMED_MASK,
            f"labels holds {labels[place]} at position {place}, where the token is {tokens[place]};"
            f" only that or {IGNORED_LABEL} may be, unshifted",
        )
    return np.asarray(labels != IGNORED_LABEL, dtype=np.uint8)
