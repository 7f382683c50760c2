"""Loading what is needed of a model, and refusing what cannot be right.

The model is built whole from its configuration, then cut *before* the weights are read (backbone.py), so
depth-dependent families stay as they are, and nothing above the last tap, no head and no tower is read from disk or
held in memory. What was read is checked (checkpoint.py).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from gpu_worker.backbone import Cut, cut_class, model_class, text_backbone
from gpu_worker.canary import Gate, choose_way
from gpu_worker.checkpoint import (
    refuse_missing,
    refuse_other_dtypes,
    refuse_quantized_config,
    refuse_quantized_weights,
    refuse_unexpected,
    refuse_zero_blocks,
)
from hiddenstream.chassis.logs import log
from hiddenstream.contracts.errors import GateRefused, ModelError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.taps import tap_depth

MODEL_LOADED = "model_loaded"
MODEL_CUT_REFUSED = "model_cut_refused"
TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_WEIGHTS_SHARE = 0.8  # of a GPU's free memory, where a model is spread; batches need the rest
_LOGGER = logging.getLogger("gpu_worker.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A backbone ready to run.

    Attributes:
        backbone: the text backbone, in eval mode, on its device; no lm_head.
        blocks: its decoder blocks, from 0 to the last tap.
        device: where token ids go in and states are gathered; the rest of it may lie on other GPUs.
        load_seconds: reading weights.
        warm_seconds: first forward passes.
        gate: what gpu_worker/canary.py found: the way of batching, and what runs batches in it.
        attention: the attention implementation that transformers chose; none is asked for.
    """

    backbone: Any
    blocks: nn.ModuleList
    device: torch.device
    load_seconds: float
    warm_seconds: float
    gate: Gate
    attention: str


def choose_device(name: str) -> torch.device:
    """Return the device that *name* means; ``auto`` is CUDA where there is one.

    Raises:
        ModelError: no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return device


def load_model(
    record: RunRecord, model: str, device: torch.device, *, gpus: int = 1, token_budget: int | None = None
) -> LoadedModel:
    """Load, check and warm the backbone of a run's model.

    Args:
        record: the run: taps, compute dtype and numbers that the model must have.
        model: path or hub id where the worker finds it; its content has been checked already.
        gpus: how many GPUs to spread it over, the first ones that this process sees; whole blocks go to one GPU each.
        token_budget: most token slots of a batch on this worker, or None to follow the run.

    Raises:
        ModelError: weights are missing, the width is another, a tap is not [rows, tokens, width], or states depend on
            what else is in the batch.
    """
    taps = record.identity.taps
    started = time.monotonic()
    blocks_needed = max(tap_depth(taps[-1]) + 1, 1)
    placement = _placement(device, gpus)
    backbone, blocks = _load(record, model, placement, keep=blocks_needed)
    device = _input_device(backbone)
    loaded = time.monotonic()
    gate, fault = _gate(record, backbone, blocks, device, token_budget)
    if gate is None:  # a family that counts blocks by its configuration
        log(_LOGGER, MODEL_CUT_REFUSED, {"message": fault}, level=logging.WARNING)
        del backbone, blocks  # before the next ones, or both would have to fit
        backbone, blocks = _load(record, model, placement, keep=record.num_blocks)
        device = _input_device(backbone)
        gate, fault = _gate(record, backbone, blocks, device, token_budget)
        if gate is None:
            raise GateRefused(f"--model {model}: {type(backbone).__name__} does not run: {fault}")
    result = LoadedModel(
        backbone=backbone,
        blocks=blocks,
        device=device,
        load_seconds=loaded - started,
        warm_seconds=time.monotonic() - loaded,
        gate=gate,
        attention=str(getattr(backbone.config, "_attn_implementation", None)),
    )
    facts = {
        "model": model,
        "device": str(device),
        "devices": sorted({str(p.device) for p in backbone.parameters()}),
        "dtype": record.identity.compute_dtype,
        "attention": result.attention,
        "blocks": len(blocks),
        "blocks_of_model": record.num_blocks,
        "weight_bytes": sum(p.numel() * p.element_size() for p in backbone.parameters()),
        "load_seconds": round(result.load_seconds, 3),
        "warm_seconds": round(result.warm_seconds, 3),
    }
    log(_LOGGER, MODEL_LOADED, facts)
    return result


def _gate(
    record: RunRecord, backbone: nn.Module, blocks: nn.ModuleList, device: torch.device, token_budget: int | None
) -> tuple[Gate | None, str]:
    """Return the gate, or None and the message of an IndexError: the error itself would keep the model in memory."""
    budget = record.settings.token_budget
    try:
        gate = choose_way(
            backbone,
            blocks,
            record.identity,
            device=device,
            longest_tokens=record.longest_tokens,
            token_budget=min(budget, token_budget or budget),
        )
    except IndexError as error:
        return None, str(error)
    return gate, ""


def _placement(device: torch.device, gpus: int) -> dict[str, Any]:
    """Return where transformers shall load a model: on *device*, or evenly over *gpus* GPUs and nowhere else."""
    if gpus == 1 or device.type != "cuda":
        return {"device_map": {"": device}}
    if torch.cuda.device_count() < gpus:
        raise ModelError(f"--gpus {gpus}: torch sees {torch.cuda.device_count()}")
    free_bytes = {number: torch.cuda.mem_get_info(number)[0] for number in range(gpus)}
    most_bytes = {number: int(free * _WEIGHTS_SHARE) for number, free in free_bytes.items()}
    return {"device_map": "balanced", "max_memory": most_bytes}  # "cpu" is not in it: nothing is offloaded to it


def _refuse_offloading(whole: nn.Module) -> None:
    """Refuse a model that does not fit: accelerate would fetch blocks from disk at every batch."""
    places = {str(place) for place in getattr(whole, "hf_device_map", {}).values()}
    if places & {"cpu", "disk", "meta"}:
        raise ModelError("it does not fit on the GPUs of this worker; give it more with --gpus")


def _input_device(backbone: Any) -> torch.device:
    """Return the device of the embedding, to which token ids go."""
    device: torch.device = backbone.get_input_embeddings().weight.device
    return device


def _load(record: RunRecord, model: str, placement: dict[str, Any], *, keep: int) -> tuple[Any, nn.ModuleList]:
    """Return the text backbone with its first *keep* blocks, and these; every refusal names the model."""
    try:
        return _load_checked(record, model, placement, keep=keep)
    except Exception as error:  # what a family's code raises where it does not fit its files, or lacks a package
        raise ModelError(f"--model {model}: {error}") from error


def _load_checked(record: RunRecord, model: str, placement: dict[str, Any], *, keep: int) -> tuple[Any, nn.ModuleList]:
    dtype = TORCH_DTYPES[record.identity.compute_dtype]
    config = transformers.AutoConfig.from_pretrained(model, revision=record.revision)
    refuse_quantized_config(config)
    cuts: list[Cut] = []
    whole, report = cut_class(model_class(config), keep, cuts).from_pretrained(
        model, revision=record.revision, config=config, dtype=dtype, **placement, output_loading_info=True
    )
    refuse_quantized_weights(model, record.revision)
    refuse_missing(report)
    refuse_unexpected(report, whole, cuts[-1])
    refuse_other_dtypes(whole, dtype, cuts[-1])
    if placement["device_map"] == "balanced":
        _refuse_offloading(whole)
    backbone = text_backbone(whole).eval().requires_grad_(False)
    refuse_zero_blocks(backbone, cuts[-1].blocks)
    return backbone, cuts[-1].blocks
