"""A shard whose final name is taken, and shards that no ledger knows."""

from __future__ import annotations

import logging
from pathlib import Path

from hiddenstream.chassis.logs import log
from hiddenstream.run_directory.paths import sync_folder
from sink.admission import AdmittedShard, PlannedShard
from sink.files import TemporaryFile, damaged_folder, link_durably, move_to_damaged
from sink.refusals import ShardRefused
from sink.served_run import ServedRun
from sink.verify import verify_file

SHARD_FOUND_DAMAGED = "shard_found_damaged"
_LOGGER = logging.getLogger("sink")


def settle_conflict(run: ServedRun, planned: PlannedShard, temporary: TemporaryFile) -> AdmittedShard | None:
    """Return the good shard that stands under the final name, or None once *temporary* has that name."""
    final = run.paths.shard(planned.shard)
    with damaged_folder(run.paths) as damaged:
        while not link_durably(temporary.path, final):
            try:
                existing = verify_file(final, planned)
            except FileNotFoundError:
                continue
            except ShardRefused as refusal:
                put_away(final, damaged, shard=planned.shard, refusal=refusal)
                continue
            sync_folder(final.parent)  # whoever linked it may not have done so yet
            return existing
    return None


def put_away(file: Path, damaged: Path, *, shard: int, refusal: ShardRefused) -> None:
    """Move a file that does not verify out of the way, and say so."""
    kept = move_to_damaged(file, damaged)
    facts = {"shard": shard, "reason": refusal.reason, "message": str(refusal), "moved_to": f"damaged/{kept.name}"}
    log(_LOGGER, SHARD_FOUND_DAMAGED, facts, level=logging.ERROR)
