"""The canary's first test: each block, given the same input in a way of batching and alone, gives the same output.

End to end, bfloat16's rounding grows with depth until it hides a leak (2e-3 after block 1, 5e-2 after block 61,
measured on an H200 with random weights). Block by block it does not grow. So, in one pass of a batch, every block is
called once more for every sample alone: with the sample's rows of the batch's hidden states, and with the mask,
positions and everything else that the block got when plain transformers ran the sample alone. What differs is judged
per token, so that a leak into the first tokens of a long sample is not averaged away.

Where a token differs by more than rounding explains, half precision may still be why: where two experts of a mixture
tie, rounding decides and the token's output is another, and some kernels round more than others. So there the block is
called once more in float32, and the way's errors against that are held against the errors of the sample alone: at every
size there may be twice as many tokens, and a few, and they may be half as large again. In float32 nothing is excused.

Shape letters: B rows, T token slots, S tokens of one sample, D model width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from gpu_worker.batching import padded_batch
from gpu_worker.fresh_state import FreshState
from gpu_worker.packed_attention import AttentionSwitch
from gpu_worker.packing import packed
from gpu_worker.taps import hidden_of
from gpu_worker.ways import BatchRunner, TokenRows

# Of a token's output, relative to the larger of its input's and output's norm. bfloat16 rounds by 2^-9 at each step of
# a block, about 2e-3 in all; a missing boundary or window changes tokens by 0.1 and more.
TOKEN_TOLERANCES = {torch.float32: 5e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
_SPARE_TOKENS, _MORE_TOKENS, _LARGER = 3, 2, 1.5  # what the way's errors may exceed those of the sample alone by


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A loaded model under test.

    Attributes:
        fresh, fresh_blocks: the state of the model, and of each block, as loaded.
    """

    backbone: nn.Module
    blocks: nn.ModuleList
    device: torch.device
    dtype: torch.dtype
    fresh: FreshState
    fresh_blocks: list[FreshState]
    attention: AttentionSwitch


@dataclass(slots=True)
class BlockFigures:
    """What one comparison found.

    Attributes:
        difference: largest difference of a token from the sample alone, relative; where float32 had to judge, the
            largest error against it that is not excused.
        fault: what is wrong, or "".
    """

    difference: float = 0.0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class _Call:
    """What a block got besides the hidden states, when a sample ran alone."""

    others: tuple[Any, ...]
    named: Mapping[str, Any]

    def of(self, block: nn.Module, entering_BSD: Tensor) -> Tensor:
        """Call *block* with this and *entering_BSD*."""
        return hidden_of(block(entering_BSD.contiguous(), *self.others, **self.named), "a block")

    def in_float32(self) -> _Call:
        """Return the same with every tensor of numbers in float32."""
        return _Call(*tree_map(_in_float32, (self.others, dict(self.named))))


def _in_float32(argument: Any) -> Any:
    return argument.float() if isinstance(argument, Tensor) and argument.is_floating_point() else argument


@torch.inference_mode()
def compare_blocks(subject: Subject, runner: BatchRunner, batches: list[TokenRows]) -> BlockFigures:
    """Run *batches* one after another, each block once more per sample alone, and compare.

    Raises:
        PackingUnsupported: the way is not possible.
    """
    calls = [[_calls_alone(subject, row) for row in rows] for rows in batches]
    figures = BlockFigures()
    for rows, batch_calls in zip(batches, calls, strict=True):
        _compare_batch(subject, runner, rows, batch_calls, figures)
    return figures


