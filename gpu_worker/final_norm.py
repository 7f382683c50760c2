"""Finding a model's final norm by what it does, and saving it as numbers.

No list of names: a short sample is run with hooks, and the norm is the module outside of the blocks whose input is the
last block's output and whose output is the model's last hidden state. Which formula it computes is then tried out on
random rows, in float32, against the module itself. Rows are of several sizes, so that a wrong eps shows, and off
centre, so that a mean that is subtracted shows. What fits no formula is refused: a wrong norm would make every logit
that is computed from it wrong, and nothing would say so.

Shape letters: B rows, T token slots, D model width, N rows of the trial.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gpu_worker.model import LoadedModel
from gpu_worker.raw_tensors import raw_tensor
from gpu_worker.taps import hidden_of
from hiddenstream.contracts.errors import ModelError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.run_file import encode_run_file
from hiddenstream.final_norm import FinalNorm

TOLERANCE = 1e-5  # relative L2 of a row, in float32; rounding is 1e-6, another eps or formula 1e-4 and more
_SAMPLE_TOKENS = 8
_TRIAL_SIZES = (1e-3, 1e-2, 1.0, 30.0)  # the smallest are near the square root of the usual eps
_ROWS_OF_A_SIZE = 8
_USUAL_EPS = (1e-6, 1e-5, 1e-12, 1e-8, float(torch.finfo(torch.float32).eps), 0.0)  # where it is no attribute
_WAY_OUT = "keep the last block with --layers instead of --final; its states are the same, without the norm"


def final_norm_file(model: LoadedModel, record: RunRecord) -> tuple[bytes | memoryview, ...]:
    """Return the run file ``final_norm`` of a whole model, in pieces.

    Raises:
        ModelError: what is between the last block and the last hidden state is no norm that is known here.
    """
    norm, tensors = _measured(model, record)
    raw = {name: raw_tensor(tensor) for name, tensor in tensors.items()}
    return encode_run_file("final_norm", record, raw, norm.facts())


def _measured(model: LoadedModel, record: RunRecord) -> tuple[FinalNorm, dict[str, Tensor]]:
    if len(model.blocks) != record.num_blocks:
        loaded = f"{len(model.blocks)} of {record.num_blocks} blocks"
        raise ModelError(f"{loaded} are loaded; this is a bug: --final needs them all")
    module = find_final_norm(model)
    if module is None:
        return FinalNorm(kind="none", class_name="", eps=0.0, weight_offset=0.0, weight=None, bias=None), {}
    return fit_norm(module, model_name=type(model.backbone).__name__, width=record.identity.hidden_size)


@torch.inference_mode()
def find_final_norm(model: LoadedModel) -> nn.Module | None:
    """Return the module between the last block's output and the last hidden state, or None where these are equal.

    Raises:
        ModelError: there is more than one module between them.
    """
    inside = {module for block in model.blocks for module in block.modules()}
    outside = [m for m in model.backbone.modules() if m not in inside and not any(b in inside for b in m.modules())]
    last: list[Tensor] = []
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def keep_last(_block: nn.Module, _arguments: Any, output: Any) -> None:
        last.append(hidden_of(output, "final").clone())

    def keep_pair(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        entering = [value for value in (*arguments, *named.values()) if isinstance(value, Tensor)]
        if last and entering and isinstance(output, Tensor):
            seen.append((module, entering[0].clone(), output.clone()))

    handles: list[Any] = [model.blocks[-1].register_forward_hook(keep_last)]
    handles += [module.register_forward_hook(keep_pair, with_kwargs=True) for module in outside]
    try:
        embedding: Any = model.backbone.get_input_embeddings()
        ids_BT = (torch.arange(_SAMPLE_TOKENS, device=model.device) % embedding.weight.shape[0])[None]
        final_BTD = model.backbone(input_ids=ids_BT, use_cache=False)[0]
    finally:
        for handle in handles:
            handle.remove()
    if _is_same(final_BTD, last[0]):
        return None
    between = [
        module for module, entering, leaving in seen if _is_same(entering, last[0]) and _is_same(leaving, final_BTD)
    ]
    if not between:
        raise ModelError(
            f"{type(model.backbone).__name__} has more than one module between its last block and its last hidden"
            f" state, so --final cannot save a final norm; {_WAY_OUT}"
        )
    return min(between, key=lambda module: len(list(module.modules())))  # the norm itself, not what wraps it


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.numel() != other.numel() or one.shape[-1] != other.shape[-1]:
        return False
    first, second = one.flatten().cpu(), other.flatten().cpu()
    return torch.equal(first, second.to(first.dtype))


@torch.inference_mode()
def fit_norm(module: nn.Module, *, model_name: str, width: int) -> tuple[FinalNorm, dict[str, Tensor]]:
    """Return the formula that *module* computes, and its weight and bias as they are loaded.

    Raises:
        ModelError: it computes none of those that are known.
    """
    rows_ND = _trial_rows(width)
    best = float("inf")
    try:
        plain = copy.deepcopy(module).float()  # on its own device: accelerate's hooks would bring rows there anyway
        place = next((tensor.device for tensor in (*plain.parameters(), *plain.buffers())), torch.device("cpu"))
        expected_ND = plain(torch.from_numpy(rows_ND)[None].to(place))[0].cpu().numpy()
        for norm, names in _candidates(module, width):
            best = min(best, difference := _difference(norm.apply(rows_ND), expected_ND))
            if difference <= TOLERANCE:
                return norm, {role: getattr(module, name).detach() for role, name in names.items()}
    except (RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{type(module).__name__} of {model_name} cannot be tried out: {error}; {_WAY_OUT}") from error
    raise ModelError(
        f"{type(module).__name__}, the final norm of {model_name}, is no RMS norm or layer norm that is known here: the"
        f" nearest formula is off by {best:.1e}; {_WAY_OUT}"
    )


def _trial_rows(width: int) -> npt.NDArray[np.float32]:
    generator = np.random.default_rng(0)
    rows = [size * (generator.standard_normal((_ROWS_OF_A_SIZE, width)) + 0.5) for size in _TRIAL_SIZES]
    return np.concatenate(rows).astype(np.float32)


def _difference(found_ND: npt.NDArray[Any], expected_ND: npt.NDArray[Any]) -> float:
    if found_ND.shape != expected_ND.shape:
        return float("inf")
    lengths = np.linalg.norm(expected_ND.astype(np.float64), axis=1)
    differences = np.linalg.norm(found_ND.astype(np.float64) - expected_ND, axis=1)
    worst = float((differences / np.maximum(lengths, 1e-30)).max())
    return worst if np.isfinite(worst) else float("inf")


def _candidates(module: nn.Module, width: int) -> Iterator[tuple[FinalNorm, dict[str, str]]]:
    """Yield every formula that the module's own numbers allow, plain ones first, with the attribute of each array."""
    arrays = {
        name: parameter.detach().float().cpu().numpy()
        for name, parameter in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        if tuple(parameter.shape) == (width,)
    }
    told = [value for value in vars(module).values() if isinstance(value, float) and 0 <= value < 0.1]
    every_eps = dict.fromkeys((*told, *_USUAL_EPS))
    pairs = [
        (weight, bias) for weight in (*arrays, None) for bias in (None, *arrays) if weight is None or weight != bias
    ]
    for kind in ("rms_norm", "layer_norm"):
        for weight, bias in pairs:
            for offset in (0.0, 1.0) if weight is not None else (0.0,):
                for eps in every_eps:
                    norm = FinalNorm(
                        kind=kind,
                        class_name=type(module).__name__,
                        eps=eps,
                        weight_offset=offset,
                        weight=None if weight is None else arrays[weight],
                        bias=None if bias is None else arrays[bias],
                    )
                    yield norm, {role: name for role, name in (("weight", weight), ("bias", bias)) if name is not None}
