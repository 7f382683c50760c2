"""Names of the tensors that can be kept. No I/O here.

``block.k`` is the output of decoder block k, counted from 0, before any final norm: transformers'
``hidden_states[k + 1]``. ``embedding`` is what enters block 0, after scaling and positions:
``hidden_states[0]``. ``final`` is the last block's output, the same tensor as ``block.N-1``, and is
stored under that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hiddenstream.contracts.errors import UsageError

EMBEDDING = "embedding"
FINAL = "final"
PRESETS = "dflash:K, eagle3, all"
_BLOCK_NUMBER = re.compile(r"[0-9]{1,9}")


def tap_depth(tap: str) -> int:
    """Return where *tap* lies in the model: -1 for the embedding, k for ``block.k``.

    Raises:
        UsageError: *tap* is no stored tap's name.
    """
    if tap == EMBEDDING:
        return -1
    prefix, _, number = tap.partition(".")
    if prefix != "block" or not _BLOCK_NUMBER.fullmatch(number):
        raise UsageError(f"{tap!r} is not a tap; taps are 'embedding' and 'block.K'")
    return int(number)


def parse_layers(text: str, *, num_blocks: int, keep_final: bool = False) -> tuple[str, ...]:
    """Turn what a user wrote after ``--layers`` into tap names in order of depth.

    Args:
        text: a preset (``dflash:K``, ``eagle3``, ``all``) or a comma-separated list of block numbers,
            ``block.K``, ``embedding`` and ``final``.
        num_blocks: decoder blocks of the model.
        keep_final: keep the last block's output too, as ``--final`` asks.

    Returns:
        Tap names, ascending in depth, none twice.

    Raises:
        UsageError: an unknown word, a number outside 0..num_blocks-1, a tap named twice, a preset
            that collapses on a model this small, or nothing at all.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError(f"--layers is empty; give numbers from 0 to {num_blocks - 1} or a preset: {PRESETS}")
    if len(words) == 1 and (words[0] in ("eagle3", "all") or words[0].startswith("dflash:")):
        depths = _preset_depths(words[0], num_blocks)
    else:
        depths = [_word_depth(word, num_blocks) for word in words]
    repeated = sorted({depth for depth in depths if depths.count(depth) > 1})
    if repeated:
        named = ", ".join(_tap_name(depth) for depth in repeated)
        hint = " ('final' is the last block)" if FINAL in words else ""
        raise UsageError(
            f"--layers {text!r} names {named} more than once{hint}; each of blocks 0 to {num_blocks - 1} once at most"
        )
    if keep_final:
        depths = [*set(depths) | {num_blocks - 1}]
    return tuple(_tap_name(depth) for depth in sorted(depths))


def _tap_name(depth: int) -> str:
    return EMBEDDING if depth < 0 else f"block.{depth}"


def _word_depth(word: str, num_blocks: int) -> int:
    if word == EMBEDDING:
        return -1
    if word == FINAL:
        return num_blocks - 1
    number = word.removeprefix("block.")
    if not _BLOCK_NUMBER.fullmatch(number.removeprefix("-")):
        raise UsageError(
            f"--layers: {word!r} is neither a block number from 0 to {num_blocks - 1}, 'embedding', 'final', nor a"
            f" preset ({PRESETS})"
        )
    if not 0 <= int(number) < num_blocks:
        hint = "; the last one is also called 'final'" if int(number) < 0 else ""
        raise UsageError(f"--layers: block {number} does not exist; this model has blocks 0 to {num_blocks - 1}{hint}")
    return int(number)


def _preset_depths(preset: str, num_blocks: int) -> list[int]:
    """Source: DFlash's and EAGLE-3's own choice of target layers, counted as block outputs."""
    if preset == "all":
        return list(range(num_blocks))
    if preset == "eagle3":
        return _uncollapsed(preset, [1, num_blocks // 2 - 1, num_blocks - 4], num_blocks)
    count_text = preset.removeprefix("dflash:")
    if not _BLOCK_NUMBER.fullmatch(count_text) or int(count_text) < 1:
        raise UsageError(f"--layers {preset!r}: dflash wants a count of 1 or more, as in dflash:5")
    count = int(count_text)
    if count > num_blocks:
        raise UsageError(f"--layers {preset!r}: this model has {num_blocks} blocks only")
    if count == 1:
        return [num_blocks // 2]
    first, last = 1, num_blocks - 3
    return _uncollapsed(preset, [round(first + i * (last - first) / (count - 1)) for i in range(count)], num_blocks)


def _uncollapsed(preset: str, depths: list[int], num_blocks: int) -> list[int]:
    if depths != sorted(set(depths)) or depths[0] < 0:
        raise UsageError(
            f"--layers {preset!r} collapses to {depths} on a model of {num_blocks} blocks; name the layers yourself"
        )
    return depths


def depths_of(taps: Iterable[str]) -> tuple[int, ...]:
    """Return the depth of each of *taps*, in their order."""
    return tuple(tap_depth(tap) for tap in taps)
