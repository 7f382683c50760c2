"""What can be wrong with a checkpoint's weights, each refused by name and with the way out.

transformers fills a weight that is missing with random numbers, ignores one that it does not know, and casts whole
numbers to the dtype that is asked for. Each of them gives states that look fine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from gpu_worker.backbone import Cut, whole_classes
from hiddenstream.contracts.errors import ModelError

_PLAIN = {"F64", "F32", "F16", "BF16"}  # dtypes of safetensors that hold a weight's value itself
_WHOLE_NUMBERS = {"I64", "I32", "I16", "U64", "U32", "U16", "U8", "BOOL"}  # also those of buffers: positions, masks
_SHOWN = 3
_UNQUANTIZED = "give its unquantized checkpoint, or dequantize it and save that"


class CheckpointRefused(ModelError):
    """A checkpoint whose states would be those of another model."""


def refuse_quantized_config(config: Any) -> None:
    """Refuse a configuration that says its weights are quantized.

    Raises:
        CheckpointRefused: it does.
    """
    for part in (config, config.get_text_config()):
        quantization = getattr(part, "quantization_config", None)
        if quantization:
            settings = quantization if isinstance(quantization, dict) else vars(quantization)
            method = settings.get("quant_method", "in an unknown way")
            raise CheckpointRefused(
                f"its weights are quantized ({getattr(method, 'value', method)}), so its states are not the model's;"
                f" {_UNQUANTIZED}"
            )


def refuse_quantized_weights(model: str, revision: str | None) -> None:
    """Refuse weights that are whole numbers or 8-bit floats; reads headers of safetensors files that are here.

    Raises:
        CheckpointRefused: there is one.
    """
    for name, dtype in _stored_dtypes(model, revision):
        is_quantized = dtype not in _PLAIN and (dtype not in _WHOLE_NUMBERS or "weight" in name.rsplit(".", 1)[-1])
        if is_quantized:
            raise CheckpointRefused(
                f"its weight {name} is {dtype}, quantized, and its configuration does not say how; {_UNQUANTIZED}"
            )


def _stored_dtypes(model: str, revision: str | None) -> Iterable[tuple[str, str]]:
    index, single = (_file(model, name, revision) for name in (SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME))
    if single is None and index is not None:
        names = sorted(set(json.loads(Path(index).read_text())["weight_map"].values()))
        files = [_file(model, name, revision) for name in names]
    else:
        files = [single]
    for file in files:
        if file is not None:
            with safe_open(file, framework="pt") as opened:
                yield from [(name, opened.get_slice(name).get_dtype()) for name in opened.keys()]  # noqa: SIM118


def _file(model: str, name: str, revision: str | None) -> str | None:
    try:
        found: str | None = cached_file(
            model, name, revision=revision, local_files_only=True, _raise_exceptions_for_missing_entries=False
        )
    except OSError:
        return None
    return found


def refuse_missing(report: Mapping[str, Any]) -> None:
    """Refuse a checkpoint without weights that its configuration names.

    Args:
        report: transformers' ``output_loading_info``.

    Raises:
        CheckpointRefused: some are missing.
    """
    missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointRefused(
            f"its files lack {len(missing)} weights that its configuration names, for example {_shown(missing)}; they"
            " would be random numbers. Give a whole checkpoint, or the configuration that belongs to it"
        )


def refuse_unexpected(report: Mapping[str, Any], loaded: Any, cut: Cut) -> None:
    """Refuse a checkpoint with weights that its architecture does not know.

    What was cut away is known, and so is what the whole model has, head and all, and what transformers ignores.

    Raises:
        CheckpointRefused: some remain.
    """
    prefix = f"{loaded.base_model_prefix}."
    away = tuple(f"{name}." for name in cut.away)
    unknown = {
        name
        for name in report["unexpected_keys"]
        if not name.removeprefix(prefix).startswith(tuple(part.removeprefix(prefix) for part in away))
    }
    for family in whole_classes(loaded.config) if unknown else ():
        unknown -= _known_to(family, loaded.config, unknown)
    if unknown:
        raise CheckpointRefused(
            f"its files hold {len(unknown)} weights that {type(loaded).__name__} does not have, for example"
            f" {_shown(sorted(unknown))}; the states would be those of another model. Correct the architecture in its"
            " config.json, or delete these weights if they are of no account"
        )


def _known_to(family: type[Any], config: Any, names: set[str]) -> set[str]:
    """Return which of *names* a whole model of *family* has under their own or a newer name, or ignores."""
    try:
        with torch.device("meta"):
            whole = family(config)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):  # of another architecture
        return set()
    weights = whole.state_dict()
    ignored = [re.compile(rule) for rule in whole._keys_to_ignore_on_load_unexpected or ()]
    transforms = get_model_conversion_mapping(whole)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]

    def is_known(name: str) -> bool:
        newer, _ = rename_source_key(name, renamings, converters, whole.base_model_prefix, weights)
        either = {name, newer, f"{whole.base_model_prefix}.{name}"}
        return bool(either & weights.keys()) or any(rule.search(one) for rule in ignored for one in either)

    return {name for name in names if is_known(name)}


def refuse_other_dtypes(loaded: Any, dtype: torch.dtype, cut: Cut) -> None:
    """Refuse a model of which a parameter came in another dtype than asked.

    Allowed in float32 is what the architecture makes in float32, or transformers keeps so.

    Raises:
        CheckpointRefused: there is one.
    """
    kept = [*(loaded._keep_in_fp32_modules or ()), *(loaded._keep_in_fp32_modules_strict or ())]
    is_kept = re.compile("|".join(pattern.replace("*", ".*") for pattern in kept)) if kept else None
    for name, parameter in loaded.named_parameters():
        if not parameter.is_floating_point():
            raise CheckpointRefused(f"{name} came as {parameter.dtype}, quantized; {_UNQUANTIZED}")
        allowed = {dtype}
        if cut.built_dtypes.get(name) == torch.float32 or (is_kept is not None and is_kept.search(name)):
            allowed.add(torch.float32)
        if parameter.dtype not in allowed:
            raise CheckpointRefused(
                f"asked for {dtype}, {name} came as {parameter.dtype}; this family does not take that dtype, so give"
                " another with --dtype"
            )


def refuse_zero_blocks(backbone: Any, blocks: nn.ModuleList) -> None:
    """Refuse a model of which a block, or the embedding, has only zeros in its matrices.

    Raises:
        CheckpointRefused: there is one.
    """
    named = {"embedding": backbone.get_input_embeddings(), **{f"block.{k}": block for k, block in enumerate(blocks)}}
    zero = [name for name, part in named.items() if _is_zero(part)]
    if zero:
        raise CheckpointRefused(
            f"{_shown(zero)}: all its weights are zero; its files are damaged or were never filled, so fetch them again"
        )


def _is_zero(part: nn.Module) -> bool:
    matrices = [parameter for parameter in part.parameters() if parameter.ndim >= 2]
    return bool(matrices) and not any(bool(matrix.any()) for matrix in matrices)


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN])
