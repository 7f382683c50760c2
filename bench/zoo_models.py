"""Tiny random models of many families, made from transformers' own configurations: no file is fetched.

Four blocks, width 64, vocabulary 128, windows and chunks of 5 and 6 tokens, so that short samples pass them; random
weights are enlarged, so that a sample that sees its mate, or a block that is taken for another, shows as 0.1 and more
where rounding gives 1e-5. A multimodal model has a vision tower as deep as its text backbone.

A name is a family of transformers, or ``family+variant``. What transformers lacks here is left out of ``MODELS``.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

BLOCKS, WIDTH, VOCABULARY, WINDOW = 4, 64, 128, 6
IMAGE_TOKEN = 100
_ENLARGED_BY = 0.08

SIZES: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": BLOCKS},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sliding_window": WINDOW},
}
_MOE = {
    **{"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1},
    **{"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "topk_group": 1, "n_shared_experts": 1},
    **{"first_k_dense_replace": 1},
}
_LATENT = {  # attention over a latent; every head has its own keys, and head_dim follows from the others
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16},
    **{"num_key_value_heads": 4, "head_dim": None},
}
_DELTA = {
    **{"linear_key_head_dim": 16, "linear_value_head_dim": 16},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16}
_ALTERNATING = ["sliding_attention", "full_attention"] * 2
_GEMMA = {"query_pre_attn_scalar": 16}
_GEMMA3N = {
    **{"num_kv_shared_layers": 0, "laurel_rank": 8, "hidden_size_per_layer_input": 8, "layer_types": _ALTERNATING},
    **{"vocab_size_per_layer_input": VOCABULARY, "activation_sparsity_pattern": None},
}
_GEMMA4 = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 0}
_KIMI = {"kda_layers": [1, 3], "full_attn_layers": [2, 4], "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4}
_LLAMA3_ROPE = {
    **{"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    **{"original_max_position_embeddings": 16},
}

# What each needs beyond SIZES; None takes one of SIZES away. SIZES that a family does not know are not given to it.
FAMILIES: dict[str, dict[str, Any]] = {
    **{"llama": {}, "mistral": {}, "qwen2": {}, "qwen3": {}, "phi": {}, "phi3": {}, "olmo": {}, "olmo2": {}},
    **{"olmo3": {}, "granite": {}, "cohere": {}, "cohere2": {}, "glm": {}, "glm4": {}, "smollm3": {}},
    **{"starcoder2": {}, "stablelm": {}, "seed_oss": {}, "exaone4": {}, "ernie4_5": {}, "hunyuan_v1_dense": {}},
    **{"apertus": {}, "arcee": {}, "ministral": {}, "ministral3": {}, "helium": {}, "nemotron": {}, "persimmon": {}},
    **{"bitnet": {}, "nanochat": {}, "diffllama": {}, "cwm": {}, "jais2": {}, "gpt_neox": {}, "gpt_neox_japanese": {}},
    **{"falcon": {"head_dim": None}, "opt": {"ffn_dim": 96, "word_embed_proj_dim": WIDTH}, "bloom": {}},
    **{
        "gpt2": {},
        "gptj": {"rotary_dim": 8},
        "codegen": {"rotary_dim": 8},
        "gpt_bigcode": {},
        "mpt": {"max_seq_len": 256},
    },
    **{"gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": WINDOW}},
    **{"gemma": {}, "gemma2": _GEMMA, "gemma3_text": _GEMMA, "gemma3n_text": _GEMMA3N, "gemma4_text": _GEMMA4},
    **{"vaultgemma": _GEMMA, "modernbert-decoder": {"local_attention": WINDOW}, "youtu": _LATENT},
    **{"minicpm3": _LATENT, "doge": {}, "mixtral": _MOE, "gpt_oss": _MOE, "qwen2_moe": _MOE, "qwen3_moe": _MOE},
    **{"glm4_moe": _MOE, "dots1": _MOE, "minimax_m2": _MOE, "afmoe": _MOE, "olmoe": _MOE, "flex_olmo": _MOE},
    **{"phimoe": _MOE, "granitemoe": _MOE, "granitemoeshared": {**_MOE, "shared_intermediate_size": 64}},
    **{"ernie4_5_moe": {**_MOE, "moe_num_experts": 4, "moe_k": 2}, "hunyuan_v1_moe": {**_MOE, "moe_topk": 2}},
    **{"exaone_moe": _MOE, "jetmoe": {**_MOE, "kv_channels": 16}, "solar_open": _MOE},
    **{"deepseek_v2": {**_MOE, **_LATENT}, "deepseek_v3": {**_MOE, **_LATENT}, "glm4_moe_lite": {**_MOE, **_LATENT}},
    **{"longcat_flash": {**_MOE, **_LATENT, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32, "num_layers": 2}},
    **{"llama4_text": {**_MOE, "intermediate_size_mlp": 96, "attention_chunk_size": 5}},
    **{"deepseek_v32": {**_MOE, **_LATENT}, "glm_moe_dsa": {**_MOE, **_LATENT}, "axk1": {**_MOE, **_LATENT}},
    **{"mimo_v2_flash": _MOE, "laguna": _MOE, "hy_v3": _MOE, "granite_swa": {}, "granitemoe_swa": _MOE, "mellum": _MOE},
    **{"cohere2_moe": _MOE, "flint": _MOE, "beam": _MOE, "aria_text": _MOE, "hyperclovax": {}, "lfm3": {}, "dory": {}},
    **{"biogpt": {}, "xglm": {"ffn_dim": 96}, "ctrl": {"dff": 96}},
    **{"qwen3_next": {**_DELTA, **_MOE}, "qwen3_5_text": _DELTA, "qwen3_5_moe_text": {**_DELTA, **_MOE}},
    **{"olmo_hybrid": _DELTA, "kimi_linear": {**_MOE, **_LATENT, "linear_attn_config": _KIMI}},
    **{"minimax": _MOE, "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_ff_dim": 96}},
    **{"lfm2_moe": {**_MOE, "layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1}},
    **{"bamba": {**_MAMBA, "attn_layer_indices": [1, 3]}, "falcon_h1": {**_MAMBA, "mamba_d_ssm": 128}},
    **{"granitemoehybrid": {**_MOE, **_MAMBA, "layer_types": ["mamba", "attention"] * 2}},
    "nemotron_h": {
        **{**_MOE, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16},
        **{"layers_block_type": ["mamba", "attention"] * 2},
    },
    **{"jamba": {**_MOE, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}},
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 16},
    **{"falcon_mamba": {"state_size": 8}, "recurrent_gemma": {"lru_width": WIDTH, "attention_window_size": WINDOW}},
    **{"xlstm": {"num_heads": 4, "num_blocks": BLOCKS}, "rwkv": {"attention_hidden_size": WIDTH}},
    **{"zamba2": {**_MAMBA, "chunk_size": 16, "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_headdim": 16}},
    **{"llama+tied": {"tie_word_embeddings": True}, "llama+llama3-rope": {"rope_parameters": _LLAMA3_ROPE}},
    "llama+dynamic-rope": {
        **{"max_position_embeddings": 32},
        **{"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
    },
    "llama+yarn-rope": {
        **{"max_position_embeddings": 256},
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0},
            **{"original_max_position_embeddings": 64},
        },
    },
    "phi3+longrope": {
        **{"max_position_embeddings": 256, "original_max_position_embeddings": 32},
        "rope_parameters": {
            **{"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32},
            **{"short_factor": [1.0] * 8, "long_factor": [4.0] * 8},
        },
    },
}
_SIGLIP = {
    **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": BLOCKS, "num_attention_heads": 2},
    **{"image_size": 16, "patch_size": 8, "projection_dim": 32},
}
_QWEN_VISION = {
    **{"depth": BLOCKS, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "patch_size": 4},
    **{"out_hidden_size": WIDTH, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
_QWEN_TOKENS = {"image_token_id": IMAGE_TOKEN, "video_token_id": 101, "vision_start_token_id": 102}
# A multimodal model: family of its text backbone, that one's needs, settings of its vision tower, its own settings.
WRAPPERS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gemma3": ("gemma3_text", _GEMMA, _SIGLIP, {"mm_tokens_per_image": 4, "image_token_index": IMAGE_TOKEN}),
    "llava": ("llama", {}, {"model_type": "clip_vision_model", **_SIGLIP}, {"image_token_index": IMAGE_TOKEN}),
    "mistral3": (
        *("mistral", {}),
        *({"model_type": "pixtral", **_SIGLIP, "head_dim": 16}, {"image_token_index": IMAGE_TOKEN}),
    ),
    "qwen2_5_vl": (
        *("qwen2_5_vl_text", {"rope_parameters": _MROPE}),
        *({**_QWEN_VISION, "fullatt_block_indexes": [1]}, _QWEN_TOKENS),
    ),
    "qwen3_vl": ("qwen3_vl_text", {"rope_parameters": _MROPE}, _QWEN_VISION, _QWEN_TOKENS),
    "qwen3_5": ("qwen3_5_text", _DELTA, _QWEN_VISION, _QWEN_TOKENS),
    "llama4": (
        *("llama4_text", FAMILIES["llama4_text"]),
        *({**_SIGLIP, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}, {}),
    ),
}
MODELS: tuple[str, ...] = tuple(n for n in (*FAMILIES, *WRAPPERS) if n.split("+")[0] in CONFIG_MAPPING_NAMES)


def save_model(name: str, folder: Path, *, seed: int = 0) -> Path:
    """Make the model *name* of ``MODELS`` and save it as a float32 checkpoint.

    Raises:
        whatever transformers raises where the sizes do not suit its version of a family.
    """
    config = tiny_config(name)
    torch.manual_seed(seed)
    model = _language_model(config)._from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * _ENLARGED_BY)
    model.save_pretrained(folder)
    return folder


def tiny_config(name: str) -> Any:
    """Return the configuration of the model *name*."""
    if name not in WRAPPERS:
        return _family_config(name.split("+")[0], FAMILIES[name])
    text, needs, vision, own = WRAPPERS[name]
    text_config = {"model_type": text, **_family_config(text, needs).to_dict()}
    return transformers.AutoConfig.for_model(name, text_config=text_config, vision_config=vision, **own)


def _family_config(family: str, needs: dict[str, Any]) -> Any:
    kind = type(transformers.AutoConfig.for_model(family))
    known_names = {*vars(kind()), *kind.attribute_map}
    known = {size: value for size, value in SIZES.items() if size in known_names}
    chosen = {setting: value for setting, value in {**known, **needs}.items() if value is not None}
    return transformers.AutoConfig.for_model(family, **chosen)


def _language_model(config: Any) -> Any:
    """Return the class that a checkpoint of *config* has: the wrapper, not its text model."""
    kinds = (transformers.AutoModelForImageTextToText, transformers.AutoModelForCausalLM)
    for kind in kinds:
        with contextlib.suppress(KeyError):
            return kind._model_mapping[type(config)]
    raise ValueError(f"transformers has no language model for {type(config).__name__}")
