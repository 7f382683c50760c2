"""Rows of Parquet files and Arrow streams, in small batches.

Columns of numbers stay numpy arrays: as Python lists, rows of 1,000 tokens took four times as long to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hiddenstream.contracts.errors import UsageError
from producer.columns import USED
from producer.raw_row import RawRow, shown

_BATCH_ROWS = 1024


def read_parquet(file: Path) -> Iterator[RawRow]:
    """Stream the rows of a Parquet file. Raises UsageError, or OSError."""
    try:
        parquet = pq.ParquetFile(file)
        columns = _used(parquet.schema_arrow.names)
        yield from _rows(shown(file), parquet.iter_batches(batch_size=_BATCH_ROWS, columns=columns))
    except pa.ArrowException as error:
        raise UsageError(f"--data {file} is no readable Parquet file: {error}") from error


def read_arrow(file: Path) -> Iterator[RawRow]:
    """Stream the rows of an Arrow IPC stream, as ``save_to_disk`` writes it. Raises UsageError, or OSError."""
    try:
        with pa.memory_map(str(file)) as memory, pa.ipc.open_stream(memory) as stream:
            yield from _rows(shown(file), (part for batch in stream for part in _parts(batch)))
    except pa.ArrowException as error:
        raise UsageError(f"--data {file} is no readable Arrow stream: {error}") from error


def _used(names: list[str]) -> list[str]:
    """Raise UsageError where a column that matters is there twice."""
    twice = sorted({name for name in names if names.count(name) > 1 and name in USED})
    if twice:
        raise UsageError(f"--data: a file has the column {twice[0]!r} twice")
    return [name for name in names if name in USED] or names  # a batch without columns forgets how many rows it has


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    used = batch.select(_used(batch.schema.names))
    for begin in range(0, batch.num_rows, _BATCH_ROWS):
        yield used.slice(begin, _BATCH_ROWS)


def _rows(name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[RawRow]:
    number = 0
    for batch in batches:
        columns = {column: _values(batch.column(column)) for column in batch.schema.names}
        for place in range(batch.num_rows):
            number += 1
            row = {column: values[place] for column, values in columns.items()}
            source = f"{name} row {number}"
            broken = next((value for value in row.values() if isinstance(value, _Unreadable)), None)
            if broken is None:
                yield RawRow(source=source, row=row)
            else:
                yield RawRow(source=source, row=None, problem=str(broken))


class _Unreadable(Exception):
    """What Arrow holds and Python cannot."""


def _values(column: Any) -> list[Any]:
    if _holds_numbers(column.type):
        return [_numbers(scalar.values) for scalar in column]
    try:
        return list(column.to_pylist())
    except (UnicodeDecodeError, OverflowError, ValueError):
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (UnicodeDecodeError, OverflowError, ValueError) as error:
        return _Unreadable(f"a value cannot be read: {type(error).__name__}")


def _holds_numbers(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and (pa.types.is_integer(kind.value_type) or pa.types.is_boolean(kind.value_type)))


def _numbers(values: Any) -> Any:
    """Return one row's numbers; a list where nulls are among them, None where the row has none."""
    if values is None:
        return None
    if values.null_count:
        return values.to_pylist()
    return values.to_numpy(zero_copy_only=False)
