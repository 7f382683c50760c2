"""A run file: what workers make once per run, on the wire and on disk. No I/O here.

One safetensors file (contracts/tensor_file.py); its names are the closed set ``RUN_FILES`` of contracts/sink_api.py.
Metadata: ``format_version``, ``file`` (which one), ``run``, ``fingerprint``, ``xxh3`` (of all tensor bytes, in file
order), and facts of the file's own, every one text. Tensors lie widest items first, so that each is aligned.
A change here must be made in docs/formats.md too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from hiddenstream.contracts.checked import checked
from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.run import FORMAT_VERSION, RunRecord
from hiddenstream.contracts.sink_api import RUN_FILES
from hiddenstream.contracts.tensor_file import (
    ITEM_BYTES,
    TensorLayout,
    decode_tensor_header,
    encode_tensor_header,
    lay_out,
    tensor_header_length,
)

MAX_RUN_FILE_HEADER_BYTES = 1024 * 1024
_OWN_KEYS = frozenset({"format_version", "file", "run", "fingerprint", "xxh3"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawTensor:
    """A tensor as its bytes.

    Attributes:
        dtype: ``float32``, ``bfloat16``, ``float16``, ``int64``, ``int32`` or ``uint8``.
        data: row-major, little-endian, as bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFileMetadata:
    """What a run file says of itself.

    Attributes:
        format_version: see :class:`hiddenstream.contracts.run.RunIdentity`.
        file: which of ``RUN_FILES`` it is.
        run, fingerprint: the run it belongs to.
        xxh3: xxh3-128 of all tensor bytes, hex.
        facts: whatever else it says, text by name.
    """

    format_version: int
    file: str
    run: str
    fingerprint: str
    xxh3: str
    facts: Mapping[str, str]


def encode_run_file(
    name: str, record: RunRecord, tensors: Mapping[str, RawTensor], facts: Mapping[str, str]
) -> tuple[bytes | memoryview, ...]:
    """Return a run file's bytes in pieces; the tensors' own are not copied.

    Args:
        name: which of ``RUN_FILES``.
        record: the run.
        tensors: each by its name; none is called ``__metadata__``.
        facts: what the file says besides, text by name.

    Raises:
        ValueError: a name that is none, a tensor whose bytes are not its shape's, or a fact under a name that is taken.
    """
    if name not in RUN_FILES or not _OWN_KEYS.isdisjoint(facts) or "__metadata__" in tensors:
        raise ValueError(f"run file {name!r} with the tensors {list(tensors)} and facts {list(facts)}")
    for tensor_name, tensor in tensors.items():
        if len(tensor.data) != math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]:
            raise ValueError(f"{tensor_name}: {tensor.dtype} {tensor.shape} does not take {len(tensor.data)} bytes")
    ordered = sorted(tensors.items(), key=lambda item: -ITEM_BYTES[item[1].dtype])
    digest = xxhash.xxh3_128()
    for _, tensor in ordered:
        digest.update(tensor.data)
    told = {
        "format_version": str(FORMAT_VERSION),
        "file": name,
        "run": record.run,
        "fingerprint": record.identity.fingerprint,
        "xxh3": digest.hexdigest(),
        **facts,
    }
    layout = lay_out({tensor_name: (tensor.dtype, tensor.shape) for tensor_name, tensor in ordered})
    return encode_tensor_header(layout, told), *(tensor.data for _, tensor in ordered)


def run_file_header_length(first_bytes: bytes) -> int:
    """Return how many bytes of a run file come before its tensors, given its first 8.

    Raises:
        WireError: fewer bytes, or a length that no run file has.
    """
    return tensor_header_length(first_bytes, what="run file", max_header_bytes=MAX_RUN_FILE_HEADER_BYTES)


def decode_run_file_header(header: bytes) -> tuple[TensorLayout, RunFileMetadata]:
    """Read what comes before a run file's tensors, trusting nothing.

    Args:
        header: the first ``run_file_header_length`` bytes of the file.

    Raises:
        WireError: not such a header; tensors that overlap, leave a gap, or whose bytes do not fit dtype and shape.
    """
    try:
        layout, told = decode_tensor_header(header)
        if not all(isinstance(value, str) for value in told.values()):
            raise TypeError("a value of its metadata is no text")
        metadata = RunFileMetadata(
            format_version=int(told["format_version"]),
            file=told["file"],
            run=told["run"],
            fingerprint=told["fingerprint"],
            xxh3=told["xxh3"],
            facts={key: value for key, value in told.items() if key not in _OWN_KEYS},
        )
        return layout, checked(metadata)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise WireError(f"run file header is malformed: {error!r}") from error


def run_file_misfits(metadata: RunFileMetadata, name: str, record: RunRecord) -> list[tuple[str, str]]:
    """Return (reason, message) for everything in which a run file is not file *name* of this run.

    Reasons are those of :data:`hiddenstream.contracts.sink_api.SHARD_REFUSALS`.
    """
    expected = (
        ("malformed", "file", metadata.file, name),
        ("wrong_run", "run", metadata.run, record.run),
        ("wrong_fingerprint", "format version", metadata.format_version, FORMAT_VERSION),
        ("wrong_fingerprint", "fingerprint", metadata.fingerprint, record.identity.fingerprint),
    )
    return [
        (reason, f"{what}: the run file says {str(found)[:200]!r}, not {str(wanted)!r}")
        for reason, what, found, wanted in expected
        if found != wanted
    ]
