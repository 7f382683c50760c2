"""Naming the likely mistake behind states that are not what they should be. Pure: arrays in, a sentence out.

Taps counted from one instead of zero, a norm that was applied, rows of another sample: each leaves states that are
exactly something else, so what was found is compared with everything that it could be taken for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hiddenstream.contracts.taps import EMBEDDING, tap_depth

NORMED = "the normed last state"
_SAMPLE = "the states of sample "
# Found is another thing where it differs from it by this relative L2, or by a quarter of what it differs from the
# right one: neighbouring blocks differ by 0.1 and more, while a deep model in bfloat16 rounds by up to 5e-2.
_EQUAL, _MUCH_NEARER = 2e-2, 0.25


def of_sample(sample_id: str) -> str:
    """Return the candidate's name for the same tap of another sample."""
    return f"{_SAMPLE}{sample_id}"


def likely_mistake(found: npt.NDArray[Any], tap: str, candidates: Mapping[str, npt.NDArray[Any]]) -> str:
    """Say what wrong states of one sample are instead, in a few words; nothing where that is not known.

    Args:
        found: [S, H], what was stored or captured as *tap*.
        tap: its name.
        candidates: [S, H] each, by name: the right states under *tap*, those of other taps that are known, ``NORMED``,
            and under :func:`of_sample` the same tap of other samples, [any S, H].
    """
    found = np.asarray(found, np.float64)
    if not np.isfinite(found).all():
        token = int(np.argwhere(~np.isfinite(found))[0][0])
        return f"{tap} is not finite, first at token {token}"
    if not found.any():
        return f"{tap} is zero at every token"
    right = np.asarray(candidates[tap], np.float64)
    bound = max(_EQUAL, _MUCH_NEARER * _distance(found, right))
    distances = {name: _distance(found, states) for name, states in candidates.items() if name != tap}
    shifts = {"before": _distance(found[1:], right[:-1]), "after": _distance(found[:-1], right[1:])}
    distances |= {f"itself at the token {where}": distance for where, distance in shifts.items()}
    if not distances:
        return ""
    nearest = min(distances, key=lambda name: distances[name])
    return f"{tap} equals {nearest}{_remark(tap, nearest)}" if distances[nearest] <= bound else ""


def _distance(found: npt.NDArray[Any], states: npt.NDArray[Any]) -> float:
    """Return the relative L2 over the tokens that both have; of one token alone, only where neither has more.

    The first token sees nothing else, so it is equal in every sample that begins with it.
    """
    tokens = min(len(found), len(states))
    if tokens == 0 or (tokens == 1 and max(len(found), len(states)) > 1):
        return float("inf")
    known = np.asarray(states[:tokens], np.float64)
    return float(np.linalg.norm(found[:tokens] - known) / max(float(np.linalg.norm(known)), 1e-30))


def _remark(tap: str, nearest: str) -> str:
    if nearest == NORMED:
        return ": the final norm was applied to it"
    if nearest.startswith(_SAMPLE):
        return ": rows went to the wrong sample"
    if nearest.startswith("itself"):
        return ": the tokens are shifted by one"
    off = abs(tap_depth(nearest) - tap_depth(tap))
    remark = "off by one" if off == 1 else f"off by {off} blocks"
    return f": {remark}" if EMBEDDING not in (tap, nearest) or off == 1 else ""
