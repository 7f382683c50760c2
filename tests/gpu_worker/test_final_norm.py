"""The final norm is found by what it does, and what is saved of it gives transformers' last hidden state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from gpu_worker.final_norm import final_norm_file, find_final_norm, fit_norm
from gpu_worker.recompute import load_plain
from hiddenstream.contracts.errors import ModelError
from hiddenstream.final_norm import FinalNorm
from hiddenstream.mapped_run_file import decode_run_file
from tests.gpu_worker.final_models import a_final_run, last_states, logits_of, relative
from tests.gpu_worker.made import loaded, token_rows

IDS = token_rows([23])[0]
# kind, offset of the weight, stored arrays
FAMILIES = {
    "llama": ("rms_norm", 0.0, ["weight"]),
    "qwen3_5_text": ("rms_norm", 1.0, ["weight"]),
    "gemma2": ("rms_norm", 1.0, ["weight"]),
    "granite": ("rms_norm", 0.0, ["weight"]),
    "mamba": ("rms_norm", 0.0, ["weight"]),
    "gpt2": ("layer_norm", 0.0, ["bias", "weight"]),
    "falcon": ("layer_norm", 0.0, ["bias", "weight"]),
    "opt": ("layer_norm", 0.0, ["bias", "weight"]),
    "cohere": ("layer_norm", 0.0, ["weight"]),
    "mpt": ("layer_norm", 0.0, ["weight"]),
    "nemotron": ("layer_norm", 1.0, ["bias", "weight"]),
    "olmo": ("layer_norm", 0.0, []),
}


def saved_norm(record, model=None):
    """Return a run's final norm as a reader gets it, and its file."""
    content = b"".join(final_norm_file(model or loaded(record), record))
    run_file = decode_run_file("final_norm", record, content)
    return FinalNorm.from_run_file(run_file.metadata, run_file.arrays), run_file


@pytest.mark.parametrize("family", FAMILIES)
def test_the_saved_norm_gives_the_last_hidden_state_and_the_logits(family, tmp_path):
    """Numpy on the last block's output equals transformers, and the model's own head makes its own logits of it."""
    record = a_final_run(tmp_path, family)
    plain = load_plain(record.model, None, "float32")
    raw, last, logits = last_states(plain, IDS)

    norm, run_file = saved_norm(record)
    normed = norm.apply(raw)

    assert FAMILIES[family] == (norm.kind, norm.weight_offset, sorted(run_file.arrays))
    assert relative(normed, last) <= 1e-5 < relative(raw, last)
    assert relative(logits_of(plain, IDS, normed), logits) <= 1e-5
    assert relative(logits_of(plain, IDS, raw), logits) > 1e-3  # the head really got what it was given


def test_a_model_without_a_final_norm_has_none(tmp_path):
    """Where the last block's output is the last hidden state, it comes back as it is."""
    record = a_final_run(tmp_path, "opt", do_layer_norm_before=False)
    raw, last, _ = last_states(load_plain(record.model, None, "float32"), IDS)

    norm, run_file = saved_norm(record)

    assert ("none", "", {}) == (norm.kind, norm.class_name, dict(run_file.arrays))
    np.testing.assert_array_equal(last, norm.apply(raw))


@pytest.mark.parametrize("has_norm", [True, False])
def test_something_more_behind_the_norm_is_refused(tmp_path, has_norm):
    """opt's projection between norm and last hidden state is no norm; the error says what to do instead."""
    record = a_final_run(tmp_path, "opt", word_embed_proj_dim=32, do_layer_norm_before=has_norm)

    with pytest.raises(ModelError, match=r"OPT.*--layers instead of --final"):
        final_norm_file(loaded(record), record)


class SquashedNorm(nn.Module):
    """A norm of no known kind."""

    def forward(self, rows):
        return torch.tanh(rows / rows.square().mean(-1, keepdim=True).sqrt())


def test_a_norm_that_fits_no_formula_is_refused(tmp_path):
    """The error names the class, how far off the nearest formula is, and the way out."""
    record = a_final_run(tmp_path, "llama")
    model = loaded(record)
    model.backbone.norm = SquashedNorm()

    with pytest.raises(ModelError, match=r"SquashedNorm.*off by.*--layers instead of --final"):
        final_norm_file(model, record)


def test_a_cut_model_is_no_source_of_a_final_norm(tmp_path):
    """With blocks missing, what follows the last of them is not what the model does."""
    record = a_final_run(tmp_path, "llama")
    model = loaded(record)
    del model.blocks[-1]

    with pytest.raises(ModelError, match="4 of 5 blocks"):
        final_norm_file(model, record)


def test_looking_leaves_no_hook_behind(tmp_path):
    """The model that goes on to work is as it was."""
    model = loaded(a_final_run(tmp_path, "llama"))

    assert find_final_norm(model) is model.backbone.norm
    assert [] == [name for name, module in model.backbone.named_modules() if module._forward_hooks]


class HiddenEpsilon(nn.Module):
    """An RMS norm whose eps and weight have names of their own, and whose attributes mislead."""

    def __init__(self, eps):
        super().__init__()
        self.eps = 3e-4  # not used
        self.smallest_denominator = eps
        self.gain = nn.Parameter(torch.linspace(0.5, 2, 16))

    def forward(self, rows):
        return self.gain * rows / (rows.square().mean(-1, keepdim=True) + self.smallest_denominator).sqrt()


@pytest.mark.parametrize("eps", [1e-5, 1e-6, 1e-8, 7e-7])
def test_eps_is_what_fits_not_what_it_is_called(eps):
    """An attribute of another name, or one that is not used, does not mislead."""
    norm, arrays = fit_norm(HiddenEpsilon(eps), model_name="made up", width=16)

    assert eps == pytest.approx(norm.eps)
    assert ["weight"] == list(arrays)


@pytest.mark.parametrize("module", [nn.LayerNorm(16, bias=False), nn.RMSNorm(16), nn.RMSNorm(16, eps=1e-4)])
def test_torch_s_own_norms_are_known(module):
    """Also where eps is left to torch."""
    with torch.no_grad():
        module.weight.add_(torch.linspace(-1, 1, 16))
    norm, _ = fit_norm(module, model_name="made up", width=16)
    rows = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32) * 0.01

    assert relative(norm.apply(rows), module(torch.from_numpy(rows)).detach().numpy()) <= 1e-5


def test_the_norm_is_stored_as_it_is_loaded(tmp_path):
    """A bfloat16 model's weights are kept in bfloat16, bit for bit, and its formula is tried in float32."""
    record = a_final_run(tmp_path, "llama")
    narrow = with_dtype(record, "bfloat16")
    model = loaded(narrow)

    norm, run_file = saved_norm(narrow, model)

    assert ("rms_norm", "LlamaRMSNorm", 1e-6) == (norm.kind, norm.class_name, norm.eps)
    assert "bfloat16" == str(run_file.arrays["weight"].dtype)
    expected = model.backbone.norm.weight.detach().view(torch.int16).numpy()
    np.testing.assert_array_equal(expected, run_file.arrays["weight"].view(np.int16))


def with_dtype(record, dtype):
    return replace(record, identity=replace(record.identity, compute_dtype=dtype))
