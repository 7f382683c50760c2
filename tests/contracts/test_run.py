"""The run's record, its fingerprint, and the lines of its ledger."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, replace

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hiddenstream.contracts.commit import CommitLine, Quarantined
from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.run import DataSource, PlanSettings, RunIdentity, RunRecord
from tests.contracts.golden import COMMIT, COMMIT_BYTES
from tests.contracts.strategies import TEXT, damaged

IDENTITY = RunIdentity(
    format_version=1,
    model_digest="hub:abc",
    taps=("embedding", "block.1"),
    hidden_size=8,
    compute_dtype="bfloat16",
    stored_dtype="float16",
    plan_id="p",
)
RECORD = RunRecord(
    run="r",
    identity=IDENTITY,
    model="m",
    revision=None,
    num_blocks=4,
    keeps_final=False,
    settings=PlanSettings(max_length=9, over_long="reject", token_budget=64, shard_bytes=1024, is_strict=False),
    sources=(DataSource(name="data.jsonl", size_bytes=7, xxh3="0"),),
    shards=1,
    samples=2,
    tokens=3,
    longest_tokens=3,
    rejected={"no_tokens": 4},
    merged=5,
    truncated=0,
    without_mask=1,
    token_slots=4,
    planning_seconds=0.5,
    created="2026-01-01T00:00:00.000Z",
)
RECORD_TEXT = RECORD.to_json()


def test_this_identity_has_this_fingerprint():
    """Fingerprints name queues and stored runs, so the way they are made may never change."""
    assert IDENTITY.fingerprint == "6917a092f494a504"


@pytest.mark.parametrize(
    "changed",
    [
        {"format_version": 2},
        {"model_digest": "hub:abd"},
        {"taps": ("block.1", "embedding")},
        {"hidden_size": 9},
        {"compute_dtype": "float32"},
        {"stored_dtype": "bfloat16"},
        {"plan_id": "q"},
    ],
)
def test_every_field_of_the_identity_counts(changed):
    """Another model, layers, dtype or plan is another run, and the difference is named."""
    other = replace(IDENTITY, **changed)

    assert IDENTITY.fingerprint != other.fingerprint
    (line,) = IDENTITY.differences(other)
    assert line.startswith(next(iter(changed)))


def test_the_record_adds_up_and_comes_back():
    """Input rows are planned + rejected + merged; the record survives its file."""
    assert RECORD.input_rows == 2 + 4 + 5
    assert RunRecord.from_json(RECORD_TEXT) == RECORD


@given(damaged(RECORD_TEXT.encode()))
def test_damaged_records_end_in_a_record_or_a_wire_error(text):
    """Whatever run.json holds, no other error, and what is read can be used."""
    try:
        record = RunRecord.from_json(text)
    except WireError:
        return
    assert record.input_rows + record.identity.bytes_per_token >= 0


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("samples", "2"),
        ("samples", -1),
        ("samples", 2.0),
        ("samples", True),
        ("keeps_final", 0),
        ("keeps_heads", "yes"),
        ("rejected", {"no_tokens": "4"}),
        ("rejected", []),
        ("planning_seconds", float("nan")),
        ("settings", {}),
        ("settings", {**asdict(RECORD.settings), "max_length": "9"}),
        ("sources", [{}]),
        ("sources", None),
        ("identity", {**asdict(IDENTITY), "stored_dtype": "float8"}),
        ("identity", {**asdict(IDENTITY), "taps": [1]}),
        ("identity", {**asdict(IDENTITY), "hidden_size": 10**30}),
        ("identity", []),
        ("extra", 1),
        ("fingerprint", "0"),
    ],
)
def test_a_record_with_a_field_of_another_type_is_refused(path, value):
    """A record that exists holds what its fields say."""
    with pytest.raises(WireError):
        RunRecord.from_json(json.dumps({**json.loads(RECORD_TEXT), path: value}))


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, '{"identity":{"format_version":2}}', b"\xff"])
def test_what_is_no_record_is_refused(text):
    """Other JSON, endless nesting and other format versions are wire errors."""
    with pytest.raises(WireError):
        RunRecord.from_json(text)


def test_a_ledger_line_has_these_bytes():
    """What is on disk must stay readable."""
    assert COMMIT.to_line() == COMMIT_BYTES


@given(st.integers(0, 2**62), TEXT, TEXT, st.dictionaries(TEXT, TEXT | st.integers(0, 9)), st.floats(0, 1e9))
def test_a_commit_comes_back_from_one_line(shard, sample_id, detail, made_by, seconds):
    """Any text in it survives, and never breaks the line in two."""
    bad = Quarantined(id=sample_id, reason="non_finite", detail=detail)
    commit = replace(COMMIT, shard=shard, quarantined=(bad,), made_by=made_by, fsync_seconds=seconds)

    line = commit.to_line()

    assert commit == CommitLine.from_line(line)
    assert [line] == line.splitlines(keepends=True)


@given(damaged(COMMIT_BYTES))
def test_no_damage_to_a_line_goes_unseen(line):
    """A line is the one that was written, or a wire error: its check covers every byte."""
    with contextlib.suppress(WireError):
        assert CommitLine.from_line(line) == COMMIT


def test_no_bit_of_a_line_can_change_unseen():
    """A digit that becomes another digit still gives valid JSON; the check tells."""
    for place in range(len(COMMIT_BYTES) - 1):
        for bit in range(8):
            line = bytearray(COMMIT_BYTES)
            line[place] ^= 1 << bit

            with pytest.raises(WireError):
                CommitLine.from_line(bytes(line))


def with_check(body: bytes) -> bytes:
    return body[:-1] + f',"check":"{xxhash.xxh3_64_hexdigest(body)}"}}\n'.encode()


@pytest.mark.parametrize(
    "changed",
    [
        {"shard": "3"},
        {"shard": -3},
        {"samples": None},
        {"made_by": []},
        {"quarantined": [{"id": "b"}]},
        {"quarantined": [{"id": 1, "reason": "x", "detail": ""}]},
        {"quarantined": 5},
        {"receive_seconds": float("inf")},
        {"time": "yesterday"},
        {"time": "2026-01-01T00:00:00"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_line_with_a_right_check_is_still_held_to_its_types(changed):
    """Who can write to the ledger still cannot make a reader fail otherwise."""
    body = {**json.loads(COMMIT_BYTES), **changed}
    del body["check"]

    with pytest.raises(WireError):
        CommitLine.from_line(with_check(json.dumps(body).encode()))


@pytest.mark.parametrize("body", [b"[]", b"{}", b"[" * 100_000 + b"}", b'"}'])
def test_other_json_with_a_right_check_is_refused(body):
    """Endless nesting included."""
    with pytest.raises(WireError):
        CommitLine.from_line(with_check(body))
