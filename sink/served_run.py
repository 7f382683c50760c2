"""The run that a sink serves: its record, plan and ledgers, read from the run directory."""

from __future__ import annotations

from dataclasses import dataclass

from hiddenstream.contracts.errors import RunDirectoryError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import Plan, plan_id_of
from sink.admission import PlannedShard
from sink.ledger import Ledger
from sink.refusals import ShardRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is planned and what all sinks have committed."""

    shards_planned: int
    shards_committed: int
    samples_planned: int
    samples_committed: int
    samples_quarantined: int
    tokens_planned: int
    tokens_committed: int

    @property
    def is_complete(self) -> bool:
        """Whether every shard is committed."""
        return self.shards_committed == self.shards_planned

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return the ``progress`` of the sink's answer."""
        to_do = self.samples_planned - self.samples_committed - self.samples_quarantined
        return {
            "shards": {"planned": self.shards_planned, "committed": self.shards_committed},
            "samples": {
                "planned": self.samples_planned,
                "committed": self.samples_committed,
                "quarantined": self.samples_quarantined,
                "to_do": to_do,
            },
            "tokens": {"planned": self.tokens_planned, "committed": self.tokens_committed},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """A planned run."""

    paths: RunPaths
    record: RunRecord
    plan: Plan
    ledger: Ledger

    def planned_shard(self, shard: int) -> PlannedShard:
        """Return what the plan says of *shard*.

        Raises:
            ShardRefused: there is no such shard.
        """
        if not 0 <= shard < self.plan.shards:
            raise ShardRefused("no_such_shard", f"the run has shards 0 to {self.plan.shards - 1}, not {shard}")
        return PlannedShard(record=self.record, shard=shard, samples=self.plan.samples_of(shard))

    def is_committed(self, shard: int) -> bool:
        """Whether *shard* is in a ledger, and its file is there with the right size."""
        line = self.ledger.commit_of(shard)
        try:
            return line is not None and self.paths.shard(shard).stat().st_size == line.file_bytes
        except FileNotFoundError:
            return False

    def progress(self) -> Progress:
        """Count what is planned and committed."""
        lines = [line for shard, line in self.ledger.commits().items() if shard < self.plan.shards]
        return Progress(
            shards_planned=self.record.shards,
            shards_committed=len(lines),
            samples_planned=self.record.samples,
            samples_committed=sum(line.samples for line in lines),
            samples_quarantined=sum(len(line.quarantined) for line in lines),
            tokens_planned=self.record.tokens,
            tokens_committed=sum(line.tokens for line in lines),
        )


def load_run(paths: RunPaths, sink: str) -> ServedRun:
    """Read the run in a planned run directory; reads every token once, to check the plan.

    Raises:
        RunDirectoryError: the record or the plan is damaged, or they do not belong together.
    """
    record = paths.read_record()
    plan = Plan(paths)
    found = plan_id_of(plan.digests())
    if found != record.identity.plan_id:
        raise RunDirectoryError(
            f"{paths.run_json} names plan {record.identity.plan_id}, but {paths.plan} holds plan {found};"
            " the directory is damaged or mixed, so no shard can be checked against it"
        )
    return ServedRun(paths=paths, record=record, plan=plan, ledger=Ledger(paths.ledger, sink))
