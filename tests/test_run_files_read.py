"""Reading what is stored once per run: the final norm's formula, the heads, and why they may not be there."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

import hiddenstream
from hiddenstream.contracts.errors import RunDirectoryError
from hiddenstream.contracts.run_file import RawTensor, encode_run_file
from hiddenstream.final_norm import FinalNorm
from tests.factories import HIDDEN_SIZE, a_run, a_run_file, store_shard
from tests.run_helpers import with_record

WEIGHT = np.array([1.5, -0.5, 2.0, 0.25], np.float32)
BIAS = np.array([0.1, 0.2, -0.3, 0.0], np.float32)
RMS = {"kind": "rms_norm", "class": "MadeUpNorm", "eps": "1e-05", "weight_offset": "0.0"}


@pytest.fixture
def paths(tmp_path):
    """A stored run whose last block is block.2, kept as `final`."""
    paths = a_run(tmp_path / "run")
    with_record(paths, num_blocks=3, keeps_final=True, keeps_heads=True)
    store_shard(paths, 0)
    return paths


def write(paths, name, arrays, facts):
    tensors = {
        key: RawTensor(dtype=str(array.dtype), shape=array.shape, data=array.tobytes()) for key, array in arrays.items()
    }
    paths.run_file(name).write_bytes(b"".join(encode_run_file(name, paths.read_record(), tensors, facts)))


def exact(rows, *, center=False, eps=1e-5, weight=1.0, bias=0.0):
    """The formula in float64."""
    rows = rows.astype(np.float64)
    rows = rows - rows.mean(1, keepdims=True) if center else rows
    return rows / np.sqrt((rows**2).mean(1, keepdims=True) + eps) * weight + bias


@pytest.mark.parametrize(
    ("facts", "arrays", "expected"),
    [
        ({}, {"weight": WEIGHT}, {"weight": WEIGHT}),
        ({"weight_offset": "1.0"}, {"weight": WEIGHT}, {"weight": 1 + WEIGHT}),
        ({"eps": "0.5"}, {}, {"eps": 0.5}),
        ({}, {"weight": WEIGHT.astype(ml_dtypes.bfloat16)}, {"weight": WEIGHT}),
        ({"kind": "layer_norm"}, {"weight": WEIGHT, "bias": BIAS}, {"center": True, "weight": WEIGHT, "bias": BIAS}),
        ({"kind": "layer_norm"}, {}, {"center": True}),
    ],
    ids=["weight", "1 + weight", "eps", "bfloat16 weight", "layer norm", "bare layer norm"],
)
def test_the_last_states_are_normed_as_the_file_says(paths, facts, arrays, expected):
    """Each formula, in float32, on the states as they are stored."""
    write(paths, "final_norm", arrays, RMS | facts)
    sample = hiddenstream.open(paths.root)["s0"]

    normed = sample.final_normed()

    assert np.float32 == normed.dtype
    np.testing.assert_allclose(normed, exact(sample.states_of("final"), **expected), rtol=2e-6, atol=2e-6)


def test_a_model_without_a_final_norm_gives_its_last_states(paths):
    """The kind `none` changes nothing, and gives a copy that may be written to."""
    write(paths, "final_norm", {}, RMS | {"kind": "none", "class": ""})
    sample = hiddenstream.open(paths.root)["s0"]

    normed = sample.final_normed()
    np.testing.assert_array_equal(sample.states_of("final"), normed)
    normed[:] = 0

    assert sample.states_of("final").any()


def test_stored_bfloat16_is_normed_in_float32():
    """The norm of bfloat16 states is float32, and as exact as the stored values allow."""
    states = np.random.default_rng(0).standard_normal((5, HIDDEN_SIZE)).astype(ml_dtypes.bfloat16)
    norm = FinalNorm(kind="rms_norm", class_name="", eps=1e-5, weight_offset=0.0, weight=WEIGHT, bias=None)

    normed = norm.apply(states)

    assert np.float32 == normed.dtype
    np.testing.assert_allclose(normed, exact(states.astype(np.float64), weight=WEIGHT), rtol=2e-6)


def test_a_sample_of_a_growing_run_finds_the_norm_once_it_is_there(paths):
    """A run that was opened before its first worker does not have to be opened again."""
    sample = hiddenstream.open(paths.root)["s0"]
    with pytest.raises(RunDirectoryError, match=r"final_norm\.safetensors is not there.*--final"):
        sample.final_normed()

    write(paths, "final_norm", {"weight": WEIGHT}, RMS)

    assert (3, HIDDEN_SIZE) == sample.final_normed().shape


def test_a_run_that_did_not_keep_the_last_block_says_so(tmp_path):
    """The norm alone is no help."""
    paths = a_run(tmp_path / "run")
    store_shard(paths, 0)
    write(paths, "final_norm", {}, RMS)

    with pytest.raises(KeyError, match="final was not kept"):
        hiddenstream.open(paths.root)["s0"].final_normed()


@pytest.mark.parametrize(
    "facts",
    [{"kind": "batch_norm"}, {"eps": "small"}, {"eps": "nan"}, {"weight_offset": "2"}, {"kind": None}],
    ids=str,
)
def test_a_norm_that_makes_no_sense_is_refused(paths, facts):
    """An unknown kind or a missing number is damage, not a guess."""
    told = {key: value for key, value in (RMS | facts).items() if value is not None}
    write(paths, "final_norm", {}, told)

    with pytest.raises(RunDirectoryError, match="final_norm is malformed"):
        hiddenstream.open(paths.root).final_norm()


def test_a_damaged_file_is_refused(paths):
    """A cut file is not read, and the error names verify."""
    paths.run_file("final_norm").write_bytes(b"".join(a_run_file(paths, "final_norm"))[:-1])

    with pytest.raises(RunDirectoryError, match="hiddenstream verify"):
        hiddenstream.open(paths.root).final_norm()


def test_a_sample_with_its_norm_can_be_sent_to_another_process(paths):
    """Data loaders pickle what they hand over."""
    write(paths, "final_norm", {"weight": WEIGHT}, RMS)
    sample = hiddenstream.open(paths.root)["s0"]

    np.testing.assert_array_equal(sample.final_normed(), pickle.loads(pickle.dumps(sample)).final_normed())


EMBEDDING = np.arange(12, dtype=np.float32).reshape(3, 4)
HEADS = {"is_tied": "false", "class": "MadeUpForCausalLM", "settings": '{"logit_scale": 0.5}'}


def test_heads_are_views_of_the_file(paths):
    """Embedding, head and bias come as they were stored, mapped and read-only, with the model's settings."""
    arrays = {"embed_tokens.weight": EMBEDDING, "lm_head.weight": EMBEDDING + 1, "lm_head.bias": np.ones(3, np.float32)}
    write(paths, "heads", arrays, HEADS)

    heads = hiddenstream.open(paths.root).heads()

    np.testing.assert_array_equal(EMBEDDING, heads.embed_tokens)
    np.testing.assert_array_equal(EMBEDDING + 1, heads.lm_head)
    np.testing.assert_array_equal(np.ones(3), heads.lm_head_bias)
    assert (False, {"logit_scale": 0.5}, "MadeUpForCausalLM") == (heads.is_tied, heads.settings, heads.class_name)
    assert not heads.embed_tokens.flags.writeable
    assert not heads.embed_tokens.flags.owndata


def test_tied_heads_are_one_array(paths):
    """A weight that is used twice is stored once and given twice."""
    write(paths, "heads", {"embed_tokens.weight": EMBEDDING}, HEADS | {"is_tied": "true"})

    heads = hiddenstream.open(paths.root).heads()

    assert heads.lm_head is heads.embed_tokens
    assert heads.is_tied
    assert heads.lm_head_bias is None


@pytest.mark.parametrize(
    "facts",
    [{}, {"is_tied": "1"}, {"is_tied": "maybe"}, {"settings": "[]", "is_tied": "true"}, {"settings": "["}],
    ids=["no head", "number", "no JSON", "list", "half"],
)
def test_heads_that_make_no_sense_are_refused(paths, facts):
    """A head that is missing is not guessed to be tied."""
    write(paths, "heads", {"embed_tokens.weight": EMBEDDING}, HEADS | facts)

    with pytest.raises(RunDirectoryError, match="heads is malformed"):
        hiddenstream.open(paths.root).heads()


def test_heads_that_were_not_asked_for_are_not_there(paths):
    """The error names the flag."""
    with pytest.raises(RunDirectoryError, match="--heads"):
        hiddenstream.open(paths.root).heads()
