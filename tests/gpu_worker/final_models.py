"""Tiny models whose final norms have weights that matter, and what transformers makes of their last states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hiddenstream.contracts.run import RunRecord
from tests.gpu_worker.made import a_planned_run
from tests.tiny import save_tiny_model


def a_final_run(root: Path, family: str, **changed: Any) -> RunRecord:
    """Plan a run that keeps `final`, of a model whose vectors are moved; *changed* replaces its configuration."""
    model = save_tiny_model(family, root / "model", moves_vectors=True, **changed)
    return a_planned_run(root, model, taps=("block.1", "block.4"), keeps_final=True).read_record()


def base_of(plain: Any) -> Any:
    """Return the module whose output a causal model's head gets."""
    base = plain.base_model
    return getattr(base, "decoder", base)


@torch.inference_mode()
def last_states(plain: Any, ids: npt.NDArray[np.int32]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return one sample's last block's output, transformers' last hidden state [S, H], and its logits [S, V]."""
    base, kept = base_of(plain), {}
    blocks = next(m for m in base.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 5)

    def keep(_block: Any, _arguments: Any, output: Any) -> None:
        kept["raw"] = output[0] if isinstance(output, tuple) else output

    def keep_last(_base: Any, _arguments: Any, output: Any) -> None:
        kept["last"] = output.last_hidden_state

    handles = [blocks[-1].register_forward_hook(keep), base.register_forward_hook(keep_last)]
    try:
        logits = plain(input_ids=_as_ids(ids), use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return kept["raw"][0].numpy(), kept["last"][0].numpy(), logits[0].numpy()


@torch.inference_mode()
def logits_of(plain: Any, ids: npt.NDArray[np.int32], normed: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Return what the model's own head code makes of *normed* in place of its backbone's last hidden state."""

    def replace(_base: Any, _arguments: Any, output: Any) -> Any:
        output["last_hidden_state"] = torch.from_numpy(normed)[None]
        return output

    handle = base_of(plain).register_forward_hook(replace)
    try:
        logits: npt.NDArray[Any] = plain(input_ids=_as_ids(ids), use_cache=False).logits[0].numpy()
        return logits
    finally:
        handle.remove()


def _as_ids(ids: npt.NDArray[np.int32]) -> torch.Tensor:
    return torch.from_numpy(ids.astype(np.int64))[None]


def relative(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Return the relative L2 difference."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
