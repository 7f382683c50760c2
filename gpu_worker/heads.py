"""Saving a model's embedding and lm_head for trainers that want them.

The worker runs the backbone alone, so these are read by a second, small load: the causal class is built, every list of
blocks in it is emptied before the weights are read, and what remains is the embedding, the head, and little else.
"""

from __future__ import annotations

import json
from typing import Any

import transformers
from torch import Tensor, nn

from gpu_worker.model import TORCH_DTYPES
from gpu_worker.raw_tensors import raw_tensor
from hiddenstream.contracts.errors import ModelError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.run_file import encode_run_file
from hiddenstream.heads import EMBEDDING, HEAD, HEAD_BIAS

_SETTING_WORDS = ("logit", "scal", "multiplier", "softcap", "mup")  # numbers with these in their names change logits


def heads_file(record: RunRecord, model: str) -> tuple[bytes | memoryview, ...]:
    """Return the run file ``heads``, in pieces: embedding and lm_head in the run's compute dtype, on the host.

    Args:
        model: path or hub id where the worker finds it.

    Raises:
        ModelError: the model has no such weights, or they cannot be read.
    """
    config = transformers.AutoConfig.from_pretrained(model, revision=record.revision)
    causal = _load(config, record, model)
    embedding, head = causal.get_input_embeddings(), causal.get_output_embeddings()
    tensors, is_tied = _weights(embedding, head, name=f"--model {model}: {type(causal).__name__}")
    facts = {
        "is_tied": json.dumps(is_tied),
        "class": type(causal).__name__,
        "settings": json.dumps(head_settings(config.get_text_config().to_dict()), sort_keys=True),
    }
    return encode_run_file("heads", record, {name: raw_tensor(tensor) for name, tensor in tensors.items()}, facts)


def head_settings(config: dict[str, Any]) -> dict[str, float]:
    """Return every number of a configuration whose name speaks of logits or of scaling."""
    return {
        name: float(value)
        for name, value in config.items()
        if any(word in name for word in _SETTING_WORDS) and type(value) in (int, float)
    }


def _weights(embedding: Any, head: Any, *, name: str) -> tuple[dict[str, Tensor], bool]:
    """Return what to store by name, and whether the head's weight is the embedding's."""
    if not isinstance(getattr(embedding, "weight", None), Tensor) or not isinstance(
        getattr(head, "weight", None), Tensor
    ):
        raise ModelError(f"{name} has no embedding and lm_head with a weight each, so --heads cannot save them")
    is_tied = embedding.weight is head.weight or embedding.weight.data_ptr() == head.weight.data_ptr()
    tensors = {EMBEDDING: embedding.weight.detach()}
    if not is_tied:
        tensors[HEAD] = head.weight.detach()
    if isinstance(getattr(head, "bias", None), Tensor):
        tensors[HEAD_BIAS] = head.bias.detach()
    return tensors, is_tied


def _load(config: Any, record: RunRecord, model: str) -> Any:
    """Load the causal model without its blocks; its text part alone, where transformers has a class for that."""
    candidates = [
        (part, families[type(part)])
        for families in (
            transformers.AutoModelForCausalLM._model_mapping,
            transformers.AutoModelForImageTextToText._model_mapping,
        )
        for part in (config.get_text_config(), config)
        if type(part) in families
    ]
    dtype = TORCH_DTYPES[record.identity.compute_dtype]
    problem = f"transformers has no causal model for {type(config).__name__}"
    for part, family in candidates:
        try:
            causal, report = _without_blocks(family).from_pretrained(
                model, revision=record.revision, config=part, dtype=dtype, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, AttributeError, LookupError, TypeError, ImportError) as error:
            problem = str(error)
            continue
        wanted = {
            id(module.weight) for module in (causal.get_input_embeddings(), causal.get_output_embeddings()) if module
        }
        names = {name for name, parameter in causal.named_parameters(remove_duplicate=False) if id(parameter) in wanted}
        missing = names & set(report["missing_keys"])
        if not missing:
            return causal.requires_grad_(False)
        problem = f"its files lack {sorted(missing)[0]}; it would be random numbers"
    raise ModelError(f"--model {model}: --heads cannot load its embedding and lm_head: {problem}")


def _without_blocks(family: type[Any]) -> type[Any]:
    """Return *family* with an ``__init__`` that empties every list of blocks, so their weights are never read."""

    def __init__(self: Any, config: Any, *arguments: Any, **named: Any) -> None:
        family.__init__(self, config, *arguments, **named)
        for module in list(self.modules()):
            if isinstance(module, nn.ModuleList):
                del module[:]

    return type(family.__name__, (family,), {"__init__": __init__, "__module__": family.__module__})
