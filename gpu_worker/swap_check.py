"""The canary's second test: replacing the tokens of a sample's mates, lengths kept, changes its states by not one bit.

A batch runs three times: first for autotuning, then twice to see that equal input gives equal bits; then with every
second sample's tokens replaced, and with the others'. Shapes stay, so kernels stay, and rounding with them: any
difference comes from a mate. So does replacing what rows are padded with.

The one exception are mixtures of experts, where mates decide how many tokens each expert gets, and so which kernel.
Where bits differ, the difference may be rounding (every block is called once more with the mates' hidden states
replaced), and in a batch of equal lengths, exchanging mates for one another must still change not one bit: that leaves
every expert as many tokens as before, and whoever reads a neighbour reads another one. Where not even the same batch
twice gives equal bits, nothing below rounding can be seen, and rounding is all that is asked.

Shape letters: B rows, T token slots, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpu_worker.block_check import Subject, called_with, entering_of, token_errors
from gpu_worker.taps import captured_taps, hidden_of
from gpu_worker.ways import BatchRunner, TokenRow, TokenRows, vocabulary_rows

_EXCHANGED_TOKENS, _EXCHANGED_SAMPLES = 65, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapFigures:
    """What replacing mates changed.

    Attributes:
        difference: 0 where not one bit; else the largest difference of a token in one block, or infinity where even
            exchanged mates change bits.
        is_bitwise: whether the states kept every bit.
        is_repeatable: whether the same batch twice gave equal bits.
    """

    difference: float
    is_bitwise: bool
    is_repeatable: bool


@torch.inference_mode()
def swap_mates(subject: Subject, runner: BatchRunner, rows: TokenRows, taps: tuple[str, ...]) -> SwapFigures:
    """Run the test on one batch of two samples or more.

    Raises:
        PackingUnsupported: the way is not possible.
    """
    runner.run(rows)
    first = _taps_of(subject, runner, rows, taps)
    is_repeatable = _are_equal(first, _taps_of(subject, runner, rows, taps), runner, rows, range(len(rows)))
    is_bitwise = is_repeatable
    if is_bitwise and runner.way == "padded":
        is_bitwise = _are_equal(
            first, _taps_of(subject, runner, rows, taps, filling=int(rows[0][0])), runner, rows, range(len(rows))
        )
    for kept in (range(0, len(rows), 2), range(1, len(rows), 2)):
        if is_bitwise:
            others = _with_mates_replaced(subject, rows, set(kept))
            is_bitwise = _are_equal(first, _taps_of(subject, runner, others, taps), runner, rows, kept)
    if is_bitwise:
        return SwapFigures(difference=0.0, is_bitwise=True, is_repeatable=True)
    difference = _largest_in_a_block(subject, runner, rows)
    if is_repeatable and not _survives_exchange(subject, runner, rows[0], taps):
        difference = float("inf")
    return SwapFigures(difference=difference, is_bitwise=False, is_repeatable=is_repeatable)


def _survives_exchange(subject: Subject, runner: BatchRunner, kept: TokenRow, taps: tuple[str, ...]) -> bool:
    """Whether samples of equal lengths keep every bit when their mates change places."""
    generator = np.random.default_rng(3)
    length = min(kept.size, _EXCHANGED_TOKENS)
    vocabulary = vocabulary_rows(subject.backbone)
    rows = [generator.integers(0, vocabulary, length).astype(np.int32) for _ in range(_EXCHANGED_SAMPLES)]
    runner.run(rows)
    first = _taps_of(subject, runner, rows, taps)
    for parity in (0, 1):
        exchanged = list(rows)
        mates = rows[1 - parity :: 2]
        exchanged[1 - parity :: 2] = [*mates[1:], mates[0]]
        kept_places = range(parity, len(rows), 2)
        if not _are_equal(first, _taps_of(subject, runner, exchanged, taps), runner, rows, kept_places):
            return False
    return True


def _taps_of(
    subject: Subject, runner: BatchRunner, rows: TokenRows, taps: tuple[str, ...], *, filling: int | None = None
) -> list[Tensor]:
    with captured_taps(subject.blocks, taps) as captured:
        runner.run(rows, filling=filling)
    return [captured[tap] for tap in taps]


def _are_equal(first: list[Tensor], second: list[Tensor], runner: BatchRunner, rows: TokenRows, kept: range) -> bool:
    places = runner.slices_of([row.size for row in rows])
    return all(
        _has_equal_bits(one_BTD[places[place]], other_BTD[places[place]])
        for one_BTD, other_BTD in zip(first, second, strict=True)
        for place in kept
    )


def _has_equal_bits(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _with_mates_replaced(subject: Subject, rows: TokenRows, kept: set[int]) -> TokenRows:
    vocabulary = vocabulary_rows(subject.backbone)
    generator = np.random.default_rng(len(rows))
    return [
        row if place in kept else generator.integers(0, vocabulary, row.size).astype(np.int32)
        for place, row in enumerate(rows)
    ]


def _largest_in_a_block(subject: Subject, runner: BatchRunner, rows: TokenRows) -> float:
    """Run the batch once more; in it, call each block again with all but every second sample's hidden states
    turned round."""
    places = runner.slices_of([row.size for row in rows])
    largest, is_inside = 0.0, False

    def hook(block: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        nonlocal largest, is_inside
        if is_inside:
            return
        is_inside = True
        try:
            entering_BTD, found_BTD = entering_of(arguments, named), hidden_of(output, "a block")
            for parity in (0, 1):
                changed_BTD = -entering_BTD.flip(1)
                for place in places[parity::2]:
                    changed_BTD[place] = entering_BTD[place]  # what they are padded with is changed, too
                again_BTD = called_with(block, changed_BTD, arguments, named)
                for place in places[parity::2]:
                    errors_S = token_errors(again_BTD[place], found_BTD[place], entering_BTD[place])
                    largest = max(largest, float(errors_S.max()))
        finally:
            is_inside = False

    handles = [block.register_forward_hook(hook, with_kwargs=True) for block in subject.blocks]
    try:
        runner.run(rows)
    finally:
        for handle in handles:
            handle.remove()
    return largest
