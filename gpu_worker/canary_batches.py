"""The samples that the canary runs: lengths at which some layer changes what it does, in packs of the real size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpu_worker.ways import BatchRunner, TokenRows

_ALWAYS = (1, 2, 3, 4, 5, 63, 64, 65)  # short convolutions have kernels of 3 or 4; delta rules run in chunks of 64
_EQUAL = (17, 17, 17)
_THRESHOLDS = ("window", "chunk", "conv", "kernel", "max_position", "original_max")  # in names of settings
_MOST_THRESHOLDS = 12
_FEW = 4
_TYPICAL = (682, 0.8)  # median and spread of the log-normal lengths that fill a pack up


def lengths_that_matter(config: Mapping[str, Any], longest_tokens: int) -> list[int]:
    """Return lengths, descending, at and around which a model may behave differently; none over *longest_tokens*.

    Args:
        config: a model's configuration; every whole number whose name speaks of a window, a chunk, a convolution or a
            limit of positions counts as a threshold.
        longest_tokens: of the plan's samples.
    """
    lengths = {*_ALWAYS, longest_tokens}
    thresholds = sorted(set(_thresholds(config, longest_tokens)))[:_MOST_THRESHOLDS]
    for threshold in thresholds:
        lengths |= {threshold - 1, threshold, threshold + 1, 2 * threshold + 1}
    is_just_past = any(0 < longest_tokens - threshold <= _FEW for threshold in thresholds)
    more = [longest_tokens] * _FEW if is_just_past else []  # or only a few tokens would lie past it
    return sorted((length for length in (*lengths, *more) if 1 <= length <= longest_tokens), reverse=True)


def _thresholds(config: Any, longest_tokens: int) -> Iterator[int]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _thresholds(value, longest_tokens)
        elif any(part in str(name) for part in _THRESHOLDS) and type(value) is int and 2 <= value <= longest_tokens:
            yield value


def canary_batches(
    runner: BatchRunner, lengths: list[int], *, token_budget: int, vocabulary: int, is_filled: bool
) -> list[TokenRows]:
    """Return batches of random samples of *lengths*, as the runner's way would cut them.

    Long samples come before short ones and short before long, and some are of equal length.

    Args:
        lengths: descending.
        token_budget: of a batch of the run.
        vocabulary: token ids are below this.
        is_filled: fill the last batch with samples of ordinary lengths, up to the real size.
    """
    ordered = _ordered(runner.way, lengths)
    if is_filled and runner.way in ("packed", "padded"):
        ordered += _filling(ordered, runner, token_budget, longest=lengths[0])
    generator = np.random.default_rng(0)
    rows = [generator.integers(0, vocabulary, length).astype(np.int32) for length in ordered]
    cut = runner.cut(ordered, max_token_slots=token_budget)
    return [[rows[place] for place in batch] for batch in cut]


def _ordered(way: str, lengths: list[int]) -> list[int]:
    equal = [min(length, lengths[0]) for length in _EQUAL]
    if way == "equal_lengths":
        return [length for length in (*lengths, *equal[:1]) for _ in range(2)]
    if way == "one_at_a_time":
        return [*lengths, *equal[:1]]
    if way == "padded":  # the longest beside the shortest; then of like length, so that few slots are spent
        return [lengths[0], lengths[-1], *lengths[1:-1], *equal]
    halves = lengths[: (len(lengths) + 1) // 2], lengths[(len(lengths) + 1) // 2 :][::-1]
    mixed = [length for pair in zip(*halves, strict=False) for length in pair]
    mixed += halves[0][len(halves[1]) :]
    return [*mixed, *equal, *([lengths[-1]] if lengths[-1] != lengths[0] else [])]


def _filling(ordered: list[int], runner: BatchRunner, token_budget: int, *, longest: int) -> list[int]:
    last = list(runner.cut(ordered, max_token_slots=token_budget))[-1]
    batch = [ordered[place] for place in last]
    generator = np.random.default_rng(1)
    filling: list[int] = []
    while True:
        length = int(np.clip(generator.lognormal(np.log(_TYPICAL[0]), _TYPICAL[1]), 1, longest))
        if runner.token_slots([*batch, *filling, length]) > token_budget:
            return filling
        filling.append(length)
