"""One sample: its taps, its dtypes, its torch view."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import hiddenstream
from tests.factories import a_run, store_shard
from tests.run_helpers import commit_shard, with_raw_states, with_record


@pytest.fixture
def paths(tmp_path):
    return a_run(tmp_path / "run", ((3, 1, 2), (2,), (5, 4)))


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
