"""A multimodal checkpoint gives the states of its text backbone, with the towers never read."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForImageTextToText

from bench.zoo_models import BLOCKS, IMAGE_TOKEN, WRAPPERS, save_model
from gpu_worker.backbone import find_blocks
from gpu_worker.recompute import load_plain, plain_states
from tests.gpu_worker.made import a_planned_run, forward_of, loaded, token_rows

TAPS = ("embedding", "block.0", "block.2")
RUNS_WHOLE = [name for name in WRAPPERS if name != "llama4"]  # whose wrapper fails on text alone in transformers 5.24
ROWS = [*token_rows([3, 17, 1, 9, 30]), np.array([5, IMAGE_TOKEN, 9, IMAGE_TOKEN, 7], np.int32)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return {name: save_model(name, tmp_path_factory.mktemp(name)) for name in WRAPPERS}


def hidden_states_of(folder):
    """Return how the whole wrapper computes the states of one sample, as anybody would."""
    wrapper = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def states(row):
        ids = torch.from_numpy(row.astype(np.int64))[None]
        hidden = wrapper(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        return np.stack([hidden[depth][0].double().numpy() for depth in (0, 1, 3)], axis=1)

    return states


@pytest.mark.parametrize("name", RUNS_WHOLE)
def test_states_equal_the_whole_wrapper(name, checkpoints, tmp_path):
    """Embedding and blocks of every sample equal the wrapper's, also where a text holds the image token's id."""
    record = a_planned_run(tmp_path, checkpoints[name], taps=TAPS).read_record()
    states_of = hidden_states_of(checkpoints[name])

    found = forward_of(loaded(record), record).run(ROWS).hidden_NKD.double().numpy()

    assert np.abs(found - np.concatenate([states_of(row) for row in ROWS])).max() <= 1e-4


@pytest.mark.parametrize("name", RUNS_WHOLE)
def test_the_oracle_takes_the_text_blocks(name, checkpoints):
    """The recomputing model gives the wrapper's states, though its vision tower is as deep and comes first."""
    states_of = hidden_states_of(checkpoints[name])
    plain = load_plain(str(checkpoints[name]), None, "float32")

    found = plain_states(plain, ROWS[1], TAPS)

    assert np.abs(np.stack([found[tap] for tap in TAPS], axis=1) - states_of(ROWS[1])).max() <= 1e-4


@pytest.mark.parametrize("name", WRAPPERS)
def test_towers_and_blocks_above_are_not_read(name, checkpoints, tmp_path):
    """A checkpoint without towers, projectors, head and blocks above the last tap serves as well as a whole one."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes((checkpoints[name] / "config.json").read_bytes())
    weights = load_file(checkpoints[name] / "model.safetensors")
    kept = re.compile(r"(^|\.)(embed_tokens\.|layers\.[0-2]\.|norm\.weight)")
    towers = re.compile(r"vis|project|lm_head")
    text = {key: weight for key, weight in weights.items() if kept.search(key) and not towers.search(key)}
    save_file(text, folder / "model.safetensors", {"format": "pt"})
    record = a_planned_run(tmp_path, folder, taps=TAPS).read_record()

    model = loaded(record)

    assert len(text) < len(weights)
    assert 3 == len(model.blocks)
    assert model.blocks is find_blocks(model.backbone, 3)
    assert not [key for key, _ in model.backbone.named_parameters() if "visual" in key or "vision" in key]


def test_weights_for_predicting_several_tokens_are_passed_over(checkpoints, tmp_path):
    """Real checkpoints of Qwen3.5 hold a block more, for drafting, which transformers ignores."""
    folder = shutil.copytree(checkpoints["qwen3_5"], tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "mtp.fc.weight": torch.ones(64, 128)}, folder / "model.safetensors", {"format": "pt"})
    record = a_planned_run(tmp_path, folder, taps=TAPS).read_record()

    assert 3 == len(loaded(record).blocks)


def test_towers_are_as_deep_as_the_text(checkpoints):
    """The tests of this file would catch a vision tower that is taken for the text: each has as many blocks."""
    lists = {}
    for name, folder in checkpoints.items():
        wrapper = AutoModelForImageTextToText.from_pretrained(folder)
        lists[name] = sum(isinstance(m, nn.ModuleList) and len(m) == BLOCKS for m in wrapper.modules())

    assert dict.fromkeys(WRAPPERS, 2) == lists
