"""A model that was put back gives what it gave when it was loaded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModel

from bench.zoo_models import save_model
from gpu_worker.fresh_state import FreshState
from gpu_worker.recompute import load_plain, plain_states
from tests.gpu_worker.made import token_rows

SHORT, LONG = token_rows([33, 90])  # 32 is the original length of the zoo's dynamic rope


class Keeper(nn.Module):
    """Keeps state in every way that is put back."""

    def __init__(self):
        super().__init__()
        self.register_buffer("written", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("filled_later", None)
        self.tensor, self.number, self.nothing, self.is_warm = torch.zeros(2), 1, None, False
        self.text, self.pair, self.held, self.by_name = "a", (1, 2), [1], {"a": torch.zeros(1)}
        self.gone = 3

    def spoil(self):
        self.written += 1
        self.register_buffer("replaced", torch.ones(3))
        self.register_buffer("filled_later", torch.ones(1))
        self.register_buffer("added_buffer", torch.ones(1))
        self.tensor.add_(1)
        self.number, self.nothing, self.is_warm = 2, torch.ones(1), True
        self.text, self.pair, self.added = "b", (3,), "new"
        self.held.append(2)
        self.by_name["a"] = torch.ones(1)
        del self.gone


def shown(module):
    """Return buffers and attributes, tensors as lists."""
    values = {**module._buffers, **{k: v for k, v in vars(module).items() if not k.startswith("_")}}
    return {k: v.tolist() if isinstance(v, torch.Tensor) else repr(v) for k, v in values.items()}


@pytest.mark.parametrize("is_inference", [True, False])
def test_every_kind_of_state_is_put_back(is_inference):
    """Buffers and attributes are put back, in submodules too; what was added is gone; a second time nothing is done."""
    module = nn.Sequential(nn.Linear(1, 1), Keeper())
    before, fresh = shown(module[1]), FreshState(module)

    with torch.inference_mode(is_inference):
        module[1].spoil()
    spoilt, restored, again = shown(module[1]), fresh.restore(), fresh.restore()

    assert before != spoilt
    assert before == shown(module[1])
    assert (14, 0) == (restored, again)


def test_parameters_and_modules_are_left_alone():
    """A weight that was loaded later, or a block that was cut away, is no state of a forward pass."""
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    fresh = FreshState(module)

    nn.init.constant_(module[0].weight, 7)
    del module[1]

    assert 0 == fresh.restore()
    assert (7, 1) == (module[0].weight.item(), len(module))


@torch.inference_mode()
def states_of(model, row):
    return model(input_ids=torch.from_numpy(row.astype(np.int64))[None], use_cache=False).last_hidden_state


@pytest.mark.parametrize("name", ["llama+dynamic-rope", "phi3+longrope"])
def test_rope_that_depends_on_what_ran_before(name, tmp_path):
    """A short sample after a long one gives what it gave at first, bit for bit, once the model is put back."""
    model = AutoModel.from_pretrained(save_model(name, tmp_path / "model")).eval()
    fresh = FreshState(model)
    at_first = states_of(model, SHORT)
    states_of(model, LONG)
    after_long = states_of(model, SHORT)

    fresh.restore()

    assert (name == "llama+dynamic-rope") == (float((after_long - at_first).abs().max()) > 0.01)
    assert torch.equal(at_first, states_of(model, SHORT))


def test_the_oracle_runs_every_sample_on_a_fresh_state(tmp_path):
    """What it says of a sample does not depend on the samples that it was asked for before."""
    plain = load_plain(str(save_model("llama+dynamic-rope", tmp_path / "model")), None, "float32")
    at_first = plain_states(plain, SHORT, ("block.2",))["block.2"]

    plain_states(plain, LONG, ("block.2",))
    after_long = plain_states(plain, SHORT, ("block.2",))["block.2"]

    assert np.array_equal(at_first, after_long)
