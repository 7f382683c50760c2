"""What verifying a run directory can find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hiddenstream.progress import Progress

Damage = Literal[
    "plan_altered",  # the plan is not the one that the run's identity names
    "id_repeated",  # an id is planned more than once
    "counts_differ",  # run.json, plan and ledger do not add up
    "ledger_line",  # a line of a ledger cannot be read
    "unknown_shard",  # the ledger names a shard that is not planned
    "file_missing",
    "file_size",
    "header_altered",
    "header_malformed",
    "header_misfit",  # the header is another run's or another shard's
    "tensors_altered",
    "rows_misfit",  # samples' rows leave a gap or overlap
    "sample_missing",  # a sample of a committed shard is neither stored nor quarantined, exactly once
    "tokens_differ",
    "mask_differs",
    "states_all_zero",
    "run_file_damaged",  # a file that is made once per run does not verify, or is another run's
]
Note = Literal[
    "committed_twice",  # an older ledger line names other bytes: the file was lost or damaged, and made again
    "foreign_file",  # a file under shards/ that no commit names
    "leftover",  # a shard on its way in, or what a dead sink left
    "run_file_missing",  # --final or --heads was given, and what it stores once per run is not there
    "unfinished_line",  # a ledger's last line has no newline: being written, or torn
]
DAMAGE: tuple[str, ...] = get_args(Damage)
NOTES: tuple[str, ...] = get_args(Note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        kind: one of :data:`DAMAGE` or :data:`NOTES`.
        message: the evidence, for people.
        shard: number of the shard, or None.
        sample_id: the sample, or None.
    """

    kind: Damage | Note
    message: str
    shard: int | None = None
    sample_id: str | None = None

    @property
    def is_damage(self) -> bool:
        """Whether the run cannot be trusted as it is; a note only says that something else lies about."""
        return self.kind in DAMAGE

    def __str__(self) -> str:
        shard = "" if self.shard is None else f" in shard {self.shard}"
        sample = "" if self.sample_id is None else f", sample {self.sample_id!r}"
        return f"{self.kind}{shard}{sample}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a whole verification found.

    Attributes:
        findings: damage and notes, by shard.
        progress: the run's counts, or None where they do not add up.
        to_do: planned ids whose shard is not committed, in the plan's order.
        read_bytes: bytes of shards and run files that were read and hashed.
        seconds: time that verifying took.
    """

    findings: tuple[Finding, ...]
    progress: Progress | None
    to_do: tuple[str, ...]
    read_bytes: int
    seconds: float

    @property
    def damage(self) -> tuple[Finding, ...]:
        """The findings that are damage."""
        return tuple(finding for finding in self.findings if finding.is_damage)

    @property
    def exit_code(self) -> int:
        """1 damage, 4 good but not complete, 3 good but with quarantined samples, 0 all good."""
        if self.damage or self.progress is None:
            return 1
        return self.progress.exit_code
