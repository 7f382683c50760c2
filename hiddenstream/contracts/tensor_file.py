"""The container of every file of tensors: safetensors, in one fixed manner. No I/O here.

File: header length (u64), JSON header padded with spaces so that the tensors begin at a multiple of 64, then the
tensors without a gap. All numbers little-endian, tensors row-major, offsets relative to the end of the header.

Source: the safetensors format, https://huggingface.co/docs/safetensors. A change here must be made in docs/formats.md
too; what a shard or a run file must hold is in contracts/shard.py and contracts/run_file.py.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.run import DTYPE_BYTES

ALIGNMENT = 64
_CODES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8"}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
ITEM_BYTES = {**DTYPE_BYTES, "int64": 8, "int32": 4, "uint8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """One tensor's dtype, shape and bytes, the latter relative to the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """Where each tensor of a file lies."""

    tensors: Mapping[str, TensorPlace]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors together."""
        return max((place.end for place in self.tensors.values()), default=0)


def lay_out(shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> TensorLayout:
    """Place tensors, given as dtype and shape, one behind the other in their order."""
    tensors, begin = {}, 0
    for name, (dtype, shape) in shapes.items():
        end = begin + math.prod(shape) * ITEM_BYTES[dtype]
        tensors[name] = TensorPlace(dtype=dtype, shape=shape, begin=begin, end=end)
        begin = end
    return TensorLayout(tensors=tensors)


def encode_tensor_header(layout: TensorLayout, metadata: Mapping[str, str]) -> bytes:
    """Return all bytes of a file that come before its tensors."""
    described: dict[str, Any] = {"__metadata__": dict(metadata)}
    for name, place in layout.tensors.items():
        described[name] = {
            "dtype": _CODES[place.dtype],
            "shape": list(place.shape),
            "data_offsets": [place.begin, place.end],
        }
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def tensor_header_length(first_bytes: bytes, *, what: str, max_header_bytes: int) -> int:
    """Return how many bytes of a file come before its tensors.

    Args:
        first_bytes: the file's first 8 bytes.
        what: the file, for messages.

    Raises:
        WireError: fewer bytes, or a length that no such file has.
    """
    if len(first_bytes) < 8:
        raise WireError(f"a {what} of {len(first_bytes)} bytes")
    length = int(struct.unpack("<Q", first_bytes[:8])[0])
    if not 2 <= length <= max_header_bytes:
        raise WireError(f"a {what} header of {length} bytes; the limit is {max_header_bytes}")
    return 8 + length


def decode_tensor_header(header: bytes) -> tuple[TensorLayout, dict[str, Any]]:
    """Read what :func:`encode_tensor_header` wrote, trusting nothing; the metadata is still to be checked.

    Raises:
        WireError: tensors that overlap or leave a gap.
        KeyError, TypeError, ValueError, AttributeError, RecursionError: not such a header, or bytes that do not fit
            dtype and shape.
    """
    described = json.loads(header[8:])
    metadata = described.pop("__metadata__")
    places = {name: _decode_place(place) for name, place in described.items()}
    end = 0
    for place in sorted(places.values(), key=lambda place: (place.begin, place.end)):
        if place.begin != end:
            raise WireError(f"tensors overlap or leave a gap at byte {end}")
        end = place.end
    return TensorLayout(tensors=places), metadata


def _decode_place(described: Mapping[str, Any]) -> TensorPlace:
    dtype = _DTYPES[described["dtype"]]
    shape = tuple(described["shape"])
    begin, end = described["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(f"shape {shape} or offsets {begin}, {end} are not whole numbers")
    if end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise ValueError(f"{dtype} {shape} does not take {end - begin} bytes")
    return TensorPlace(dtype=dtype, shape=shape, begin=begin, end=end)
