"""Reading a run: by id, by number, in order, and while it grows."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

import hiddenstream
from hiddenstream.contracts.errors import HiddenstreamError, RunDirectoryError
from hiddenstream.contracts.run import Quarantined
from hiddenstream.run_directory.plan import Plan
from hiddenstream.sample import SampleNotCommitted, SampleQuarantined, UnknownSample
from tests.factories import a_run, a_shard, store_shard, the_states
from tests.run_helpers import commit_shard, with_column, with_raw_states, with_record

BAD = Quarantined(id="s1", reason="non_finite", detail="NaN in block.2")


@pytest.fixture
def paths(tmp_path):
    return a_run(tmp_path / "run", ((3, 1, 2), (2,), (5, 4)))


def test_a_sample_holds_exactly_what_was_stored(paths):
    """Tokens, mask and states of a sample are its own slice of the shard, bit for bit."""
    store_shard(paths, 0)
    planned = Plan(paths).samples_of(0)
    expected = the_states(planned)[4:6]

    sample = hiddenstream.open(paths.root)["s2"]

    assert (sample.id, sample.taps) == ("s2", ("block.1", "block.2"))
    np.testing.assert_array_equal(planned.tokens[4:6], sample.input_ids)
    np.testing.assert_array_equal(planned.masks[4:6], sample.loss_mask)
    np.testing.assert_array_equal(expected, sample.hidden_states)
    assert (np.int32, np.uint8, np.float32) == (
        sample.input_ids.dtype,
        sample.loss_mask.dtype,
        sample.hidden_states.dtype,
    )


def test_states_are_a_view_of_the_file(paths):
    """Nothing is copied: the states are contiguous, read-only, and own no memory."""
    store_shard(paths, 0)

    states = hiddenstream.open(paths.root)["s0"].hidden_states

    assert (states.flags.owndata, states.flags.writeable, states.flags.c_contiguous) == (False, False, True)
    with pytest.raises(ValueError, match="read-only"):
        states[0, 0, 0] = 1


def test_states_of_one_tap(paths):
    """A tap's states are [S, H], also a view."""
    store_shard(paths, 0)
    sample = hiddenstream.open(paths.root)["s0"]

    states = sample.states_of("block.2")

    np.testing.assert_array_equal(sample.hidden_states[:, 1], states)
    assert np.shares_memory(states, sample.hidden_states)


@pytest.mark.parametrize("tap", ["block.3", "final", "embedding", ""])
def test_a_tap_that_was_not_kept_is_refused(paths, tap):
    """The error names the taps that were kept."""
    store_shard(paths, 0)
    sample = hiddenstream.open(paths.root)["s0"]

    with pytest.raises(KeyError, match=r"block\.1, block\.2"):
        sample.states_of(tap)


def test_final_names_the_last_block(paths):
    """`final` and the last block's output are the same tensor, stored once."""
    with_record(paths, num_blocks=3, keeps_final=True)
    store_shard(paths, 0)
    sample = hiddenstream.open(paths.root)["s0"]

    final = sample.states_of("final")

    np.testing.assert_array_equal(sample.states_of("block.2"), final)


def test_bfloat16_is_read_without_torch(tmp_path):
    """bfloat16 states are ml_dtypes' bfloat16, with the bits that were stored."""
    paths = a_run(tmp_path / "run", ((3, 2),))
    with_record(paths, stored_dtype="bfloat16")
    bits = np.arange(5 * 2 * 4, dtype=np.uint16).reshape(5, 2, 4) + 0x3F80
    commit_shard(paths, with_raw_states(paths, 0, bits.tobytes()))

    states = hiddenstream.open(paths.root)["s1"].hidden_states

    assert np.dtype(ml_dtypes.bfloat16) == states.dtype
    np.testing.assert_array_equal(bits[3:5], states.view(np.uint16))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_torch_view_has_the_same_bits(tmp_path, dtype, recwarn):
    """`torch()` gives a tensor of the stored dtype over the same memory, without a warning."""
    torch = pytest.importorskip("torch")
    paths = a_run(tmp_path / "run", ((3, 2),))
    with_record(paths, stored_dtype=dtype)
    item = 4 if dtype == "float32" else 2
    commit_shard(paths, with_raw_states(paths, 0, bytes(range(1, 41)) * item))
    sample = hiddenstream.open(paths.root)["s1"]

    tensor = sample.torch()

    assert (getattr(torch, dtype), (2, 2, 4)) == (tensor.dtype, tuple(tensor.shape))
    assert sample.hidden_states.tobytes() == tensor.view(torch.uint8).numpy().tobytes()
    assert sample.hidden_states.ctypes.data == tensor.data_ptr()
    assert list(recwarn) == []


