"""Whether a shard is what the plan asks for, by its header alone. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.run import FORMAT_VERSION, RunRecord
from hiddenstream.contracts.samples import PackedSamples
from hiddenstream.contracts.shard import (
    MAX_HEADER_BYTES,
    ShardLayout,
    ShardMetadata,
    decode_header,
    shard_layout,
)
from sink.refusals import ShardRefused

_MAX_SHOWN_CHARACTERS = 200  # of a value from outside, in a message


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedShard:
    """What the plan says of one shard."""

    record: RunRecord
    shard: int
    samples: PackedSamples

    def layout_of(self, stored: PackedSamples) -> ShardLayout:
        """Return the layout of a file that holds *stored*."""
        identity = self.record.identity
        return shard_layout(
            samples=len(stored),
            tokens=stored.tokens.size,
            mask_values=stored.masks.size,
            states=(len(identity.taps), identity.hidden_size, identity.stored_dtype),
        )

    @property
    def max_file_bytes(self) -> int:
        """What no acceptable file of this shard exceeds; quarantined samples only make it smaller."""
        return 8 + MAX_HEADER_BYTES + self.layout_of(self.samples).tensor_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdmittedShard:
    """A shard whose header fits the plan.

    Attributes:
        stored: the planned samples that it holds.
        header_bytes: where its tensors begin.
        header_xxh3: xxh3-128 of everything before them.
    """

    metadata: ShardMetadata
    layout: ShardLayout
    stored: PackedSamples
    header_bytes: int
    header_xxh3: str

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.header_bytes + self.layout.tensor_bytes


def admit_header(header: bytes, planned: PlannedShard, *, file_bytes: int) -> AdmittedShard:
    """Check a shard's header against the plan.

    Args:
        header: everything that comes before the tensors.
        file_bytes: size of the whole file as announced or found.

    Raises:
        ShardRefused: the first thing that does not fit, with both values.
    """
    try:
        layout, metadata = decode_header(header)
    except WireError as error:
        raise ShardRefused("malformed", _short(str(error))) from error
    _check_identity(metadata, planned)
    stored = _stored_samples(metadata, planned.samples)
    _check_layout(layout, planned.layout_of(stored))
    _check("wrong_length", "bytes of header and tensors", len(header) + layout.tensor_bytes, file_bytes)
    return AdmittedShard(
        metadata=metadata,
        layout=layout,
        stored=stored,
        header_bytes=len(header),
        header_xxh3=xxhash.xxh3_128_hexdigest(header),
    )


def _check_identity(metadata: ShardMetadata, planned: PlannedShard) -> None:
    record, identity = planned.record, planned.record.identity
    _check("wrong_run", "run", record.run, metadata.run)
    _check("wrong_fingerprint", "format version", FORMAT_VERSION, metadata.format_version)
    _check("wrong_taps", "taps", identity.taps, metadata.taps)
    _check("wrong_fingerprint", "plan", identity.plan_id, metadata.plan_id)
    _check("wrong_fingerprint", "fingerprint", identity.fingerprint, metadata.fingerprint)
    _check("wrong_samples", "number of the shard", planned.shard, metadata.shard)
    _check("wrong_digest", "digest of the shard's samples", planned.samples.digest(), metadata.digest)


def _stored_samples(metadata: ShardMetadata, planned: PackedSamples) -> PackedSamples:
    left_out = {entry.id for entry in metadata.quarantined}
    if len(left_out) != len(metadata.quarantined):
        raise ShardRefused("wrong_samples", f"{len(metadata.quarantined)} quarantined samples, some named twice")
    foreign = left_out.difference(planned.ids)
    if foreign:
        raise ShardRefused("wrong_samples", f"quarantined but not planned: {_short(repr(min(foreign)))}")
    places = [place for place, sample_id in enumerate(planned.ids) if sample_id not in left_out]
    _check("wrong_samples", "number of stored samples", len(places), len(metadata.sample_ids))
    for place, found in zip(places, metadata.sample_ids, strict=True):
        _check("wrong_samples", f"sample in place {place}", planned.ids[place], found)
    return planned.take(places)


def _check_layout(found: ShardLayout, expected: ShardLayout) -> None:
    for name, place in expected.tensors.items():
        other = found.tensors[name]
        _check("wrong_shape", f"dtype and shape of {name}", (place.dtype, place.shape), (other.dtype, other.shape))
        _check("wrong_shape", f"offset of {name}", place.begin, other.begin)


def _check(reason: str, what: str, expected: object, found: object) -> None:
    if expected != found:
        raise ShardRefused(reason, f"{what}: the run has {_short(repr(expected))}, the shard has {_short(repr(found))}")


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "…"
