"""Embedding and lm_head are saved once, whatever the family, without reading a block."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

from gpu_worker.heads import head_settings, heads_file
from gpu_worker.recompute import load_plain
from hiddenstream.contracts.errors import ModelError
from hiddenstream.heads import Heads
from hiddenstream.mapped_run_file import decode_run_file
from tests.gpu_worker.final_models import a_final_run, last_states, relative
from tests.gpu_worker.made import token_rows


def saved_heads(record):
    """Return a run's heads as a reader gets them, and the names of what the file holds."""
    run_file = decode_run_file("heads", record, b"".join(heads_file(record, record.model)))
    return Heads.from_run_file(run_file.metadata, run_file.arrays), sorted(run_file.arrays)


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


UNTIED = ["embed_tokens.weight", "lm_head.weight"]
FAMILIES = {
    "llama": ({}, UNTIED),
    "qwen3_5_text": ({}, UNTIED),
    "phi": ({}, ["embed_tokens.weight", "lm_head.bias", "lm_head.weight"]),
    "gpt_neox": ({}, UNTIED),
    "gpt2": ({}, ["embed_tokens.weight"]),
    "gemma2": ({}, ["embed_tokens.weight"]),
    "mamba": ({}, ["embed_tokens.weight"]),
    "cohere": ({"tie_word_embeddings": False}, UNTIED),
    "opt": ({"word_embed_proj_dim": 32}, ["embed_tokens.weight"]),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_are_the_model_s_own(family, tmp_path):
    """Tied or not, with a bias or without: the bits of plain transformers, and a tied weight stored once."""
    changed, stored = FAMILIES[family]
    record = a_final_run(tmp_path, family, **changed)
    plain = load_plain(record.model, None, "float32")

    heads, names = saved_heads(record)

    assert stored == names
    assert heads.is_tied == ("lm_head.weight" not in stored)
    embedding, head = plain.get_input_embeddings(), plain.get_output_embeddings()
    np.testing.assert_array_equal(embedding.weight.detach().numpy(), heads.embed_tokens)
    np.testing.assert_array_equal(head.weight.detach().numpy(), heads.lm_head)
    bias = getattr(head, "bias", None)
    assert (bias is None) == (heads.lm_head_bias is None)
    if bias is not None:
        np.testing.assert_array_equal(bias.detach().numpy(), heads.lm_head_bias)


def test_logits_can_be_made_of_them(tmp_path):
    """The last hidden state times the head, with the model's softcap from the settings, gives its logits."""
    record = a_final_run(tmp_path, "gemma2", final_logit_softcapping=2.0)
    _, last, logits = last_states(load_plain(record.model, None, "float32"), token_rows([9])[0])

    heads, _ = saved_heads(record)

    cap = heads.settings["final_logit_softcapping"]
    assert relative(np.tanh(last @ heads.lm_head.T / cap) * cap, logits) <= 1e-5


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("cohere", {"logit_scale": 0.25}),
        ("granite", {"logits_scaling": 8.0, "embedding_multiplier": 3.0}),
        ("gemma2", {"final_logit_softcapping": 30.0}),
    ],
)
def test_the_head_s_settings_are_kept(family, settings, tmp_path):
    """Every number of the configuration that changes logits is there under its own name."""
    heads, _ = saved_heads(a_final_run(tmp_path, family))

    assert settings.items() <= heads.settings.items()


def test_only_numbers_are_settings():
    """Switches, words and nested tables are none; numbers of other things neither."""
    config = {"logit_scale": 2, "logits_bf16": True, "rope_scaling": {"factor": 2.0}, "hidden_size": 64, "mup_x": None}

    assert {"logit_scale": 2.0} == head_settings(config)


def test_heads_come_in_the_dtype_that_the_model_runs_in(tmp_path):
    """A float32 checkpoint of a run in bfloat16 gives bfloat16, rounded as torch rounds."""
    record = a_final_run(tmp_path, "llama")
    narrow = replace(record, identity=replace(record.identity, compute_dtype="bfloat16"))
    expected = load_plain(record.model, None, "bfloat16").get_input_embeddings().weight.detach()

    heads, _ = saved_heads(narrow)

    assert "bfloat16" == str(heads.embed_tokens.dtype)
    np.testing.assert_array_equal(expected.view(torch.uint8).numpy(), bits(heads.embed_tokens))


def checkpoint_of(record):
    file = f"{record.model}/model.safetensors"
    return file, load_file(file)


def test_no_block_is_read(tmp_path):
    """A checkpoint whose blocks have shapes that none could take has the same heads."""
    record = a_final_run(tmp_path, "llama")
    before, _ = saved_heads(record)
    file, weights = checkpoint_of(record)
    unfit = {name: torch.zeros(3) if ".layers." in name else weight for name, weight in weights.items()}
    save_file(unfit, file, metadata={"format": "pt"})

    after, _ = saved_heads(record)

    np.testing.assert_array_equal(before.embed_tokens, after.embed_tokens)
    np.testing.assert_array_equal(before.lm_head, after.lm_head)


@pytest.mark.parametrize("lost", ["lm_head.weight", "model.embed_tokens.weight"])
def test_a_head_that_the_checkpoint_lacks_is_refused(lost, tmp_path):
    """Random numbers are never stored for a weight that is missing; the error names it."""
    record = a_final_run(tmp_path, "llama")
    file, weights = checkpoint_of(record)
    save_file({n: w for n, w in weights.items() if n != lost}, file, metadata={"format": "pt"})

    with pytest.raises(ModelError, match=rf"--heads.*{lost}"):
        heads_file(record, record.model)


def test_the_text_part_of_a_multimodal_model_has_its_heads(tmp_path):
    """A checkpoint whose text weights lie under another prefix gives its language model's embedding and head."""
    text = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = AutoModelForImageTextToText.from_config(config)
    model.save_pretrained(tmp_path / "wrapped")
    record = replace(a_final_run(tmp_path, "llama"), model=str(tmp_path / "wrapped"))

    heads, _ = saved_heads(record)

    np.testing.assert_array_equal(model.get_input_embeddings().weight.detach().numpy(), heads.embed_tokens)
    assert heads.is_tied


def test_a_model_without_a_causal_class_is_refused(tmp_path):
    """The error says that transformers has none."""
    record = a_final_run(tmp_path, "llama")
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "config.json").write_text(json.dumps({"model_type": "vit"}))

    with pytest.raises(ModelError, match="no causal model for ViTConfig"):
        heads_file(record, str(tmp_path / "vision"))
