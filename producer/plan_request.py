"""What to plan, with every choice made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hiddenstream.contracts.run import FORMAT_VERSION, RunIdentity
from hiddenstream.model_reference import ModelReference


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What to plan.

    Attributes:
        run_directory: where the plan goes; its ``run.json`` must not exist.
        run_name: the run's name, as :data:`hiddenstream.contracts.queue.RUN_NAME` allows.
        model: the model, found.
        taps: taps to store, ascending in depth.
        keeps_final: whether the last block's output was asked for as ``final``.
        keeps_heads: whether embedding and lm_head are to be stored beside the states.
        compute_dtype, stored_dtype: of :data:`hiddenstream.contracts.run.DTYPES`.
        data: input files and folders, in order.
        max_length: tokens a sample may have, or None for what model and token budget allow.
        over_long: ``reject`` or ``truncate``.
        token_budget: token slots of one forward batch.
        shard_bytes: bytes of states a shard should have at most.
        is_strict: stop at the first bad row.
    """

    run_directory: Path
    run_name: str
    model: ModelReference
    taps: tuple[str, ...]
    keeps_final: bool
    compute_dtype: str
    stored_dtype: str
    data: tuple[Path, ...]
    max_length: int | None
    over_long: str
    token_budget: int
    shard_bytes: int
    is_strict: bool
    keeps_heads: bool = False

    @property
    def longest(self) -> int:
        """Tokens a sample may have, all limits considered."""
        limits = (self.max_length, self.model.max_positions, self.token_budget)
        return min(limit for limit in limits if limit is not None)

    def identity(self, plan_id: str) -> RunIdentity:
        """Return the identity of the run that this becomes."""
        return RunIdentity(
            format_version=FORMAT_VERSION,
            model_digest=self.model.digest,
            taps=self.taps,
            hidden_size=self.model.hidden_size,
            compute_dtype=self.compute_dtype,
            stored_dtype=self.stored_dtype,
            plan_id=plan_id,
        )
