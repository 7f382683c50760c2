"""A checkpoint that would give the states of another model is refused by name when it is loaded."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from bench.zoo_models import save_model
from gpu_worker.backbone import Cut
from gpu_worker.checkpoint import CheckpointRefused, refuse_other_dtypes
from hiddenstream.contracts.errors import ModelError
from hiddenstream.model_reference import resolve_model
from tests.gpu_worker.made import a_planned_run, loaded
from tests.tiny import save_tiny_model

TAPS = ("block.0", "block.2")


@pytest.fixture
def llama(tiny_model, tmp_path):
    """A checkpoint of its own, to be damaged."""
    return shutil.copytree(tiny_model("llama"), tmp_path / "model")


def damage(folder, changed):
    """Replace the weights of a checkpoint by what *changed* makes of them."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    changed(weights)
    save_file(weights, file, {"format": "pt"})
    return folder


def load(folder, tmp_path, taps=TAPS, **changed):
    return loaded(a_planned_run(tmp_path, folder, taps=taps, **changed).read_record())


def test_a_block_without_weights_is_named(llama, tmp_path):
    """Every weight of one block missing is refused with some of their names and the way out."""

    def lose_block_1(weights):
        for name in [name for name in weights if "layers.1." in name]:
            del weights[name]

    with pytest.raises(ModelError, match=r"lack 9 weights .*layers\.1\..* Give a whole checkpoint"):
        load(damage(llama, lose_block_1), tmp_path)


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.gate.weight", "model.extra_norm.weight", "adapter.weight"])
def test_a_weight_that_no_architecture_has_is_named(name, llama, tmp_path):
    """A weight that would be left out is refused with its name and the way out."""
    damage(llama, lambda weights: weights.update({name: torch.ones(4, 4)}))

    shown = re.escape(name.removeprefix("model."))
    message = rf"hold 1 weights that LlamaModel does not have.*{shown}.* Correct the architecture"
    with pytest.raises(ModelError, match=message):
        load(llama, tmp_path)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"])
def test_a_weight_that_transformers_itself_passes_over_is_allowed(name, llama, tmp_path):
    """Old buffers and heads are in files of sound models."""
    damage(llama, lambda weights: weights.update({name: torch.ones(128, 64)}))

    assert 3 == len(load(llama, tmp_path).blocks)


def test_a_head_of_another_task_is_allowed(llama, tmp_path):
    """A model saved as a classifier has the states of its backbone; its configuration names the head's class."""
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForSequenceClassification"]}))
    damage(llama, lambda weights: weights.update({"score.weight": torch.ones(2, 64)}))

    assert 3 == len(load(llama, tmp_path).blocks)


@pytest.mark.parametrize("block", [0, 2])
def test_a_block_of_zeros_is_named(block, llama, tmp_path):
    """A block all of whose matrices are zero is refused, though its norms are not zero."""

    def zero(weights):
        for name, weight in weights.items():
            if f"layers.{block}." in name and weight.ndim == 2:
                weight.zero_()

    with pytest.raises(ModelError, match=rf"block\.{block}: all its weights are zero"):
        load(damage(llama, zero), tmp_path)


def test_an_embedding_of_zeros_is_named(llama, tmp_path):
    """Every state would be zero."""
    damage(llama, lambda weights: weights["model.embed_tokens.weight"].zero_())

    with pytest.raises(ModelError, match="embedding: all its weights are zero"):
        load(llama, tmp_path)


def test_a_zero_matrix_alone_is_no_zero_block(llama, tmp_path):
    """Some families start a projection at zero."""
    damage(llama, lambda weights: weights["model.layers.1.mlp.down_proj.weight"].zero_())

    assert 3 == len(load(llama, tmp_path).blocks)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.int32])
def test_quantized_weights_without_their_scales_are_refused(dtype, llama, tmp_path):
    """transformers would cast the whole numbers and go on."""

    def quantize(weights):
        name = "model.layers.1.mlp.up_proj.weight"
        weights[name] = (weights[name] * 100).to(dtype)

    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight is \w+, quantized.* dequantize"):
        load(damage(llama, quantize), tmp_path)