def test_a_sample_without_a_mask_has_none(tmp_path):
    """Where the input had no mask there is none, rather than one of zeros."""
    paths = a_run(tmp_path / "run", with_masks=False)
    store_shard(paths, 0)

    assert [sample.loss_mask for sample in hiddenstream.open(paths.root)] == [None, None]


def test_stored_samples_come_in_the_order_of_the_plan(paths):
    """Length, numbers, slices and iteration mean the stored samples, by shard and place, however they committed."""
    store_shard(paths, 2)
    store_shard(paths, 0)

    run = hiddenstream.open(paths.root)

    assert (len(run), run.ids) == (5, ("s0", "s1", "s2", "s3", "s4", "s5"))
    assert [sample.id for sample in run] == ["s0", "s1", "s2", "s4", "s5"]
    assert [run[number].id for number in range(5)] == ["s0", "s1", "s2", "s4", "s5"]
    assert [sample.id for sample in run[2:4]] == ["s2", "s4"]
    assert [sample.id for sample in run[::-2]][:2] == ["s5", "s2"]
    assert run[-1].id == "s5"
    assert ["s4" in run, "s3" in run, 4 in run] == [True, False, False]


@pytest.mark.parametrize("number", [3, -4])
def test_a_number_outside_the_stored_samples_is_refused(paths, number):
    """An index error says how many samples there are."""
    store_shard(paths, 0)

    with pytest.raises(IndexError, match="3 stored"):
        hiddenstream.open(paths.root)[number]


def test_an_absent_sample_says_why(paths):
    """Unknown, not committed and quarantined are told apart, and each is a KeyError and one of ours."""
    commit_shard(paths, a_shard(paths, 0, quarantined=[BAD]))
    run = hiddenstream.open(paths.root)

    with pytest.raises(UnknownSample, match="'nobody' is not planned"):
        run["nobody"]
    with pytest.raises(SampleNotCommitted, match="shard 1 is not stored"):
        run["s3"]
    with pytest.raises(SampleQuarantined, match=r"non_finite \(NaN in block\.2\)") as quarantined:
        run["s1"]
    assert isinstance(quarantined.value, KeyError)
    assert isinstance(quarantined.value, HiddenstreamError)


def test_a_quarantined_sample_moves_nothing_else(paths):
    """The samples after a quarantined one keep their own states, by id and by number."""
    commit_shard(paths, a_shard(paths, 0, quarantined=[BAD]))
    expected = the_states(Plan(paths).samples_of(0))[4:6]

    run = hiddenstream.open(paths.root)

    assert run.quarantined == {"s1": BAD}
    assert "s1" not in run
    np.testing.assert_array_equal(expected, run["s2"].hidden_states)
    np.testing.assert_array_equal(expected, run[1].hidden_states)


def test_a_shard_may_hold_no_sample_at_all(paths):
    """A shard whose every sample is quarantined is stored, counts as complete, and gives nothing."""
    bad = Quarantined(id="s3", reason="all_zero", detail="")
    commit_shard(paths, a_shard(paths, 1, quarantined=[bad]), shard=1)

    run = hiddenstream.open(paths.root)

    assert (len(run), list(run)) == (0, [])
    assert {"s3": bad} == run.quarantined


UNSAFE_IDS = ["../../x", "/abs", "a/b", "", ".", "x" * 300, "\0", "a\nb", "Case", "case", "é\u2028☃", "s.safetensors"]


def test_unsafe_ids_come_back_byte_for_byte(tmp_path):
    """An id is never a path: any text is found again, and nothing is written outside the shards."""
    paths = a_run(tmp_path / "run", ((1,) * len(UNSAFE_IDS),))
    with_column(paths, "id", UNSAFE_IDS)
    store_shard(paths, 0)

    run = hiddenstream.open(paths.root)

    assert [sample.id for sample in run] == UNSAFE_IDS
    assert [run[sample_id].id for sample_id in UNSAFE_IDS] == UNSAFE_IDS
    assert [paths.shard(0)] == [file for file in paths.shards.rglob("*") if file.is_file()]


def test_refresh_shows_what_committed_since(paths):
    """A run shows what was stored when it was last looked at."""
    run = hiddenstream.open(paths.root)
    store_shard(paths, 0)
    before = len(run)

    run.refresh()

    assert (before, len(run), run.is_complete) == (0, 3, False)


def test_following_gives_each_sample_once_until_complete(paths):
    """A follower sees shards as they commit, in whatever order, and ends when the run is complete."""
    store_shard(paths, 1)
    followed = hiddenstream.open(paths.root).follow(poll_seconds=0.01)
    seen = [next(followed).id]
    rest = threading.Thread(target=lambda: seen.extend(sample.id for sample in followed))
    rest.start()

    store_shard(paths, 2)
    store_shard(paths, 0)
    rest.join(timeout=20)

    assert not rest.is_alive()
    assert seen[0] == "s3"
    assert sorted(seen) == ["s0", "s1", "s2", "s3", "s4", "s5"]


