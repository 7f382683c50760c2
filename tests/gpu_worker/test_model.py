"""A loaded and cut backbone gives what plain transformers gives."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from gpu_worker.backbone import find_blocks
from gpu_worker.model import choose_device
from gpu_worker.recompute import load_plain, plain_states
from hiddenstream.contracts.errors import ModelError
from tests.gpu_worker.made import EVERY_TAP, a_planned_run, forward_of, loaded, token_rows
from tests.run_helpers import with_record
from tests.tiny import save_tiny_model

FAMILIES = ("llama", "qwen3", "qwen3_5_text", "gpt2", "falcon", "gemma2")
BATCHES = {
    "mixed": token_rows([3, 17, 1, 9, 9, 30]),
    "equal": token_rows([12] * 5),
    "alone": token_rows([7]),
    "padding id inside": [np.array(row, np.int32) for row in ([5, 0, 0, 9], [0], [3, 0], [0, 7, 0, 0, 1, 0])],
}


def worst_difference(forward, plain, rows, taps):
    """Return the largest difference of one value between a batch's states and its rows run alone."""
    states = forward.run(rows).hidden_NKD.double().numpy()
    expected = [plain_states(plain, row, taps) for row in rows]
    alone = np.concatenate([np.stack([one[tap] for tap in taps], axis=1) for one in expected])
    assert alone.shape == states.shape
    return np.abs(alone - states).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_states_equal_plain_transformers(family, tiny_model, tmp_path):
    """Embedding, middle blocks and the raw last block of any batch equal each row run alone, in every family."""
    model = tiny_model(family)
    record = a_planned_run(tmp_path, model).read_record()
    forward, plain = forward_of(loaded(record), record), load_plain(str(model), None, "float32")

    differences = {name: worst_difference(forward, plain, rows, EVERY_TAP) for name, rows in BATCHES.items()}

    assert [] == [name for name, difference in differences.items() if not difference <= 1e-4]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cut_model_gives_the_same_states(family, tiny_model, tmp_path):
    """What lies above the last tap is neither held nor needed."""
    model = tiny_model(family)
    taps = ("block.0", "block.2")
    record = a_planned_run(tmp_path, model, taps=taps).read_record()
    cut, plain = loaded(record), load_plain(str(model), None, "float32")

    difference = worst_difference(forward_of(cut, record), plain, BATCHES["mixed"], taps)

    names = {name for name, _ in cut.backbone.named_parameters()}
    numbers = {int(found[1]) for name in names if (found := re.search(r"\.?(?:layers|h)\.(\d+)\.", name))}
    assert {0, 1, 2} == numbers
    assert 3 == len(cut.blocks)
    assert not any("lm_head" in name for name in names)
    assert difference <= 1e-4


def test_weights_above_the_last_tap_are_not_read(tiny_model, tmp_path):
    """A checkpoint without the weights of the blocks above the last tap serves as well as a whole one."""
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    above = re.compile(r"layers\.[34]\.|lm_head")
    save_file({k: v for k, v in weights.items() if not above.search(k)}, folder / "model.safetensors", {"format": "pt"})
    record = a_planned_run(tmp_path, folder, taps=("block.2",)).read_record()

    assert 3 == len(loaded(record).blocks)


def test_a_run_of_the_embedding_alone_holds_one_block(tiny_model, tmp_path):
    """The embedding is what enters block 0, so block 0 is the last that is needed."""
    record = a_planned_run(tmp_path, tiny_model("llama"), taps=("embedding",)).read_record()
    model = loaded(record)

    difference = worst_difference(
        forward_of(model, record), load_plain(record.model, None, "float32"), BATCHES["mixed"], ("embedding",)
    )

    assert 1 == len(model.blocks)
    assert difference <= 1e-4


@pytest.mark.parametrize("is_cache_on", [True, False])
def test_the_configured_cache_changes_nothing(is_cache_on, tmp_path):
    """Whether the model's configuration asks for a cache is of no account."""
    model = save_tiny_model("llama", tmp_path / "model", use_cache=is_cache_on)
    record = a_planned_run(tmp_path, model).read_record()

    plain = load_plain(str(model), None, "float32")
    difference = worst_difference(forward_of(loaded(record), record), plain, BATCHES["mixed"], EVERY_TAP)

    assert difference <= 1e-4


def test_a_missing_weight_is_named(tiny_model, tmp_path):
    """A checkpoint without a weight that is needed is refused; random numbers would take its place."""
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    record = a_planned_run(tmp_path, folder).read_record()

    with pytest.raises(ModelError, match=r"lack 1 weights .*layers\.1\.mlp\.up_proj\.weight"):
        loaded(record)


@pytest.mark.parametrize("changed", [{"vocab_size": 130}, {"intermediate_size": 80}])
def test_weights_of_another_shape_are_refused(changed, tiny_model, tmp_path):
    """A configuration that does not fit its weights is refused before any work."""
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changed}))
    record = a_planned_run(tmp_path, folder).read_record()

    with pytest.raises(ModelError, match="--model"):
        loaded(record)


def test_a_model_of_another_width_is_refused(tiny_model, tmp_path):
    """States of another width than the run's are refused when the model is loaded, naming the tap and both shapes."""
    paths = a_planned_run(tmp_path, tiny_model("llama"))
    with_record(paths, hidden_size=32)

    with pytest.raises(ModelError, match=r"embedding has shape \(1, \d+, 64\); expected \(1, \d+, 32\)"):
        loaded(paths.read_record())


@pytest.mark.parametrize(("stored", "asked"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_the_asked_dtype_is_loaded(stored, asked, tiny_model, tmp_path):
    """The checkpoint's own dtype is of no account; states come in the dtype that is to be stored."""
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    weights = {k: v.to(getattr(torch, stored)) for k, v in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": stored}))
    record = a_planned_run(tmp_path, folder, compute_dtype=asked, stored_dtype="float16").read_record()

    model = loaded(record)

    assert {getattr(torch, asked)} == {parameter.dtype for parameter in model.backbone.parameters()}
    assert torch.float16 == forward_of(model, record).run(BATCHES["alone"]).hidden_NKD.dtype


@pytest.mark.parametrize("name", ["tpu-of-mine", "cuda:999", ""])
def test_a_device_that_is_not_here_is_refused(name):
    """The error names the flag and what was given."""
    with pytest.raises(ModelError, match=f"--device {name}"):
        choose_device(name)


def test_the_cpu_is_always_there():
    """A device that is here is taken as named."""
    assert torch.device("cpu") == choose_device("cpu")


def test_two_lists_of_blocks_are_refused():
    """Where a model has two lists of as many blocks, neither is guessed."""
    towers = nn.ModuleDict({name: nn.ModuleList(nn.Linear(1, 1) for _ in range(4)) for name in ("vision", "text")})

    with pytest.raises(ModelError, match="has 2 lists of 4 blocks"):
        find_blocks(towers, 4)


def test_no_list_of_blocks_is_refused():
    """A model without a list of as many blocks as its configuration says is refused."""
    with pytest.raises(ModelError, match="has 0 lists of 4 blocks"):
        find_blocks(nn.Sequential(nn.Linear(1, 1)), 4)


def test_a_list_inside_a_block_is_not_taken_for_the_blocks():
    """The outermost of nested lists is the list of blocks."""
    blocks = nn.ModuleList(nn.ModuleDict({"experts": nn.ModuleList([nn.Identity()] * 2)}) for _ in range(2))

    assert blocks is find_blocks(nn.ModuleDict({"layers": blocks}), 2)