def test_quantized_weights_are_found_in_a_sharded_checkpoint(llama, tmp_path):
    """The index names the files; each is looked at."""
    weights = load_file(llama / "model.safetensors")
    (llama / "model.safetensors").unlink()
    halves = {name: f"model-{'layers.1.' in name:05d}.safetensors" for name in weights}
    weights["model.layers.1.mlp.up_proj.weight"] = weights["model.layers.1.mlp.up_proj.weight"].to(torch.int8)
    for file in set(halves.values()):
        save_file({name: w for name, w in weights.items() if halves[name] == file}, llama / file, {"format": "pt"})
    (llama / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": halves}))

    with pytest.raises(ModelError, match=r"up_proj\.weight is I8, quantized"):
        load(llama, tmp_path)


def test_a_configuration_that_says_quantized_is_refused(llama, tmp_path):
    """Its method is named, and that the unquantized checkpoint is wanted."""
    config = json.loads((llama / "config.json").read_text())
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (llama / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))

    with pytest.raises(ModelError, match=r"weights are quantized \(fp8\).* give its unquantized checkpoint"):
        load(llama, tmp_path)


def test_what_transformers_keeps_in_float32_is_allowed(tmp_path):
    """The router of DeepSeek-V3 stays in float32 where the rest is bfloat16 (in some versions), and the model loads."""
    folder = save_model("deepseek_v3", tmp_path / "model")
    plain = AutoModel.from_pretrained(folder, dtype=torch.bfloat16)

    model = load(folder, tmp_path, taps=("block.3",), compute_dtype="bfloat16", stored_dtype="bfloat16")

    kept = [
        {name for name, parameter in backbone.named_parameters() if parameter.dtype == torch.float32}
        for backbone in (plain, model.backbone)
    ]
    assert kept[0] == kept[1]


def test_a_parameter_of_another_dtype_is_refused(llama, tmp_path):
    """Each parameter is looked at, not the embedding alone."""
    model = load(llama, tmp_path)
    model.backbone.layers[1].mlp.up_proj.to(torch.bfloat16)
    nothing_cut = Cut(blocks=model.blocks, away=(), built_dtypes={})

    with pytest.raises(CheckpointRefused, match=r"layers\.1\.mlp\.up_proj\.weight came as torch\.bfloat16"):
        refuse_other_dtypes(model.backbone, torch.float32, nothing_cut)


@pytest.mark.parametrize(("family", "kind"), [("t5", "T5Config"), ("bart", "BartConfig")])
def test_an_encoder_decoder_is_refused(family, kind, tmp_path):
    """Its decoder's states depend on what its encoder read."""
    tiny = {"t5": {"num_layers": 2, "d_kv": 8, "d_ff": 16, "num_heads": 2}, "bart": {"decoder_layers": 2}}[family]
    config = AutoConfig.for_model(family, vocab_size=128, d_model=16, pad_token_id=0, **tiny)
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path / "model")

    with pytest.raises(ModelError, match=rf"{kind} is an encoder-decoder.* give a causal language model"):
        load(tmp_path / "model", tmp_path, taps=("block.0",))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_attention_that_was_chosen_is_read_back(family, tiny_model, tmp_path):
    """None is asked for, so a family that refuses one loads with its own, and the worker knows which."""
    chosen = AutoModel.from_pretrained(tiny_model(family)).config._attn_implementation

    assert chosen == load(tiny_model(family), tmp_path).attention
    assert chosen in ("sdpa", "eager")


def test_another_content_of_a_model_is_another_model(llama):
    """One changed weight, and one changed setting, give another digest; the same content gives the same."""
    digests = [resolve_model(str(llama)).digest, resolve_model(str(llama)).digest]
    damage(llama, lambda weights: weights["model.norm.weight"].mul_(2))
    digests.append(resolve_model(str(llama)).digest)
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    digests.append(resolve_model(str(llama)).digest)

    assert digests[0] == digests[1]
    assert 3 == len(set(digests))


def test_another_content_is_another_run(tmp_path):
    """The same settings with another model's content give another fingerprint, so nothing of it is mixed in."""
    fingerprints = {
        a_planned_run(tmp_path / str(seed), save_tiny_model("llama", tmp_path / f"m{seed}", seed=seed), taps=TAPS)
        .read_record()
        .identity.fingerprint
        for seed in (0, 1)
    }

    assert 2 == len(fingerprints)