def test_following_a_complete_run_ends(paths):
    """A follower of a finished run reads it once in the plan's order."""
    for shard in range(3):
        store_shard(paths, shard)

    assert [s.id for s in hiddenstream.open(paths.root).follow()] == ["s0", "s1", "s2", "s3", "s4", "s5"]


def _cut(data: bytes) -> bytes:
    return data[:-1]


def _flip_header(data: bytes) -> bytes:
    return data.replace(b'"delivery":"a1"', b'"delivery":"a2"')


def _empty(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [_cut, _flip_header, _empty])
def test_a_shard_that_is_not_the_committed_one_is_refused(paths, damage):
    """A truncated or altered file gives an error that names the shard, never a sample."""
    store_shard(paths, 0)
    store_shard(paths, 1)
    file = paths.shard(0)
    file.write_bytes(damage(file.read_bytes()))
    run = hiddenstream.open(paths.root)

    with pytest.raises(RunDirectoryError, match=r"shard 0 .*hiddenstream verify"):
        run["s0"]
    assert run["s3"].id == "s3"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", "other"),
        ("fingerprint", "0" * 16),
        ("plan_id", "0"),
        ("taps", ("block.0", "block.2")),
        ("sample_ids", ("s0", "s2", "s1")),
        ("format_version", 2),
        ("quarantined", (BAD,)),
    ],
)
def test_a_committed_header_that_does_not_fit_the_plan_is_refused(paths, field, value):
    """Even what the ledger vouches for is held against the plan; the error names shard and field."""
    commit_shard(paths, a_shard(paths, 0, **{field: value}), quarantined=())

    with pytest.raises(RunDirectoryError, match="shard 0 "):
        hiddenstream.open(paths.root)[0]


def test_another_shards_file_under_a_shards_name_is_refused(paths):
    """The number in the header must be the number in the name, even where the ledger agrees with the file."""
    commit_shard(paths, a_shard(paths, 1), shard=0)

    with pytest.raises(RunDirectoryError, match=r"shard 0 .*shard is 1, not 0"):
        hiddenstream.open(paths.root)[0]


def test_a_missing_file_is_named(paths):
    """A committed shard whose file is gone is damage, not an absent sample."""
    store_shard(paths, 0)
    paths.shard(0).unlink()

    with pytest.raises(RunDirectoryError, match="shard 0 "):
        hiddenstream.open(paths.root)["s0"]


def test_a_replaced_shard_is_read_by_its_newest_line(paths):
    """A shard that was lost and made again under another delivery is readable."""
    commit_shard(paths, a_shard(paths, 0, delivery="a1"), time="2026-01-01T00:00:00.000Z")
    commit_shard(paths, a_shard(paths, 0, delivery="a2"), time="2026-01-02T00:00:00.000Z", sink="another")

    assert hiddenstream.open(paths.root)["s0"].id == "s0"


@pytest.mark.parametrize("kind", ["absent", "empty folder", "a file", "unplanned ledger", "other plan"])
def test_what_is_no_run_is_refused(tmp_path, paths, kind):
    """Anything that is no run directory ends in one error that names it."""
    if kind == "empty folder":
        (tmp_path / "x").mkdir()
    elif kind == "a file":
        (tmp_path / "x").write_text("{}")
    elif kind == "unplanned ledger":
        store_shard(a_run(tmp_path / "y", ((1,),) * 9), 8)
        os.rename(tmp_path / "y" / "ledger", paths.ledger)
        os.rename(paths.root, tmp_path / "x")
    elif kind == "other plan":
        with_record(paths, shards=9)
        os.rename(paths.root, tmp_path / "x")

    with pytest.raises(RunDirectoryError, match=r"x|shard 8"):
        hiddenstream.open(tmp_path / "x")


def test_a_run_can_be_sent_to_another_process(paths):
    """A data loader's workers open the run for themselves."""
    store_shard(paths, 0)

    copy = pickle.loads(pickle.dumps(hiddenstream.open(paths.root)))

    assert copy["s1"].id == "s1"


def test_reading_loads_no_torch(paths):
    """A machine without torch or transformers can read a run."""
    store_shard(paths, 0)
    script = (
        "import sys, hiddenstream\n"
        "light = 'pyarrow' not in sys.modules\n"
        f"next(iter(hiddenstream.open({str(paths.root)!r})))\n"
        "print(light, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )

    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert output.strip() == "True False False"
