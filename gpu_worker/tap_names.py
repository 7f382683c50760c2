"""Comparing taps with transformers' own ``hidden_states``, so that a tap is the block that its name says.

``hidden_states`` begins with what enters block 0 and goes on with what leaves each block; in some families (mamba) it
begins with what leaves block 0, and then does not hold what enters it. Its last entry is the normed last state, so the
last block that runs is not compared. Nothing is known of families that give no ``hidden_states``.

Shape letters: B rows, T token slots, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from hiddenstream.contracts.taps import EMBEDDING, tap_depth


def misnamed_tap(captured: Mapping[str, Tensor], states: Sequence[Tensor] | None) -> str:
    """Return what is wrong with the taps' names, or "" where each is what its name says.

    Args:
        captured: tap to [B, T, D], as hooks took it; the embedding among them.
        states: transformers' ``hidden_states`` of the same pass, or None.
    """
    if not states or any(state is None for state in states):
        return ""
    holds_embedding = any(_are_equal(state, captured[EMBEDDING]) for state in states)
    return _misnamed(captured, states, 1 if holds_embedding else 0)


def _misnamed(captured: Mapping[str, Tensor], states: Sequence[Tensor], offset: int) -> str:
    last = len(states) - 1  # the normed state
    for tap, found_BTD in captured.items():
        place = tap_depth(tap) + offset
        if not 0 <= place < last or _are_equal(states[place], found_BTD):
            continue
        for other in range(len(states)):
            if _are_equal(states[other], found_BTD):
                return f"{tap} equals {_name(other, offset, last)}{_off_by_one(other, place)}"
        return f"{tap} is none of transformers' hidden states"
    return ""


def _name(place: int, offset: int, last: int) -> str:
    if place == last:
        return "the normed last state"
    return EMBEDDING if place < offset else f"block.{place - offset}"


def _off_by_one(other: int, place: int) -> str:
    return ": off by one" if abs(other - place) == 1 else ""


def _are_equal(one_BTD: Tensor, other_BTD: Tensor) -> bool:
    if one_BTD.shape != other_BTD.shape:
        return False
    other_BTD = other_BTD.to(one_BTD.device)
    return bool(((one_BTD == other_BTD) | (one_BTD.isnan() & other_BTD.isnan())).all())
