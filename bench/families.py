"""Over how many families a loaded-and-cut model equals plain transformers.

    python -m bench.families [FAMILY ...]

Takes every causal language model that the installed transformers knows, makes a tiny random one where small numbers in
its configuration suffice for that, saves it, loads it as a worker does, runs samples of mixed lengths as one padded
batch, and compares with the whole model run on each sample alone, in float32. A difference of 1e-4 counts as unequal:
rounding gives 1e-6 to 2e-5, a leak 0.1 and more.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from gpu_worker.forward import ForwardPass
from gpu_worker.model import load_model
from gpu_worker.recompute import load_plain, plain_states
from hiddenstream.contracts.errors import ModelError
from tests.factories import a_run

BLOCKS, WIDTH, VOCABULARY, TOLERANCE = 4, 64, 128, 1e-4
TAPS = ("embedding", "block.0", "block.2")
LENGTHS = (9, 1, 7, 20)
SMALL = {
    **{"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": BLOCKS},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sliding_window": 6, "ffn_dim": 96},
    **{"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1},
    **{"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "topk_group": 1, "n_shared_experts": 1},
    **{"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16},
    **{"state_size": 16, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "lru_width": WIDTH},
    **{"n_embd": WIDTH, "n_layer": BLOCKS, "n_head": 4, "n_positions": 256, "rotary_dim": 8, "d_model": WIDTH},
}
MOST_PARAMETERS = 20_000_000


def tiny_checkpoint(family: str, folder: Path) -> transformers.PretrainedConfig:
    """Save a tiny random model of *family*; raises whatever its code raises where SMALL does not suit it."""
    kinds = transformers.AutoConfig.for_model(family)
    known = {name: value for name, value in SMALL.items() if hasattr(kinds, name) or name in kinds.attribute_map}
    config = transformers.AutoConfig.for_model(family, **known)
    text = config.get_text_config()
    if (text.num_hidden_layers, text.hidden_size, text.vocab_size) != (BLOCKS, WIDTH, VOCABULARY):
        raise ValueError("its configuration does not take small numbers")
    with torch.device("meta"):
        parameters = sum(p.numel() for p in transformers.AutoModelForCausalLM.from_config(config).parameters())
    if parameters > MOST_PARAMETERS:
        raise ValueError(f"{parameters:,} parameters even so")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.add_(torch.randn(parameter.shape) * 0.08)
    model.save_pretrained(folder)
    return config


def verdict(family: str, folder: Path) -> tuple[str, str]:
    """Return what became of one family, and a detail."""
    try:
        tiny_checkpoint(family, folder / "model")
        plain = load_plain(str(folder / "model"), None, "float32")
        rows = [np.random.default_rng(n).integers(3, VOCABULARY, n).astype(np.int32) for n in LENGTHS]
        expected = [plain_states(plain, row, TAPS) for row in rows]
    except Exception as error:  # noqa: BLE001 - not made, so nothing is said of it
        return "not made", repr(error)[:90]
    record = a_run(folder / "run", [[1]]).read_record()
    identity = replace(record.identity, taps=TAPS, hidden_size=WIDTH)
    try:
        model = load_model(replace(record, num_blocks=BLOCKS, identity=identity), str(folder / "model"), plain.device)
    except ModelError as error:
        return "refused", str(error)[:90]
    found = ForwardPass(model, TAPS, torch.float32).run(rows).hidden_NKD.numpy()
    splits = np.split(found, np.cumsum(LENGTHS)[:-1])
    worst = max(
        np.abs(part[:, place] - states[tap]).max()
        for part, states in zip(splits, expected, strict=True)
        for place, tap in enumerate(TAPS)
    )
    cut = f"{len(model.blocks)} of {BLOCKS} blocks loaded"
    return ("equal" if worst <= TOLERANCE else "UNEQUAL"), f"largest difference {worst:.1e}, {cut}"


def main() -> None:
    """Print a line per family and the counts."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    for family in sys.argv[1:] or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        with tempfile.TemporaryDirectory() as folder:
            what, detail = verdict(family, Path(folder))
        counts[what] += 1
        print(f"{family:28} {what:9} {detail}", flush=True)
    print(f"transformers {transformers.__version__}: {dict(counts)}")


if __name__ == "__main__":
    main()
