"""A model's final norm as numbers: what turns the last block's output into transformers' last hidden state.

No torch, no model: numpy in float32. The worker finds which of these formulas a model's norm is, by trying them
against the module itself (gpu_worker/final_norm.py), and stores it as the run file ``final_norm``.

With x a row, w and b the stored weight and bias where there are any, and o the weight's offset (0, or 1 in families
that store w - 1):

    rms_norm     x / sqrt(mean(x^2) + eps) * (w + o) + b
    layer_norm   with x - mean(x) in place of x
    none         x: the model has no final norm
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.run_file import RunFileMetadata

KINDS = ("rms_norm", "layer_norm", "none")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FinalNorm:
    """A final norm.

    Attributes:
        kind: of ``KINDS``.
        class_name: the module's class in transformers, for people; empty where there is none.
        eps: what is added to the mean square.
        weight_offset: what is added to the weight: 0 or 1.
        weight, bias: [H], or None where the norm has none.
    """

    kind: str
    class_name: str
    eps: float
    weight_offset: float
    weight: npt.NDArray[Any] | None
    bias: npt.NDArray[Any] | None

    @classmethod
    def from_run_file(cls, metadata: RunFileMetadata, arrays: Mapping[str, npt.NDArray[Any]]) -> FinalNorm:
        """Read what :meth:`facts` and the arrays of a run file say.

        Raises:
            WireError: a fact is missing, or makes no sense.
        """
        try:
            norm = cls(
                kind=metadata.facts["kind"],
                class_name=metadata.facts["class"],
                eps=float(metadata.facts["eps"]),
                weight_offset=float(metadata.facts["weight_offset"]),
                weight=arrays.get("weight"),
                bias=arrays.get("bias"),
            )
        except (KeyError, ValueError) as error:
            raise WireError(f"final_norm is malformed: {error!r}") from error
        if norm.kind not in KINDS or not 0 <= norm.eps < 1 or norm.weight_offset not in (0, 1):
            raise WireError(f"final_norm is malformed: {dict(metadata.facts)}")
        return norm

    def facts(self) -> dict[str, str]:
        """Return what the run file says besides its arrays."""
        return {
            "kind": self.kind,
            "class": self.class_name,
            "eps": repr(self.eps),
            "weight_offset": repr(self.weight_offset),
        }

    def apply(self, states: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the norm of each row, float32 [S, H], computed in float32 whatever the dtype of *states* [S, H]."""
        rows = states.astype(np.float32)
        if self.kind == "none":
            return rows
        if self.kind == "layer_norm":
            rows -= rows.mean(axis=1, keepdims=True)
        rows /= np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + np.float32(self.eps))
        if self.weight is not None:
            rows *= self.weight.astype(np.float32) + np.float32(self.weight_offset)
        if self.bias is not None:
            rows += self.bias.astype(np.float32)
        return rows
