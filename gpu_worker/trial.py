"""Trying one way of batching on a loaded model, with both tests of the canary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gpu_worker.block_check import TOKEN_TOLERANCES, Subject, compare_blocks
from gpu_worker.canary_batches import canary_batches
from gpu_worker.swap_check import swap_mates
from gpu_worker.ways import BatchRunner, TokenRows, vocabulary_rows
from hiddenstream.contracts.errors import HiddenstreamError

_CPU_SWAP_SLOTS = 512  # on a CPU, where the second test costs more than a shard may, it is run on smaller batches alone


@dataclass(frozen=True, slots=True)
class Trial:
    """How a way did.

    Attributes:
        differences: largest difference by test: ``blocks`` and ``swap``.
        is_bitwise: whether other batch mates changed not one bit.
        fault: why it will not do, or "".
    """

    differences: Mapping[str, float] = field(default_factory=dict)
    is_bitwise: bool = False
    fault: str = ""


def try_way(
    subject: Subject, runner: BatchRunner, lengths: list[int], taps: tuple[str, ...], *, token_budget: int
) -> Trial:
    """Try a runner's way on samples of *lengths*, in batches of *token_budget* slots, or of fewer if they do not fit.

    Raises:
        IndexError: what a backbone raises that counts its blocks by its configuration and finds some missing.
        Exception: a CUDA error, after which nothing works.
    """
    while True:
        try:
            batches = canary_batches(
                runner,
                lengths,
                token_budget=token_budget,
                vocabulary=vocabulary_rows(subject.backbone),
                is_filled=subject.device.type == "cuda",
            )
            return _judge(subject, runner, batches, taps)
        except torch.OutOfMemoryError as error:
            message = first_line(error)
        except IndexError:
            raise
        except Exception as error:
            if "CUDA error" in str(error):
                raise
            return Trial(fault=_said(error))
        finally:
            subject.attention.set_own()
        if token_budget <= lengths[0]:  # outside the handler: the exception would keep the batch's memory
            return Trial(fault=f"the longest sample, of {lengths[0]} tokens, does not fit: {message}")
        token_budget = max(lengths[0], token_budget // 2)
        torch.cuda.empty_cache()


def _said(error: Exception) -> str:
    """Return why a way cannot be used; a kernel's or a family's own words are told as theirs."""
    if isinstance(error, HiddenstreamError):
        return first_line(error)
    return f"its code raises {type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that says something, or its kind."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _judge(subject: Subject, runner: BatchRunner, batches: list[TokenRows], taps: tuple[str, ...]) -> Trial:
    blocks = compare_blocks(subject, runner, batches)
    differences, is_bitwise = {"blocks": blocks.difference}, True
    if blocks.fault:
        return Trial(differences, False, blocks.fault)
    for rows in batches:
        slots = runner.token_slots([row.size for row in rows])
        if len(rows) > 1 and (subject.device.type == "cuda" or slots <= _CPU_SWAP_SLOTS):
            found = swap_mates(subject, runner, rows, taps)
            differences["swap"] = max(differences.get("swap", 0.0), found.difference)
            is_bitwise &= found.is_bitwise
    if not differences.get("swap", 0.0) <= TOKEN_TOLERANCES[subject.dtype]:
        size = (
            f"by {differences['swap']:.1e}, relative" if math.isfinite(differences["swap"]) else "equal ones exchanged"
        )
        return Trial(differences, False, f"other batch mates change a sample's states ({size})")
    return Trial(differences, is_bitwise, "")
