"""Reading a run: by id, by number, in order, and while it grows."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import hiddenstream
from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.errors import HiddenstreamError
from hiddenstream.run_directory.plan import Plan
from hiddenstream.sample import SampleNotCommitted, SampleQuarantined, UnknownSample
from tests.factories import a_run, a_shard, store_shard, the_states
from tests.run_helpers import commit_shard, with_column

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
