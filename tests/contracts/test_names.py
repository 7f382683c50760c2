"""Taps, batches, and the names and bytes in Redis."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiddenstream.contracts import queue
from hiddenstream.contracts.batches import SampleTooLong, cut_batches
from hiddenstream.contracts.errors import UsageError
from hiddenstream.contracts.sink_api import run_path, shard_path
from hiddenstream.contracts.taps import depths_of, parse_layers, tap_depth


@pytest.mark.parametrize(
    ("text", "blocks", "depths"),
    [
        ("dflash:5", 64, (1, 16, 31, 46, 61)),
        ("dflash:5", 30, (1, 8, 14, 20, 27)),
        ("dflash:1", 64, (32,)),
        ("eagle3", 64, (1, 31, 60)),
        ("all", 3, (0, 1, 2)),
        ("2, block.0,embedding", 4, (-1, 0, 2)),
        ("final,1", 4, (1, 3)),
    ],
)
def test_layers_become_depths_in_order(text, blocks, depths):
    """Presets and lists give taps ascending in depth."""
    assert depths == depths_of(parse_layers(text, num_blocks=blocks))


def test_final_is_the_last_block_kept_once():
    """--final adds the last block, or nothing where it is kept already."""
    assert parse_layers("1", num_blocks=4, keep_final=True) == ("block.1", "block.3")
    assert parse_layers("3", num_blocks=4, keep_final=True) == ("block.3",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "4",
        "-1",
        "--1",
        "1,1",
        "3,final",
        "block.block.1",
        "block.",
        "x",
        "²",
        "9" * 5000,
        "1.5",
        "all,1",
        "dflash:",
        "dflash:0",
        "dflash:x",
        "dflash:4",
        "dflash:999999999",
        "dflash:" + "9" * 5000,
        "eagle3",
    ],
)
def test_layers_that_cannot_be_meant_are_refused(text):
    """Out of range, repeated, unknown or collapsing: refused before anything starts, on a model of 4 blocks."""
    with pytest.raises(UsageError, match="layers"):
        parse_layers(text, num_blocks=4)


@pytest.mark.parametrize("text", ["4", "-1", "block.-1", "block.4", "0,99", "1,1,3", "3,final", "", "one", "1-3"])
def test_a_wrong_layer_is_refused_with_the_valid_range(text):
    """Out of range, negative, repeated, nothing or no number: the message says which blocks there are."""
    with pytest.raises(UsageError, match="0 to 3"):
        parse_layers(text, num_blocks=4)


@given(st.text())
def test_any_layers_end_in_taps_or_a_usage_error(text):
    """Whatever a user writes, no other error."""
    with contextlib.suppress(UsageError):
        assert parse_layers(text, num_blocks=8)


@given(st.text() | st.text(st.characters(categories=["Nd", "No"])).map("block.".__add__))
def test_any_tap_has_a_depth_or_is_refused(tap):
    """Whatever a file names a tap, no other error."""
    with contextlib.suppress(UsageError):
        assert tap_depth(tap) >= -1


@given(st.lists(st.integers(1, 10)))
def test_every_sample_is_in_one_batch_in_order(lengths):
    """Cutting never loses, repeats or reorders a sample, and never goes over the budget."""
    batches = list(cut_batches(lengths, max_token_slots=10))

    assert list(range(len(lengths))) == [place for batch in batches for place in batch]
    assert all(len(batch) * max(lengths[place] for place in batch) <= 10 for batch in batches)


@given(st.lists(st.integers(1, 10), min_size=1))
def test_batches_are_as_full_as_they_come(lengths):
    """No batch could have taken the first sample of the next one."""
    batches = list(cut_batches(lengths, max_token_slots=10))

    for batch, following in itertools.pairwise(batches):
        assert (len(batch) + 1) * max(lengths[place] for place in (*batch, following[0])) > 10


def test_padding_counts_against_the_budget():
    """A long row makes every shorter row in its batch as expensive as itself."""
    assert [range(0, 1), range(1, 2)] == list(cut_batches([6, 1], max_token_slots=10))


def test_a_sample_over_the_budget_is_refused_by_its_place():
    """Nothing is dropped silently."""
    with pytest.raises(SampleTooLong, match="sample 1 has 11 tokens; the token budget is 10"):
        list(cut_batches([1, 11], max_token_slots=10))


def test_names_in_redis_and_on_the_wire_are_these():
    """Producer, worker and sink find each other by these names."""
    name = queue.queue_name("demo-1", "0123456789abcdef")

    assert name == "hiddenstream-demo-1-0123456789abcdef"
    assert queue.job_id(name, 42, "d1") == "hiddenstream-demo-1-0123456789abcdef-000042-d1"
    assert queue.lease_key(name, 42) == "hiddenstream-demo-1-0123456789abcdef:lease:42"
    assert queue.failures_key(name) == "hiddenstream-demo-1-0123456789abcdef:failures"
    assert (run_path("demo-1"), shard_path("demo-1", 42)) == ("/v1/runs/demo-1", "/v1/runs/demo-1/shards/000042")


@given(st.from_regex(queue.RUN_NAME, fullmatch=True), st.integers(0, 10**9), st.from_regex("[a-z0-9]+", fullmatch=True))
def test_a_job_id_names_its_shard(run, shard, delivery):
    """The reconciler tells a shard from its job's id, whatever the run is called."""
    assert shard == queue.shard_of_job(queue.job_id(queue.queue_name(run, "0" * 16), shard, delivery))


@given(st.text() | st.sampled_from(["", "a", "a-b", "a-1-b", "a--1-b", "a-٣٣٣٣٣٣-b", "a-000001-", "-000001-b"]))
def test_any_other_id_is_refused(identifier):
    """An id that is not ours is a ValueError, and nothing else."""
    with pytest.raises(ValueError, match="names no delivery"):
        queue.shard_of_job(identifier)


def test_the_serializer_carries_plain_data_in_these_bytes():
    """RQ's own fields and our payload are msgpack, never pickle."""
    value = ["hiddenstream.extract", None, [b"\0\xff"], {}]

    data = queue.MsgpackSerializer.dumps(value)

    assert bytes.fromhex("94b4") + b"hiddenstream.extract" + bytes.fromhex("c091c40200ff80") == data
    assert value == queue.MsgpackSerializer.loads(data)


@given(st.binary(max_size=64))
def test_hostile_bytes_end_in_data_or_a_value_error(data):
    """What RQ reads from Redis raises nothing else and runs nothing."""
    with contextlib.suppress(ValueError, TypeError):
        queue.MsgpackSerializer.dumps(queue.MsgpackSerializer.loads(data))
