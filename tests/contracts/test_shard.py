"""The shard file: its bytes, an independent reader, and what is refused."""

from __future__ import annotations

import contextlib
import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.shard import (
    MAX_HEADER_BYTES,
    decode_header,
    encode_header,
    header_length,
    sample_tensors,
    shard_layout,
)
from hiddenstream.contracts.tensor_file import ALIGNMENT
from tests.contracts.golden import HEADER_BYTES, LAYOUT, METADATA, SAMPLES, TENSOR_BYTES, a_shard_file
from tests.contracts.strategies import TEXT, damaged, packed_samples


def described() -> dict:
    return json.loads(HEADER_BYTES[8:])


def as_header(content: object) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text


def test_a_shard_has_these_bytes():
    """The file on disk and on the wire may only change together with the format version."""
    assert a_shard_file() == HEADER_BYTES + TENSOR_BYTES


def test_safetensors_itself_reads_it(tmp_path):
    """A shard is a plain safetensors file for every other reader."""
    file = tmp_path / "shard.safetensors"
    file.write_bytes(a_shard_file())

    with safetensors.safe_open(file, "numpy") as opened:
        metadata = opened.metadata()
        rows, mask = opened.get_tensor("sample_rows"), opened.get_tensor("loss_mask")

    assert metadata["shard"] == "3"
    assert rows.tolist() == [[0, 2], [2, 1]]
    assert mask.tolist() == [0, 1]


@given(packed_samples(), st.lists(TEXT, max_size=3), st.dictionaries(TEXT, st.floats(allow_nan=False) | TEXT))
def test_a_header_comes_back_as_it_was(samples, quarantined, made_by):
    """Any ids and facts survive, and the tensors always begin at a multiple of 64."""
    layout = shard_layout(
        samples=len(samples), tokens=samples.tokens.size, mask_values=samples.masks.size, states=(2, 3, "float32")
    )
    metadata = replace(
        METADATA,
        sample_ids=samples.ids,
        quarantined=tuple(Quarantined(id=sample_id, reason="all_zero", detail="é") for sample_id in quarantined),
        made_by=made_by,
    )

    header = encode_header(layout, metadata)

    assert (layout, metadata) == decode_header(header)
    assert (len(header), 0) == (header_length(header), len(header) % ALIGNMENT)
    sizes = {name: place.end - place.begin for name, place in layout.tensors.items()}
    assert all(sizes[name] == len(data) for name, data in sample_tensors(samples).items())


def test_every_tensor_is_aligned_to_its_items():
    """Memory maps give aligned arrays, whatever the counts."""
    for samples, tokens in ((0, 0), (1, 1), (3, 7)):
        layout = shard_layout(samples=samples, tokens=tokens, mask_values=tokens, states=(1, 3, "float32"))
        items = {"I64": 8, "float32": 4, "int64": 8, "int32": 4, "uint8": 1}

        assert all(place.begin % items[place.dtype] == 0 for place in layout.tensors.values())


def test_rows_and_offsets_follow_from_the_samples():
    """Each sample's rows begin where the one before ends; a sample without mask takes no mask values."""
    tensors = sample_tensors(SAMPLES)

    assert np.frombuffer(tensors["sample_rows"], "<i8").tolist() == [0, 2, 2, 1]
    assert np.frombuffer(tensors["mask_offsets"], "<i8").tolist() == [0, 2, 2]


@given(damaged(HEADER_BYTES))
def test_damaged_headers_end_in_a_value_or_a_wire_error(header):
    """Whatever the bytes, no other error."""
    with contextlib.suppress(WireError):
        assert decode_header(header)[0].tensor_bytes >= 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"__metadata__":{}}',
        b"9" * 5000,
    ],
    ids=str,
)
def test_what_is_no_header_is_refused(content):
    """Deep nesting, wrong kinds and numbers without end are wire errors like the rest."""
    with pytest.raises(WireError):
        decode_header(as_header(content[:100_000]))


@pytest.mark.parametrize(
    "value", [None, 3, -1, True, float("inf"), [], {}, "", "-1", "1.5", "٣", "x", "[1]", "[" * 9999]
)
@pytest.mark.parametrize("field", ["shard", "format_version", "taps", "sample_ids", "quarantined", "made_by"])
def test_metadata_of_another_type_is_refused(field, value):
    """Metadata is text that holds what its field says, and nothing is guessed."""
    content = described()
    content["__metadata__"][field] = value

    with pytest.raises(WireError):
        decode_header(as_header(content))


@pytest.mark.parametrize("field", sorted(json.loads(HEADER_BYTES[8:])["__metadata__"]))
def test_missing_metadata_is_refused(field):
    """Every field of the metadata is needed."""
    content = described()
    del content["__metadata__"][field]

    with pytest.raises(WireError):
        decode_header(as_header(content))


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "F64"},
        {"dtype": None},
        {"dtype": []},
        {"shape": [3, 1, 3]},
        {"shape": [3, 1, True]},
        {"shape": [3.0, 1, 2]},
        {"shape": [-3, -1, 2]},
        {"shape": "312"},
        {"shape": None},
        {"shape": [10**400, 10**400]},
        {"data_offsets": [68, 81]},
        {"data_offsets": [67, 79]},
        {"data_offsets": [80, 68]},
        {"data_offsets": [68]},
        {"data_offsets": [68, 80, 92]},
        {"data_offsets": ["68", "80"]},
        {"data_offsets": [float("inf"), float("inf")]},
    ],
    ids=str,
)
def test_a_tensor_that_does_not_lie_where_it_must_is_refused(changed):
    """Shapes that do not fit the bytes, gaps and overlaps never become a layout."""
    content = described()
    content["hidden_states"].update(changed)

    with pytest.raises(WireError):
        decode_header(as_header(content))


def test_missing_and_foreign_tensors_are_refused():
    """A shard has these five tensors and no other."""
    without, foreign = described(), described()
    del without["loss_mask"]
    foreign["positions"] = {"dtype": "U8", "shape": [0], "data_offsets": [82, 82]}

    for content in (without, foreign):
        with pytest.raises(WireError, match="with the tensors"):
            decode_header(as_header(content))


@pytest.mark.parametrize("first", [b"", b"\0" * 7, b"\0" * 8, b"\1" + b"\0" * 7, b"\xff" * 8])
def test_lengths_that_no_shard_has_are_refused(first):
    """A header's length is checked before anything of that length is read."""
    with pytest.raises(WireError):
        header_length(first)


def test_a_header_over_the_limit_is_refused_when_written():
    """What no reader takes is not written."""
    with pytest.raises(WireError, match="use shorter ids"):
        encode_header(LAYOUT, replace(METADATA, sample_ids=("x" * MAX_HEADER_BYTES,)))
