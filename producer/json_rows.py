"""Rows of a JSON Lines file, plain or gzipped."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from hiddenstream.contracts.errors import UsageError
from producer.raw_row import RawRow, shown

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_json_lines(file: Path) -> Iterator[RawRow]:
    """Stream the rows of *file*; blank lines are no rows. Raises UsageError, or OSError."""
    name = shown(file)
    with _opened(file) as stream:
        try:
            for number, line in enumerate(stream, start=1):
                text = (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).strip()
                if number == 1 and text.startswith(b"[") and ".json" in file.suffixes:
                    raise UsageError(
                        f"--data {file} is one JSON array; write one object a line, as with: jq -c '.[]' {file}"
                    )
                if text:
                    yield _parsed(text, f"{name}:{number}")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"--data {file} is a damaged gzip file: {error}") from error


def _opened(file: Path) -> BinaryIO:
    is_gzipped = file.suffix == ".gz" or (not file.suffix and first_bytes(file, 1) == b"\x1f")
    return cast(BinaryIO, gzip.open(file, "rb")) if is_gzipped else open(file, "rb")


def first_bytes(file: Path, count: int) -> bytes:
    """Return the beginning of a file, which tells its kind where its name does not."""
    with open(file, "rb") as stream:
        return stream.read(count)


def _parsed(text: bytes, source: str) -> RawRow:
    try:
        row = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        return RawRow(source=source, row=None, problem=f"{source} is not JSON: {error}")
    if not isinstance(row, dict):
        return RawRow(source=source, row=None, problem=f"{source} is JSON, but no object")
    return RawRow(source=source, row=row)