def _compare_batch(
    subject: Subject, runner: BatchRunner, rows: TokenRows, calls: list[list[_Call]], figures: BlockFigures
) -> None:
    places = runner.slices_of([row.size for row in rows])
    is_inside = False

    def compare(number: int) -> Any:
        def hook(block: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
            nonlocal is_inside
            if is_inside or figures.fault:
                return
            is_inside = True
            try:
                entering_BTD = entering_of(arguments, named)
                found_BTD = hidden_of(output, f"block.{number}")
                samples = [
                    (call[number], entering_BTD[place], found_BTD[place])
                    for place, call in zip(places, calls, strict=True)
                ]
                state_in_batch = FreshState(block)
                with packed(None), subject.attention.own():
                    difference, fault = _compare_block(block, samples, subject.dtype, subject.fresh_blocks[number])
                state_in_batch.restore()
                figures.difference = max(figures.difference, difference)
                figures.fault = fault and f"block.{number} {fault}"
            finally:
                is_inside = False

        return hook

    with _hooked(subject.blocks, compare):
        runner.run(rows)


def _compare_block(
    block: nn.Module, samples: list[tuple[_Call, Tensor, Tensor]], dtype: torch.dtype, fresh: FreshState
) -> tuple[float, str]:
    """Return the largest difference and the fault, if there is one."""
    tolerance = TOKEN_TOLERANCES[dtype]
    suspects, largest = [], 0.0
    for call, entering_BSD, found_BSD in samples:
        fresh.restore()
        alone_BSD = call.of(block, entering_BSD)
        difference = float(token_errors(found_BSD, alone_BSD, entering_BSD).max())
        largest = max(largest, difference)
        if not difference <= tolerance:
            suspects.append((call, entering_BSD, found_BSD, alone_BSD))
    if not suspects:
        return largest, ""
    if dtype == torch.float32:
        return largest, f"gives a token another output than when its sample is alone ({largest:.1e}, relative)"
    try:
        exact = copy.deepcopy(block).float()
    except torch.OutOfMemoryError:
        return largest, f"differs by {largest:.1e} (relative), and its float32 copy, to judge that, does not fit"
    errors_of_way, errors_alone = [], []
    for call, entering_BSD, found_BSD, alone_BSD in suspects:
        exact_BSD = call.in_float32().of(exact, entering_BSD.float())
        errors_of_way.append(token_errors(found_BSD, exact_BSD, entering_BSD))
        errors_alone.append(token_errors(alone_BSD, exact_BSD, entering_BSD))
    return _judged_by_float32(torch.cat(errors_of_way), torch.cat(errors_alone), tolerance)


def _judged_by_float32(way_S: Tensor, alone_S: Tensor, tolerance: float) -> tuple[float, str]:
    way_S, alone_S = way_S.sort(descending=True).values[_SPARE_TOKENS:], alone_S.sort(descending=True).values
    if not way_S.numel():
        return 0.0, ""
    ranks = torch.arange(way_S.numel(), device=way_S.device) // _MORE_TOKENS
    allowed_S = (_LARGER * alone_S[ranks]).clamp_min(tolerance)
    is_over_S = ~(way_S <= allowed_S)
    if not bool(is_over_S.any()):
        return float(way_S[0]), ""
    worst = int(is_over_S.nonzero()[0])
    message = (
        f"is wrong by {float(way_S[worst]):.1e} (relative, against float32) at {worst + 1 + _SPARE_TOKENS} tokens or"
        f" more; alone it would be {float(alone_S[ranks[worst]]):.1e} at half as many"
    )
    return float(way_S[worst]), message


def token_errors(found_BSD: Tensor, expected_BSD: Tensor, entering_BSD: Tensor) -> Tensor:
    """Return, float32 [S], by how much each token differs, relative to the larger of its norms in and out.

    Where the expected state is not finite there is nothing to compare: 0.
    """
    expected_BSD, entering_BSD = (
        x.to(found_BSD.device).float() for x in (expected_BSD, entering_BSD)
    )  # a block's input
    difference_S = (found_BSD.float() - expected_BSD).norm(dim=-1).flatten()  # may lie on the GPU before
    scale_S = torch.maximum(expected_BSD.norm(dim=-1), entering_BSD.norm(dim=-1)).flatten()
    error_S = difference_S / scale_S.clamp_min(1e-20)
    is_known_S = torch.isfinite(scale_S)
    return torch.where(is_known_S, error_S.nan_to_num(nan=torch.inf), 0.0)


def entering_of(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    """Return the hidden states that a block was called with."""
    entering: Tensor = arguments[0] if arguments else named["hidden_states"]
    return entering


def called_with(block: nn.Module, hidden_BTD: Tensor, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    """Call *block* again, with other hidden states and everything else as it was."""
    others = {name: value for name, value in named.items() if name != "hidden_states"}
    return hidden_of(block(hidden_BTD, *arguments[1:], **others), "a block")


def _calls_alone(subject: Subject, row: Any) -> list[_Call]:
    calls: list[_Call] = []

    def keep(_block: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        calls.append(_Call(arguments[1:], {name: value for name, value in named.items() if name != "hidden_states"}))

    handles = [block.register_forward_pre_hook(keep, with_kwargs=True) for block in subject.blocks]
    try:
        subject.fresh.restore()
        ids_BT = padded_batch([row], subject.device)
        subject.backbone(input_ids=ids_BT, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return calls


@contextmanager
def _hooked(blocks: nn.ModuleList, hook_of: Any) -> Iterator[None]:
    handles = [block.register_forward_hook(hook_of(number), with_kwargs=True) for number, block in enumerate(blocks)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
