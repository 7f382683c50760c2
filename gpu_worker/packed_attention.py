"""Attention over packed samples, behind transformers' own attention interface.

Shape letters: B rows (one), H query heads, G key and value heads, T token slots, E head size.

On CUDA in half precision it is one call of torch's variable-length attention; elsewhere a loop over the samples, which
is slow, and there to test packing without a GPU. Sliding windows and attention sinks are kept. Source of the formulas:
transformers' eager attention functions (sliding window: a token sees itself and the ``window - 1`` before it; sinks:
one more logit per head in the softmax's sum, as in gpt_oss).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import varlen
from transformers import AttentionInterface, AttentionMaskInterface

from gpu_worker.packing import PackingUnsupported, Segments, current_segments

PACKED_ATTENTION = "hiddenstream_packed"
_LARGEST_HEAD = 256  # of the FlashAttention 2 kernel in torch
_HEAD_MULTIPLE = 8
_GROUPED = (
    {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters else {}
)  # torch 2.13


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **_others: Any,
) -> tuple[Tensor, None]:
    """Attend inside each sample of the current pack, causally.

    Args:
        query: [1, H, T, E]. key, value: [1, G, T, E]; the value's head size may be another.
        attention_mask: not used; the pack's boundaries stand for it.
        scaling: of the scores; the inverse root of the head size unless given.
        sliding_window: tokens that a token sees, itself included.
        s_aux: a sink logit for each query head, [H].

    Returns:
        [1, T, H, E of the value], and None for the weights.

    Raises:
        PackingUnsupported: outside of a pack, more than one row, a layer that looks ahead, scores that are capped, or a
            head that is too large.
    """
    del attention_mask  # families pass it by place or by name
    segments = current_segments()
    if segments is None or query.shape[0] != 1 or query.shape[2] != sum(segments.lengths):
        raise PackingUnsupported(f"{type(module).__name__} attends over something else than the pack's tokens")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise PackingUnsupported(f"{type(module).__name__} looks ahead")
    scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else float(scaling)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        if softcap:
            raise PackingUnsupported(f"{type(module).__name__} caps its scores, which variable-length attention cannot")
        output_THE = _attend_on_cuda(query, key, value, segments, scale, sliding_window, s_aux)
    elif query.is_cuda:
        raise PackingUnsupported(f"variable-length attention does not run in {query.dtype}")
    else:
        output_THE = _attend_one_by_one(query, key, value, segments, scale, sliding_window, softcap, s_aux)
    return output_THE[None], None


def _attend_on_cuda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    scale: float,
    window: int | None,
    sinks_H: Tensor | None,
) -> Tensor:
    size, value_size = query.shape[-1], value.shape[-1]
    padded_size = -(-max(size, value_size) // _HEAD_MULTIPLE) * _HEAD_MULTIPLE
    if padded_size > _LARGEST_HEAD:
        raise PackingUnsupported(f"heads of {padded_size}; variable-length attention takes up to {_LARGEST_HEAD}")
    boundaries = segments.boundaries.to(query.device)
    heads = [functional.pad(x[0].transpose(0, 1), (0, padded_size - x.shape[-1])) for x in (query, key, value)]
    options: dict[str, Any] = {"scale": scale, "window_size": (window - 1 if window else -1, 0), **_GROUPED}
    if sinks_H is not None:
        options["return_aux"] = varlen.AuxRequest(lse=True)
    longest = segments.longest
    found: Any = varlen.varlen_attn(heads[0], heads[1], heads[2], boundaries, boundaries, longest, longest, **options)
    if sinks_H is None:
        without_sinks: Tensor = found[..., :value_size]
        return without_sinks
    output_THE: Tensor = found[0]
    log_sum: Tensor = found[1]
    log_sum_TH = log_sum if log_sum.shape[0] == output_THE.shape[0] else log_sum.T  # torch 2.11 has [H, T]
    share_TH = torch.sigmoid(log_sum_TH - sinks_H.float())  # of the softmax's sum that is not the sink's
    return (output_THE * share_TH[..., None]).to(query.dtype)[..., :value_size]


def _attend_one_by_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks_H: Tensor | None,
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    outputs = []
    for begin, end in segments.pieces():
        query_HTE = query[0, :, begin:end]
        key_HTE, value_HTE = (x[0, :, begin:end].repeat_interleave(groups, dim=0) for x in (key, value))
        scores_HTT = query_HTE @ key_HTE.transpose(1, 2) * scale
        if softcap:
            scores_HTT = torch.tanh(scores_HTT / softcap) * softcap
        places = torch.arange(end - begin, device=query.device)
        ago = places[:, None] - places[None, :]
        is_seen = (ago >= 0) & (ago < (window or end - begin))
        scores_HTT = scores_HTT.masked_fill(~is_seen, -torch.inf)
        if sinks_H is not None:
            sinks = sinks_H.to(scores_HTT.dtype)[:, None, None].expand(-1, end - begin, 1)
            scores_HTT = torch.cat([scores_HTT, sinks], dim=-1)
        weights = functional.softmax(scores_HTT, dim=-1, dtype=torch.float32).to(query.dtype)
        outputs.append((weights[..., : end - begin] @ value_HTE).transpose(0, 1))
    return torch.cat(outputs)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, lambda *_arguments, **_named: None)


class AttentionSwitch:
    """Changes which attention a loaded model uses, cheaply, by what its configurations name."""

    def __init__(self, backbone: nn.Module) -> None:
        """Find the configurations that the model's modules hold."""
        held: dict[int, Any] = {id(m.config): m.config for m in backbone.modules() if hasattr(m, "config")}
        self._own: list[tuple[Any, str]] = [(config, config._attn_implementation) for config in held.values()]
        can_switch: Any = getattr(backbone, "_can_set_attn_implementation", lambda: True)
        self._can_switch = bool(can_switch())

    @contextmanager
    def packed(self) -> Iterator[None]:
        """Use packed attention inside the context.

        Raises:
            PackingUnsupported: the family computes attention by itself.
        """
        if not self._can_switch:
            raise PackingUnsupported("this family computes attention by itself, without transformers' interface")
        self._set({id(config): PACKED_ATTENTION for config, _ in self._own})
        try:
            yield
        finally:
            self.set_own()

    @contextmanager
    def own(self) -> Iterator[None]:
        """Use the model's own attention inside the context, also inside of :meth:`packed`."""
        before = {id(config): config._attn_implementation for config, _ in self._own}
        self.set_own()
        try:
            yield
        finally:
            self._set(before)

    def set_own(self) -> None:
        """Use the model's own attention from now on."""
        self._set({id(config): own for config, own in self._own})

    def _set(self, names: dict[int, str]) -> None:
        for config, _ in self._own:
            config._attn_implementation_internal = names[id(config)]
