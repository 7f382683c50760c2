"""Tiny random models of real families, saved as checkpoints, and rows of random tokens for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 128
_BASE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LINEAR = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_GPT2 = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 5, "n_head": 4, "n_positions": 256}
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _BASE,
    "qwen3": _BASE,
    "qwen3_5_text": {**_BASE, **_LINEAR},
    "gpt2": _GPT2,
    "falcon": {k: v for k, v in _BASE.items() if k != "head_dim"},  # blocks return tuples
    "phi3": {k: v for k, v in _BASE.items() if k != "head_dim"},
    "mixtral": {**_BASE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "electra": {**_BASE, "embedding_size": 64},  # an encoder
    "mamba2": {
        **{"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 5, "num_heads": 8, "head_dim": 16},
        **{"state_size": 16, "n_groups": 1, "chunk_size": 16},
    },
    "olmo": _BASE,
    "cohere": {**_BASE, "logit_scale": 0.25},
    "granite": {**_BASE, "logits_scaling": 8.0, "embedding_multiplier": 3.0},
    "nemotron": _BASE,
    "phi": {k: v for k, v in _BASE.items() if k != "head_dim"},  # a bias in its lm_head
    "gpt_neox": {k: v for k, v in _BASE.items() if k != "head_dim"},
    "mpt": {"vocab_size": VOCABULARY, "d_model": 64, "n_heads": 4, "n_layers": 5, "max_seq_len": 1024},
    "mamba": {**_BASE, "state_size": 8},
    "opt": {**_BASE, "ffn_dim": 96, "word_embed_proj_dim": 64},
    "gemma2": {**_BASE, "query_pre_attn_scalar": 16, "sliding_window": 6},
}


def save_tiny_model(family: str, folder: Path, *, seed: int = 0, moves_vectors: bool = False, **changed: Any) -> Path:
    """Save a five-block float32 model whose weights are large enough that any mix-up of samples shows.

    Args:
        moves_vectors: move the weights of norms and all biases away from ones and zeros, too.
    """
    config = AutoConfig.for_model(family, **{**_FAMILIES[family], **changed})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2 or (moves_vectors and parameter.ndim == 1):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.08)
    model.save_pretrained(folder)
    return folder


def random_rows(lengths: list[int], *, seed: int = 0) -> list[dict[str, Any]]:
    """Make rows with ids s0, s1, ... of these lengths; every other one has a loss mask."""
    generator = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for number, length in enumerate(lengths):
        row: dict[str, Any] = {"id": f"s{number}", "input_ids": generator.integers(1, VOCABULARY, length).tolist()}
        if number % 2:
            row["loss_mask"] = generator.integers(0, 2, length).tolist()
        rows.append(row)
    return rows


def write_rows(rows: list[dict[str, Any]], file: Path) -> Path:
    """Write rows as JSON Lines."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
