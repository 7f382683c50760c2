"""Computing stored samples again with plain transformers, and comparing.

The oracle is gpu_worker/plain.py: the whole model as transformers loads it, one sample at a time, no padding, no mask,
no cache. What it gives is compared by relative L2 per tap and by the largest absolute difference.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hiddenstream
from gpu_worker.exact_float32 import make_float32_exact
from gpu_worker.mistakes import NORMED, likely_mistake, of_sample
from gpu_worker.plain import load_plain as load_plain
from gpu_worker.plain import plain_states as plain_states
from gpu_worker.reference import TIMES_NOISE, TOLERANCES
from hiddenstream.contracts.errors import ModelError, RunDirectoryError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.taps import EMBEDDING
from hiddenstream.mapped_run_file import map_run_file
from hiddenstream.model_reference import resolve_model
from hiddenstream.reader import Run
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.sample import Sample

# A sample that is wrong is compared with all that it could be, which costs as much as this bounds.
_DIAGNOSED_TOKENS, _DIAGNOSED_TAPS, _DIAGNOSED_MATES = 256, 3, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeReport:
    """How stored samples compare with plain transformers.

    Attributes:
        samples: how many were compared.
        worst_relative_l2: largest relative L2 difference of one tap of one sample.
        worst_absolute: largest difference of one value.
        worst_sample, worst_tap: where the relative difference is largest.
        tolerance: the largest relative L2 that is still right; see :func:`tolerance_of`.
        mistakes: what the worst sample's wrong taps are instead, where that is known.
    """

    samples: int
    worst_relative_l2: float
    worst_absolute: float
    worst_sample: str
    worst_tap: str
    tolerance: float
    mistakes: tuple[str, ...] = ()

    @property
    def is_within(self) -> bool:
        """Whether every compared state is right."""
        return self.worst_relative_l2 <= self.tolerance

    def summary(self) -> str:
        """Return a line for people, and one for each likely mistake."""
        verdict = "equal but for rounding" if self.is_within else "NOT EQUAL"
        return (
            f"recomputed {self.samples} samples with plain transformers: {verdict}; largest difference: relative L2"
            f" {self.worst_relative_l2:.1e} ({self.worst_tap} of {self.worst_sample}; {self.tolerance:.0e} is allowed),"
            f" absolute {self.worst_absolute:.3g}" + "".join(f"\n  likely: {mistake}" for mistake in self.mistakes)
        )


def recompute_samples(run_directory: Path, count: int, model: str | None, seed: int | None) -> RecomputeReport:
    """Compute *count* stored samples again, drawn at random, and compare.

    Args:
        model: where the model is, if not where the run found it.
        seed: of the draw; None draws anew each time.

    Raises:
        ModelError: the model is not the run's, or does not load.
    """
    run = hiddenstream.open(run_directory)
    record = run.record
    name = model or record.model
    found = resolve_model(name, record.revision)
    if found.digest != record.identity.model_digest:
        raise ModelError(f"{name} is not the model of this run: {found.digest}, not {record.identity.model_digest}")
    make_float32_exact(record.identity.compute_dtype)
    plain = load_plain(name, record.revision, record.identity.compute_dtype)
    numbers = random.Random(seed).sample(range(len(run)), min(count, len(run)))
    worst: tuple[float, str, int] = (0.0, "", numbers[0] if numbers else 0)
    worst_absolute = 0.0
    for number in numbers:
        for tap, relative, absolute in compare(plain, run[number]):
            worst_absolute = max(worst_absolute, absolute)
            worst = max(worst, (relative, tap, number))
    tolerance = tolerance_of(run_directory, record)
    return RecomputeReport(
        samples=len(numbers),
        worst_relative_l2=worst[0],
        worst_absolute=worst_absolute,
        worst_sample=run[worst[2]].id if numbers else "",
        worst_tap=worst[1],
        tolerance=tolerance,
        mistakes=_mistakes_of(plain, run, worst[2], tolerance) if worst[0] > tolerance else (),
    )


def tolerance_of(run_directory: Path, record: RunRecord) -> float:
    """Return the largest relative L2 that is still right: for the dtypes, or for how far rounding grows in this model.

    The latter was measured by the run's first worker, and is kept with the reference states.
    """
    always = max(TOLERANCES[dtype] for dtype in (record.identity.compute_dtype, record.identity.stored_dtype))
    try:
        reference = map_run_file("reference", record, RunPaths(run_directory).run_file("reference"))
        noise = json.loads(reference.metadata.facts["noise"])
        return max(always, *(TIMES_NOISE * float(found) for found in noise.values() if math.isfinite(float(found))))
    except (FileNotFoundError, RunDirectoryError, KeyError, ValueError, AttributeError):
        return always


def _mistakes_of(plain: Any, run: Run, number: int, tolerance: float) -> tuple[str, ...]:
    """Say what the wrong taps of a stored sample are instead, for the first few of them."""
    sample = run[number]
    blocks = plain.config.get_text_config().num_hidden_layers
    every = (EMBEDDING, *(f"block.{k}" for k in range(blocks)), NORMED)
    known = plain_states(plain, sample.input_ids, every, most_tokens=_DIAGNOSED_TOKENS)
    mates = {
        run[mate].id: plain_states(plain, run[mate].input_ids, sample.taps, most_tokens=_DIAGNOSED_TOKENS)
        for mate in _mates_of(run, number)
    }
    wrong = [tap for tap, relative, _ in compare(plain, sample) if not relative <= tolerance]
    mistakes = []
    for tap in wrong[:_DIAGNOSED_TAPS]:
        candidates = known | {of_sample(mate): states[tap] for mate, states in mates.items()}
        mistakes.append(likely_mistake(np.asarray(sample.states_of(tap))[:_DIAGNOSED_TOKENS], tap, candidates))
    return tuple(mistake for mistake in mistakes if mistake)


def _mates_of(run: Run, number: int) -> list[int]:
    """Return stored samples near one in the plan, which may have been in its batch; those as long as it first."""
    near = [mate for mate in range(max(0, number - 32), min(len(run), number + 33)) if mate != number]
    length = run[number].input_ids.size
    near.sort(key=lambda mate: (run[mate].input_ids.size != length, abs(mate - number)))
    return near[:_DIAGNOSED_MATES]


def compare(plain: Any, sample: Sample) -> list[tuple[str, float, float]]:
    """Return (tap, relative L2, largest absolute difference) of each stored tap of *sample*."""
    compared = []
    expected = plain_states(plain, sample.input_ids, sample.taps)
    for tap in sample.taps:
        stored = np.asarray(sample.states_of(tap)).astype(np.float64)
        difference = stored - expected[tap]
        norm = float(np.linalg.norm(expected[tap])) or 1.0
        relative = float(np.linalg.norm(difference)) / norm
        absolute = float(np.abs(difference).max())
        if not np.isfinite(relative):
            relative = absolute = float("inf")
        compared.append((tap, relative, absolute))
    return compared
