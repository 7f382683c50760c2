"""The canary's third test: states of a few fixed samples, stored by a run's first worker, matched by every later one.

Other hardware, versions and ways of batching round differently, and rounding grows with depth. How far it grows in this
model is measured by the first worker: the same samples once more, with the input of every block changed by rounding at
random. A later worker's states may differ by some times that, and by what two right ways may differ in any case.

Shape letters: N tokens of all samples, K taps, D model width, T token slots, B rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gpu_worker.block_check import entering_of
from gpu_worker.forward import ForwardPass
from gpu_worker.mistakes import likely_mistake
from gpu_worker.model import LoadedModel
from gpu_worker.ways import TokenRows, vocabulary_rows
from hiddenstream.contracts.errors import GateRefused
from hiddenstream.contracts.run import RunIdentity
from hiddenstream.contracts.taps import EMBEDDING

_LENGTHS = (1, 17, 64, 257)
_STEPS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}  # between neighbouring numbers, relative
# Relative L2 that is never refused, by dtype; huggingface/transformers 5.24 gave 2e-7 in float32 and up to 4e-3 in
# bfloat16 between two ways of batching on a CPU.
TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}
TIMES_NOISE = 4.0
_SPARE_SHARE = 1e-3  # of values that may overflow by rounding in one of two right ways


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceStates:
    """States of the fixed samples.

    Attributes:
        rows: the samples' token ids.
        states_NKD: their states, end to end, float32.
        noise: relative L2 by which rounding alone moves each tap.
    """

    rows: TokenRows
    states_NKD: npt.NDArray[np.float32]
    noise: Mapping[str, float]


def reference_rows(vocabulary: int, longest_tokens: int) -> TokenRows:
    """Return the fixed samples of a model: the same for every worker of a run."""
    generator = np.random.default_rng(20)
    lengths = sorted({min(length, longest_tokens) for length in _LENGTHS})
    return [generator.integers(0, vocabulary, length).astype(np.int32) for length in lengths]


def compute_reference(model: LoadedModel, forward: ForwardPass, taps: tuple[str, ...], longest: int) -> ReferenceStates:
    """Compute the fixed samples' states, and how far rounding moves them."""
    rows = reference_rows(vocabulary_rows(model.backbone), longest)
    states_NKD = _states_of(forward, rows)
    with _every_block_shaken(model):
        shaken_NKD = _states_of(forward, rows)
    noise = relative_differences(shaken_NKD, states_NKD, taps)
    return ReferenceStates(rows=rows, states_NKD=states_NKD, noise=noise)


def differences_from(
    reference: ReferenceStates, forward: ForwardPass, taps: tuple[str, ...], *, sample: int | None = None
) -> dict[str, float]:
    """Compute the reference's samples, or one of them, and return the relative L2 of each tap."""
    if sample is None:
        return relative_differences(_states_of(forward, reference.rows), reference.states_NKD, taps)
    ends = np.cumsum([row.size for row in reference.rows])
    expected = reference.states_NKD[ends[sample] - reference.rows[sample].size : ends[sample]]
    return relative_differences(_states_of(forward, [reference.rows[sample]]), expected, taps)


def refuse_other_states(
    differences: Mapping[str, float],
    reference: ReferenceStates,
    model: LoadedModel,
    forward: ForwardPass,
    identity: RunIdentity,
) -> float:
    """Return the largest difference, or refuse.

    Raises:
        GateRefused: a tap differs by more than rounding; names the mistake where it can be told.
    """
    for tap, difference in differences.items():
        allowed = allowed_difference(identity, reference.noise[tap])
        if not difference <= allowed:
            mistake = _mistake(tap, reference, model, forward, identity.taps)
            raise GateRefused(
                f"{tap} of the run's reference samples differs from what the run's first worker stored by"
                f" {difference:.1e} (relative L2; {allowed:.1e} is allowed){mistake and '; the stored ' + mistake}"
            )
    return max(differences.values(), default=0.0)


def allowed_difference(identity: RunIdentity, noise: float) -> float:
    """Return the largest relative L2 that rounding can explain."""
    always = max(TOLERANCES[dtype] for dtype in (identity.compute_dtype, identity.stored_dtype))
    return max(always, TIMES_NOISE * noise) if np.isfinite(noise) else always


def relative_differences(
    found_NKD: npt.NDArray[np.float32], expected_NKD: npt.NDArray[np.float32], taps: tuple[str, ...]
) -> dict[str, float]:
    """Return the relative L2 of each tap over values that are finite in both; infinite where many are in one alone."""
    differences = {}
    for place, tap in enumerate(taps):
        found, expected = (x[:, place].astype(np.float64) for x in (found_NKD, expected_NKD))
        are_finite = np.isfinite(found), np.isfinite(expected)
        if np.mean(are_finite[0] != are_finite[1]) > _SPARE_SHARE:
            differences[tap] = float("inf")
            continue
        both = are_finite[0] & are_finite[1]
        difference = float(np.linalg.norm(found[both] - expected[both])) / (
            float(np.linalg.norm(expected[both])) or 1.0
        )
        differences[tap] = difference if np.isfinite(difference) else float("inf")
    return differences


def _states_of(forward: ForwardPass, rows: TokenRows) -> npt.NDArray[np.float32]:
    lengths = [row.size for row in rows]
    batches = forward.cut(lengths, max_token_slots=sum(lengths) * len(lengths))
    states = [forward.run([rows[place] for place in batch]).hidden_NKD.float().cpu().numpy() for batch in batches]
    return np.concatenate(states)


def _mistake(
    tap: str, reference: ReferenceStates, model: LoadedModel, forward: ForwardPass, taps: tuple[str, ...]
) -> str:
    every = (EMBEDDING, *(f"block.{depth}" for depth in range(len(model.blocks))))
    own_NKD = _states_of(forward.with_taps(every), reference.rows)
    candidates = {name: own_NKD[:, place] for place, name in enumerate(every)}
    mistake: str = likely_mistake(reference.states_NKD[:, taps.index(tap)], tap, candidates)
    return mistake


@contextmanager
def _every_block_shaken(model: LoadedModel) -> Iterator[None]:
    """Change the input of every block by rounding at random, inside the context."""

    def shake(_block: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        entering_BTD = entering_of(arguments, named)
        generator = torch.Generator(entering_BTD.device).manual_seed(0)
        noise = torch.rand(entering_BTD.shape, generator=generator, device=entering_BTD.device) - 0.5
        step = _STEPS[str(entering_BTD.dtype).removeprefix("torch.")]
        shaken_BTD = (entering_BTD * (1 + step * noise)).to(entering_BTD.dtype)
        if arguments:
            return (shaken_BTD, *arguments[1:]), named
        return arguments, {**named, "hidden_states": shaken_BTD}

    handles = [block.register_forward_pre_hook(shake, with_kwargs=True) for block in model.blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
