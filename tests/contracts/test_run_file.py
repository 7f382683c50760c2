"""The run file: its bytes, an independent reader, and what is refused."""

from __future__ import annotations

import contextlib
import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import safetensors
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.run_file import (
    MAX_RUN_FILE_HEADER_BYTES,
    RawTensor,
    decode_run_file_header,
    encode_run_file,
    run_file_header_length,
    run_file_misfits,
)
from hiddenstream.contracts.tensor_file import ALIGNMENT, ITEM_BYTES
from hiddenstream.mapped_run_file import decode_run_file
from tests.contracts.golden import RUN_FILE_BYTES, RUN_FILE_FACTS, RUN_FILE_TENSORS
from tests.contracts.strategies import TEXT, damaged
from tests.contracts.test_run import RECORD


def the_file() -> bytes:
    return b"".join(encode_run_file("final_norm", RECORD, RUN_FILE_TENSORS, RUN_FILE_FACTS))


def with_header(change) -> bytes:
    """Return the golden file with a changed header."""
    start = run_file_header_length(RUN_FILE_BYTES)
    described = json.loads(RUN_FILE_BYTES[8:start])
    change(described)
    text = json.dumps(described).encode()
    return struct.pack("<Q", len(text)) + text + RUN_FILE_BYTES[start:]


def test_a_run_file_has_these_bytes():
    """The file on disk and on the wire may only change together with the format version."""
    assert the_file() == RUN_FILE_BYTES


def test_safetensors_itself_reads_it(tmp_path):
    """A run file is a plain safetensors file for every other reader."""
    file = tmp_path / "final_norm.safetensors"
    file.write_bytes(RUN_FILE_BYTES)

    with safetensors.safe_open(file, "numpy") as opened:
        facts, bias = opened.metadata(), opened.get_tensor("bias")

    assert ("final_norm", "é") == (facts["file"], facts["class"])
    assert [0.5, 2.0] == bias.tolist()


def test_a_run_file_comes_back_as_it_was():
    """Arrays have their dtype and shape, facts their text; bfloat16 too."""
    found = decode_run_file("final_norm", RECORD, RUN_FILE_BYTES)

    assert RUN_FILE_FACTS == found.metadata.facts
    assert {"bias": "float32", "weight": "bfloat16"} == {name: str(a.dtype) for name, a in found.arrays.items()}
    assert [1.0, 2.0, 3.0] == found.arrays["weight"].astype(float).tolist()


SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@given(st.dictionaries(TEXT, st.tuples(st.sampled_from(sorted(ITEM_BYTES)), SHAPES), max_size=4), st.data())
def test_any_tensors_and_facts_survive(shapes, data):
    """Whatever is put in comes out, and every tensor lies at a multiple of its item's size."""
    facts = data.draw(st.dictionaries(TEXT, TEXT, max_size=3))
    tensors = {
        name: RawTensor(dtype=dtype, shape=shape, data=bytes(range(int(np.prod(shape)) * ITEM_BYTES[dtype])))
        for name, (dtype, shape) in shapes.items()
    }

    content = b"".join(encode_run_file("heads", RECORD, tensors, facts))

    found = decode_run_file("heads", RECORD, content)
    assert facts == found.metadata.facts
    assert {name: (t.shape, bytes(t.data)) for name, t in tensors.items()} == {
        name: (array.shape, array.tobytes()) for name, array in found.arrays.items()
    }
    start = run_file_header_length(content)
    layout, _ = decode_run_file_header(content[:start])
    assert 0 == start % ALIGNMENT
    assert all(place.begin % ITEM_BYTES[place.dtype] == 0 for place in layout.tensors.values())


@given(damaged(RUN_FILE_BYTES))
def test_damaged_files_end_in_a_value_or_a_wire_error(content):
    """Whatever the bytes, no other error; and only the file as it was made has a value."""
    with contextlib.suppress(WireError):
        found = decode_run_file("final_norm", RECORD, content)
        assert xxhash.xxh3_128_hexdigest(content[run_file_header_length(content) :]) == found.metadata.xxh3


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.pop("__metadata__"),
        lambda told: told["__metadata__"].pop("run"),
        lambda told: told["__metadata__"].update(format_version="one"),
        lambda told: told["__metadata__"].update(format_version="-1"),
        lambda told: told["__metadata__"].update(eps=1e-6),
        lambda told: told.update(__metadata__=[]),
        lambda told: told["bias"].update(dtype="F64"),
        lambda told: told["bias"].update(shape=[3]),
        lambda told: told["bias"].update(shape=[-2]),
        lambda told: told["weight"].update(data_offsets=[4, 10]),
        lambda told: told["weight"].update(data_offsets=[9, 15]),
        lambda told: told.update(bias=None),
    ],
    ids=range(12),
)
def test_what_is_no_run_file_is_refused(change):
    """Facts that are no text, tensors that overlap, leave a gap or do not fill their bytes."""
    with pytest.raises(WireError):
        decode_run_file("final_norm", RECORD, with_header(change))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 8, struct.pack("<Q", MAX_RUN_FILE_HEADER_BYTES + 1), RUN_FILE_BYTES[:-1], RUN_FILE_BYTES + b"\0"],
    ids=["empty", "zeros", "a long header", "cut", "extended"],
)
def test_another_length_is_refused(content):
    """A file that was cut off or grew is not read."""
    with pytest.raises(WireError):
        decode_run_file("final_norm", RECORD, content)


def test_a_flipped_bit_is_found():
    """The checksum covers every byte of the tensors."""
    with pytest.raises(WireError, match="xxh3"):
        decode_run_file("final_norm", RECORD, RUN_FILE_BYTES[:-1] + b"\x41")


def test_another_run_s_file_is_told_by_its_reason():
    """Each disagreement has its reason of the sink's closed list."""
    _, metadata = decode_run_file_header(RUN_FILE_BYTES[: run_file_header_length(RUN_FILE_BYTES)])
    others = {
        "malformed": ("heads", RECORD),
        "wrong_run": ("final_norm", replace(RECORD, run="another")),
        "wrong_fingerprint": (
            "final_norm",
            replace(RECORD, identity=replace(RECORD.identity, hidden_size=RECORD.identity.hidden_size + 1)),
        ),
    }

    assert [] == run_file_misfits(metadata, "final_norm", RECORD)
    assert {reason: [reason] for reason in others} == {
        reason: [found for found, _ in run_file_misfits(metadata, *other)] for reason, other in others.items()
    }


@pytest.mark.parametrize(
    ("name", "tensors", "facts"),
    [
        ("other", {}, {}),
        ("heads", {}, {"run": "mine"}),
        ("heads", {"__metadata__": RawTensor(dtype="uint8", shape=(), data=b"\0")}, {}),
        ("heads", {"w": RawTensor(dtype="float32", shape=(2,), data=b"\0" * 4)}, {}),
    ],
    ids=["name", "fact", "tensor", "bytes"],
)
def test_what_could_not_be_read_back_is_not_written(name, tensors, facts):
    """A mistake of the writer is an error at once."""
    with pytest.raises(ValueError, match=r"run file|does not take"):
        encode_run_file(name, RECORD, tensors, facts)
