"""The shard on the wire and on disk: one safetensors file, and what it must hold. No I/O here.

File: header length (u64), JSON header padded with spaces so that the tensors begin at a multiple of 64,
then the tensors without a gap, widest items first so that each is aligned:

    sample_rows    int64 [n, 2]     first row and rows of each stored sample
    mask_offsets   int64 [n + 1]    where each sample's mask begins
    input_ids      int32 [T]        token ids, samples end to end
    hidden_states  dtype [T, k, H]  taps in ascending order; a sample is one contiguous slice
    loss_mask      uint8 [M]        one mask per sample, empty where the input had none

The container is contracts/tensor_file.py. A change here must be made in docs/formats.md too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hiddenstream.contracts.checked import checked
from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.samples import PackedSamples
from hiddenstream.contracts.tensor_file import (
    TensorLayout,
    decode_tensor_header,
    encode_tensor_header,
    lay_out,
    tensor_header_length,
)

MAX_HEADER_BYTES = 32 * 1024 * 1024  # 131,072 one-token samples with ids of 200 bytes fit
ShardLayout = TensorLayout


def shard_layout(*, samples: int, tokens: int, mask_values: int, states: tuple[int, int, str]) -> ShardLayout:
    """Lay out a shard.

    Args:
        samples: stored samples, n.
        tokens: their tokens, T.
        mask_values: length of their masks together, M.
        states: taps k, hidden size H and stored dtype.
    """
    taps, hidden_size, dtype = states
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "sample_rows": ("int64", (samples, 2)),
        "mask_offsets": ("int64", (samples + 1,)),
        "input_ids": ("int32", (tokens,)),
        "hidden_states": (dtype, (tokens, taps, hidden_size)),
        "loss_mask": ("uint8", (mask_values,)),
    }
    return lay_out(shapes)


def sample_tensors(samples: PackedSamples) -> dict[str, bytes]:
    """Return the bytes of every tensor of a shard that the plan alone determines: all but the states."""
    rows = np.stack([samples.token_offsets[:-1], samples.token_counts], axis=1)
    return {
        "sample_rows": rows.astype("<i8").tobytes(),
        "mask_offsets": samples.mask_offsets.astype("<i8").tobytes(),
        "input_ids": samples.tokens.astype("<i4").tobytes(),
        "loss_mask": samples.masks.tobytes(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMetadata:
    """What a shard says of itself, in the safetensors metadata.

    Attributes:
        format_version: see :class:`hiddenstream.contracts.run.RunIdentity`.
        run, fingerprint, plan_id: the run it belongs to.
        shard: its number.
        delivery: the delivery that made it.
        digest: of the planned samples' ids, tokens and masks, stored or not.
        taps: names along the second axis of ``hidden_states``.
        xxh3: xxh3-128 of all tensor bytes, hex.
        sample_ids: the stored samples, in order.
        quarantined: the planned samples that are not stored.
        made_by: worker, device, versions, batching way and stage times; not identity.
    """

    format_version: int
    run: str
    fingerprint: str
    plan_id: str
    shard: int
    delivery: str
    digest: str
    taps: tuple[str, ...]
    xxh3: str
    sample_ids: tuple[str, ...]
    quarantined: tuple[Quarantined, ...]
    made_by: Mapping[str, Any]


def encode_header(layout: ShardLayout, metadata: ShardMetadata) -> bytes:
    """Return all bytes of a shard file that come before its tensors."""
    told = {
        "format_version": str(metadata.format_version),
        "run": metadata.run,
        "fingerprint": metadata.fingerprint,
        "plan_id": metadata.plan_id,
        "shard": str(metadata.shard),
        "delivery": metadata.delivery,
        "digest": metadata.digest,
        "taps": json.dumps(metadata.taps),
        "xxh3": metadata.xxh3,
        "sample_ids": json.dumps(metadata.sample_ids),
        "quarantined": json.dumps([{"id": q.id, "reason": q.reason, "detail": q.detail} for q in metadata.quarantined]),
        "made_by": json.dumps(dict(metadata.made_by)),
    }
    header = encode_tensor_header(layout, told)
    if len(header) - 8 > MAX_HEADER_BYTES:
        raise WireError(
            f"a shard header of {len(header) - 8} bytes is over the limit of {MAX_HEADER_BYTES}; use shorter ids"
        )
    return header


def header_length(first_bytes: bytes) -> int:
    """Return how many bytes of a shard file come before its tensors.

    Args:
        first_bytes: the file's first 8 bytes.

    Raises:
        WireError: fewer bytes, or a length that no shard has.
    """
    return tensor_header_length(first_bytes, what="shard", max_header_bytes=MAX_HEADER_BYTES)


def decode_header(header: bytes) -> tuple[ShardLayout, ShardMetadata]:
    """Read what :func:`encode_header` wrote, trusting nothing.

    Args:
        header: the first ``header_length`` bytes of the file.

    Raises:
        WireError: not such a header; tensors missing, foreign, overlapping, with a gap, or whose bytes
            do not fit dtype and shape.
    """
    try:
        layout, told = decode_tensor_header(header)
        metadata = ShardMetadata(
            format_version=_decimal(told["format_version"]),
            run=told["run"],
            fingerprint=told["fingerprint"],
            plan_id=told["plan_id"],
            shard=_decimal(told["shard"]),
            delivery=told["delivery"],
            digest=told["digest"],
            taps=tuple(json.loads(told["taps"])),
            xxh3=told["xxh3"],
            sample_ids=tuple(json.loads(told["sample_ids"])),
            quarantined=tuple(checked(Quarantined(**entry)) for entry in json.loads(told["quarantined"])),
            made_by=json.loads(told["made_by"]),
        )
        checked(metadata)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise WireError(f"shard header is malformed: {error!r}") from error
    if set(layout.tensors) != {"sample_rows", "mask_offsets", "input_ids", "hidden_states", "loss_mask"}:
        raise WireError(f"a shard with the tensors {sorted(layout.tensors)}")
    return layout, metadata


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)
