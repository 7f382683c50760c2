"""Convolutions and delta rules that start anew at every sample of a pack.

Hybrid families (Qwen3-Next, Qwen3.5, Kimi Linear, LFM2, ...) keep a state along the row: a short convolution and a
recurrence. transformers computes both by functions that each family's module names; :func:`heed_segments` puts its own
around them. Outside of a pack they are what they were. Inside of one, on CUDA, flash-linear-attention resets the state
at every boundary (``cu_seqlens``); elsewhere each sample is given to the family's function alone, which is slow, and
there to test packing without a GPU. A recurrence that is not known here leaks, and the canary sees it.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.packing import PackingUnsupported, current_segments

_CONVOLUTIONS = ("causal_conv1d_fn",)
_DELTA_RULES = (
    "torch_chunk_gated_delta_rule",
    "torch_chunk_kda",
    "chunk_gated_delta_rule",
    "chunk_kimi_delta_attention",
)
_IS_OURS = "_heeds_segments"


def heed_segments(backbone: nn.Module) -> None:
    """Put segment-aware functions around those of every module of code that *backbone* is made of."""
    for name in {type(module).__module__ for module in backbone.modules()}:
        code = sys.modules[name]
        for names, around in ((_CONVOLUTIONS, _convolution), (_DELTA_RULES, _delta_rule)):
            for function_name in names:
                function = getattr(code, function_name, None)
                if callable(function) and not hasattr(function, _IS_OURS):
                    heeding = around(function)
                    setattr(heeding, _IS_OURS, True)
                    setattr(code, function_name, heeding)


def _convolution(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def convolution(hidden_BDT: Tensor, weight: Tensor, bias: Tensor | None = None, *others: Any, **named: Any) -> Any:
        segments = current_segments()
        if segments is None:
            return own(hidden_BDT, weight, bias, *others, **named)
        if not hidden_BDT.is_cuda:
            pieces = [own(hidden_BDT[:, :, a:b], weight, bias, *others, **named) for a, b in segments.pieces()]
            return torch.cat(pieces, dim=-1)
        _require_flash_linear_attention()
        from fla.modules.causal_conv1d import causal_conv1d

        activation = named.get("activation", others[0] if others else None)
        boundaries = segments.boundaries.to(hidden_BDT.device, torch.int64)
        output_BTD, _ = causal_conv1d(
            hidden_BDT.transpose(1, 2), weight, bias, activation=activation, cu_seqlens=boundaries
        )
        return output_BTD.transpose(1, 2)

    return convolution


def _delta_rule(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def delta_rule(query_BTHE: Tensor, key_BTHE: Tensor, value_BTHE: Tensor, *others: Any, **named: Any) -> Any:
        segments = current_segments()
        if segments is None:
            return own(query_BTHE, key_BTHE, value_BTHE, *others, **named)
        if query_BTHE.is_cuda:
            _require_flash_linear_attention()
            named["cu_seqlens"] = segments.boundaries.to(query_BTHE.device, torch.int64)
            return own(query_BTHE, key_BTHE, value_BTHE, *others, **named)
        tokens = query_BTHE.shape[1]
        outputs = []
        for begin, end in segments.pieces():
            cut = functools.partial(_cut, tokens=tokens, begin=begin, end=end)
            pieces = [cut(x) for x in (query_BTHE, key_BTHE, value_BTHE, *others)]
            outputs.append(own(*pieces, **{name: cut(x) for name, x in named.items()})[0])
        return torch.cat(outputs, dim=1), None

    return delta_rule


def _cut(argument: Any, *, tokens: int, begin: int, end: int) -> Any:
    is_along_row = isinstance(argument, Tensor) and argument.ndim >= 3 and argument.shape[1] == tokens
    return argument[:, begin:end] if is_along_row else argument


def _require_flash_linear_attention() -> None:
    if importlib.util.find_spec("fla") is None:
        raise PackingUnsupported("its linear attention needs the package flash-linear-attention to be packed")
