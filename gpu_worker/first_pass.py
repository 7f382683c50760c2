"""The first forward pass of a loaded model: it runs, and its taps are what they are named.

Their numbering is compared with transformers' own ``hidden_states``.
"""

from __future__ import annotations

import numpy as np
import torch

from gpu_worker.batching import padded_batch
from gpu_worker.block_check import Subject
from gpu_worker.tap_names import misnamed_tap
from gpu_worker.taps import captured_taps, no_hook_left
from gpu_worker.trial import first_line
from gpu_worker.ways import vocabulary_rows
from hiddenstream.contracts.errors import GateRefused, ModelError
from hiddenstream.contracts.run import RunIdentity
from hiddenstream.contracts.taps import EMBEDDING


def has_finite_states(subject: Subject, identity: RunIdentity) -> bool:
    """Run one sample alone and return whether there are states to compare.

    Raises:
        GateRefused: it does not run, or a tap is never reached, has another shape, or is another block's.
        IndexError: what a backbone raises that counts its blocks by its configuration and finds some missing.
    """
    row = np.random.default_rng(2).integers(0, vocabulary_rows(subject.backbone), 9).astype(np.int32)
    ids_BT = padded_batch([row], subject.device)
    try:
        taps = tuple(dict.fromkeys((EMBEDDING, *identity.taps)))
        with no_hook_left(subject.backbone), captured_taps(subject.blocks, taps) as captured:
            output = subject.backbone(input_ids=ids_BT, use_cache=False, output_hidden_states=True)
    except ModelError as error:
        raise GateRefused(f"{type(subject.backbone).__name__}: {error}") from error
    except IndexError:
        raise
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError) or "CUDA error" in str(error):
            raise
        name, where = type(subject.backbone).__name__, f"in {identity.compute_dtype} on {subject.device.type}"
        raise GateRefused(f"{name} cannot run {where}: {first_line(error)}") from error
    subject.fresh.restore()
    name = type(subject.backbone).__name__
    for tap in identity.taps:
        if tap not in captured:
            raise GateRefused(f"{tap} was never reached in a forward pass of {name}")
        expected = (*ids_BT.shape, identity.hidden_size)
        if tuple(captured[tap].shape) != expected:
            raise GateRefused(f"{tap} has shape {tuple(captured[tap].shape)}; expected {expected}")
    if not all(bool(torch.isfinite(captured[tap]).any()) for tap in identity.taps):
        return False
    mistake = misnamed_tap(captured, getattr(output, "hidden_states", None))
    if mistake:
        raise GateRefused(f"{name}: {mistake}")
    return True
