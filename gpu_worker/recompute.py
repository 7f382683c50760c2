"""Computing stored samples again with plain transformers, and comparing.

This is the oracle, so it shares no code with the forward pass of the worker: the whole causal model as transformers
loads it, one sample at a time, no padding, no mask, no cache. What it gives is compared by relative L2 per tap and by
the largest absolute difference.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import hiddenstream
from gpu_worker.fresh_state import FreshState
from hiddenstream.contracts.errors import ModelError
from hiddenstream.contracts.taps import tap_depth
from hiddenstream.model_reference import resolve_model
from hiddenstream.sample import Sample

# Relative L2 that two right ways of computing a state may differ by. float32: 2e-7 was measured; bfloat16: 5e-4 to
# 4e-3 between alone and padded on a CPU (huggingface/transformers 5.24); float16 has eight times its precision.
TOLERANCES = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 2e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeReport:
    """How stored samples compare with plain transformers.

    Attributes:
        samples: how many were compared.
        worst_relative_l2: largest relative L2 difference of one tap of one sample.
        worst_absolute: largest difference of one value.
        worst_sample, worst_tap: where the relative difference is largest.
        tolerance: the largest relative L2 that is still right, for the run's dtypes.
    """

    samples: int
    worst_relative_l2: float
    worst_absolute: float
    worst_sample: str
    worst_tap: str
    tolerance: float

    @property
    def is_within(self) -> bool:
        """Whether every compared state is right."""
        return self.worst_relative_l2 <= self.tolerance

    def summary(self) -> str:
        """Return one line for people."""
        verdict = "equal but for rounding" if self.is_within else "NOT EQUAL"
        return (
            f"recomputed {self.samples} samples with plain transformers: {verdict}; largest difference: relative L2"
            f" {self.worst_relative_l2:.1e} ({self.worst_tap} of {self.worst_sample}; {self.tolerance:.0e} is allowed),"
            f" absolute {self.worst_absolute:.3g}"
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
    plain = load_plain(name, record.revision, record.identity.compute_dtype)
    numbers = random.Random(seed).sample(range(len(run)), min(count, len(run)))
    worst = (0.0, "", "")
    worst_absolute = 0.0
    for number in numbers:
        sample = run[number]
        for tap, relative, absolute in compare(plain, sample):
            worst_absolute = max(worst_absolute, absolute)
            worst = max(worst, (relative, tap, sample.id))
    dtypes = (record.identity.compute_dtype, record.identity.stored_dtype)
    return RecomputeReport(
        samples=len(numbers),
        worst_relative_l2=worst[0],
        worst_absolute=worst_absolute,
        worst_sample=worst[2],
        worst_tap=worst[1],
        tolerance=max(TOLERANCES[dtype] for dtype in dtypes),
    )


def load_plain(name: str, revision: str | None, dtype: str) -> Any:
    """Load the whole model as anybody would: its causal language model, or the multimodal one that it is.

    Raises:
        ModelError: it does not load, or its files lack weights.
    """
    transformers.utils.logging.disable_progress_bar()
    faults = []
    for auto_class in (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText):
        try:
            model, report = auto_class.from_pretrained(
                name,
                revision=revision,
                dtype=getattr(torch, dtype),
                device_map="cuda" if torch.cuda.is_available() else None,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError) as error:
            faults.append(str(error))
            continue
        if not report["missing_keys"]:
            return _always_fresh(model.eval())
        faults.append(f"its files lack weights, for example {min(report['missing_keys'])}")
    raise ModelError(f"--model {name}: {faults[0]}")


def _always_fresh(model: Any) -> Any:
    """Have every forward pass of *model* begin with the state in which it was loaded."""
    fresh = FreshState(model)

    def restore(*_: Any) -> None:
        fresh.restore()

    model.register_forward_pre_hook(restore)
    return model


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


@torch.inference_mode()
def plain_states(plain: Any, input_ids: Any, taps: tuple[str, ...]) -> dict[str, Any]:
    """Return each tap of one sample, float64 [S, H], by transformers' own ``hidden_states``.

    Their numbering is found out, not assumed: it begins with what enters block 0, but in some families (mamba) with
    what leaves it. The last block's output is taken by a hook, since transformers gives its normed form.
    """
    blocks = _blocks_of(plain, plain.config.get_text_config().num_hidden_layers)
    seen: dict[str, Any] = {}
    handles = [
        blocks[0].register_forward_pre_hook(_keeps_input(seen), with_kwargs=True),
        blocks[0].register_forward_hook(_keeps_output(seen, "first")),
        blocks[-1].register_forward_hook(_keeps_output(seen, "last")),
    ]
    try:
        ids = torch.from_numpy(np.array(input_ids, np.int64))[None].to(plain.device)
        states = plain(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    finally:
        for handle in handles:
            handle.remove()
    shift = 0 if torch.equal(states[0], seen["first"]) else 1
    chosen = {}
    for tap in taps:
        depth = tap_depth(tap)
        inner = seen["entering"] if depth < 0 else states[depth + shift]
        state = seen["last"] if depth == len(blocks) - 1 else inner
        chosen[tap] = state[0].double().cpu().numpy()
    return chosen


def _keeps_input(seen: dict[str, Any]) -> Any:
    def keep(_block: Any, arguments: Any, named: Any) -> None:
        seen["entering"] = arguments[0] if arguments else named["hidden_states"]

    return keep


def _keeps_output(seen: dict[str, Any], name: str) -> Any:
    def keep(_block: Any, _arguments: Any, output: Any) -> None:
        seen[name] = output[0] if isinstance(output, tuple) else output

    return keep


def _blocks_of(plain: Any, count: int) -> Any:
    """Return the blocks of the text decoder; the first list of *count* in the whole model may be a vision tower's."""
    decoder = plain
    while isinstance(inner := decoder.get_decoder(), transformers.PreTrainedModel) and inner is not decoder:
        decoder = inner
    lists = [m for m in decoder.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    if not lists:
        raise ModelError(f"{type(plain).__name__} has no list of {count} blocks")
    return lists[0]
