"""Checking what JSON gave before it becomes a record's field. No I/O here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

Record = TypeVar("Record")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


_FITS: dict[str, Callable[[Any], bool]] = {
    "int": _is_count,
    "float": _is_amount,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "str | None": lambda value: value is None or isinstance(value, str),
    "tuple[str, ...]": lambda value: isinstance(value, tuple) and all(isinstance(word, str) for word in value),
    "int | None": lambda value: value is None or _is_count(value),
    "float | None": lambda value: value is None or _is_amount(value),
    "tuple[int, ...]": lambda value: isinstance(value, tuple) and all(map(_is_count, value)),
    "Mapping[str, float]": lambda value: isinstance(value, dict) and all(map(_is_amount, value.values())),
    "Mapping[str, int]": lambda value: isinstance(value, dict) and all(map(_is_count, value.values())),
    "Mapping[str, Any]": lambda value: isinstance(value, dict),
}


def checked(record: Record) -> Record:
    """Return *record*, a dataclass instance, if its plain fields hold what their annotations say.

    Numbers are neither negative, infinite nor NaN. Fields of other types are left to who made them.

    Raises:
        TypeError: a field holds something else; names it.
    """
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        if not _FITS.get(str(field.type), lambda _: True)(value):
            raise TypeError(f"{field.name} is {str(value)[:80]!r}, not {field.type}")
    return record


def refuse_time_without_zone(text: str) -> None:
    """Refuse text that is not an ISO 8601 time with its zone.

    Raises:
        ValueError: it is not.
    """
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"the time {text!r} names no zone")
