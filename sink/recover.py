"""What a sink does first: it brings into its ledger the shards that a crash left out of every ledger."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from hiddenstream.chassis.logs import log
from hiddenstream.run_directory.paths import RunPaths, sync_folder
from sink.conflict import put_away
from sink.files import damaged_folder
from sink.refusals import ShardRefused
from sink.served_run import ServedRun
from sink.store import commit_line
from sink.verify import verify_file

SHARD_RECOVERED = "shard_recovered"
RECOVERED = "recovered"  # the delivery of a line that was rebuilt from a file
_LOGGER = logging.getLogger("sink")


def recover_orphans(run: ServedRun) -> int:
    """Ledger every shard that is on disk, in no ledger, and verifies; move those that do not verify away.

    Returns:
        How many shards were brought into the ledger.
    """
    recovered = 0
    committed = run.ledger.commits()
    for shard, file in _shard_files(run.paths):
        if shard not in committed:
            recovered += _recover(run, shard, file)
    return recovered


def _shard_files(paths: RunPaths) -> Iterator[tuple[int, Path]]:
    for file in sorted(paths.shards.glob("*/*.safetensors")):
        if file.stem.isdecimal() and file == paths.shard(int(file.stem)):
            yield int(file.stem), file


def _recover(run: ServedRun, shard: int, file: Path) -> bool:
    with damaged_folder(run.paths) as damaged:
        try:
            found = verify_file(file, run.planned_shard(shard))
        except FileNotFoundError:  # another sink has judged it
            return False
        except ShardRefused as refusal:
            put_away(file, damaged, shard=shard, refusal=refusal)
            return False
    _sync_file(file)
    is_new = run.ledger.record(commit_line(found, delivery=RECOVERED))
    log(_LOGGER, SHARD_RECOVERED, {"shard": shard, "file_bytes": found.file_bytes})
    return is_new


def _sync_file(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(file.parent)
