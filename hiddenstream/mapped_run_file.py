"""A run file's arrays: of bytes that came over the wire, or mapped from a run directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import xxhash

from hiddenstream.contracts.errors import RunDirectoryError, WireError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.run_file import (
    RunFileMetadata,
    decode_run_file_header,
    run_file_header_length,
    run_file_misfits,
)
from hiddenstream.mapped_shard import map_file, views_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunFile:
    """A run file's content.

    Attributes:
        arrays: read-only views by tensor name; ``ml_dtypes.bfloat16`` for bfloat16.
    """

    metadata: RunFileMetadata
    arrays: Mapping[str, npt.NDArray[Any]]


def decode_run_file(name: str, record: RunRecord, content: bytes | memoryview) -> RunFile:
    """Read a whole run file, checked to the last byte.

    Raises:
        WireError: it is damaged, or not file *name* of this run.
    """
    run_file, tensors = _decoded(name, record, memoryview(content))
    found = xxhash.xxh3_128_hexdigest(tensors)
    if found != run_file.metadata.xxh3:
        raise WireError(f"tensor bytes have xxh3 {found}, the header says {run_file.metadata.xxh3:.64}")
    return run_file


def map_run_file(name: str, record: RunRecord, file: Path) -> RunFile:
    """Map a run file; reads its header alone.

    Raises:
        FileNotFoundError: there is none.
        RunDirectoryError: it is damaged, or another run's.
    """
    try:
        return _decoded(name, record, map_file(file))[0]
    except FileNotFoundError:
        raise
    except (OSError, ValueError, WireError) as error:
        raise RunDirectoryError(f"{file}: {error}; run `hiddenstream verify`") from error


def _decoded(name: str, record: RunRecord, content: memoryview) -> tuple[RunFile, memoryview]:
    start = run_file_header_length(bytes(content[:8]))
    layout, metadata = decode_run_file_header(bytes(content[:start]))
    misfits = [message for _, message in run_file_misfits(metadata, name, record)]
    if start + layout.tensor_bytes != len(content):
        misfits.append(f"its tensors take {layout.tensor_bytes} bytes, the file holds {len(content) - start}")
    if misfits:
        raise WireError("; ".join(misfits))
    tensors = content[start:]
    return RunFile(metadata=metadata, arrays=views_of(tensors, layout)), tensors
