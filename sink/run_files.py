"""Storing the few files that workers make once per run. The first one that is whole wins; the others are dropped.

As durable as a shard: synced under a temporary name, linked to its final one, which ``link`` never replaces. Nothing
but the run's record says what is right, so a file is held against that and against its own checksum.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import xxhash

from hiddenstream.chassis.logs import log
from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.run_file import (
    RunFileMetadata,
    decode_run_file_header,
    run_file_header_length,
    run_file_misfits,
)
from hiddenstream.contracts.sink_api import MAX_RUN_FILE_BYTES
from hiddenstream.run_directory.paths import sync_folder
from sink.body import Body
from sink.files import TemporaryFile, damaged_folder, move_to_damaged
from sink.refusals import ShardRefused
from sink.store import Store
from sink.verify import xxh3_from

RUN_FILE_FOUND_DAMAGED = "run_file_found_damaged"
_LOGGER = logging.getLogger("sink")


def store_run_file(store: Store, name: str, body: Body) -> bool:
    """Receive run file *name* and store it durably; return False where there was a good one already.

    Args:
        name: of ``RUN_FILES``.

    Raises:
        ShardRefused: it is not such a file of this run, or the disk is short; nothing of it is left behind.
        UploadAborted: the client went away; nothing is left behind.
    """
    limit = MAX_RUN_FILE_BYTES[name]
    if body.length_bytes > limit:
        raise ShardRefused("too_large", f"a body of {body.length_bytes} bytes; {name} has {limit} at most")
    if body.length_bytes < 8:
        raise ShardRefused("wrong_length", f"a body of {body.length_bytes} bytes is no run file")
    record, final = store.run.record, store.run.paths.run_file(name)
    if body.is_awaited_by_client and _is_stored(final, name, record):
        return False
    with store.disk.claim(body.length_bytes), store.incoming.temporary(name) as temporary:
        _receive(body, name, record, temporary)
        temporary.sync()
        if _link(temporary.path, final):
            return True
        with damaged_folder(store.run.paths) as damaged:
            while not _link(temporary.path, final):
                if _is_stored(final, name, record):
                    return False
                _put_away(final, damaged, name)
    return True


def _receive(body: Body, name: str, record: RunRecord, temporary: TemporaryFile) -> None:
    first = body.read_exactly(8)
    header_bytes = _header_length(first)
    if header_bytes > body.length_bytes:
        raise ShardRefused("wrong_length", f"a header of {header_bytes} bytes in a body of {body.length_bytes}")
    header = first + body.read_exactly(header_bytes - 8)
    metadata = _admit(header, name, record, file_bytes=body.length_bytes)
    temporary.write(header)
    tensors_xxh3 = xxhash.xxh3_128()
    for chunk in body.chunks():
        tensors_xxh3.update(chunk)
        temporary.write(chunk)
    _check_hash(tensors_xxh3.hexdigest(), metadata)


def _header_length(first_bytes: bytes) -> int:
    try:
        return run_file_header_length(first_bytes)
    except WireError as error:
        raise ShardRefused("malformed", str(error)) from error


def _admit(header: bytes, name: str, record: RunRecord, *, file_bytes: int) -> RunFileMetadata:
    try:
        layout, metadata = decode_run_file_header(header)
    except WireError as error:
        raise ShardRefused("malformed", str(error)[:200]) from error
    for reason, message in run_file_misfits(metadata, name, record):
        raise ShardRefused(reason, message)
    if len(header) + layout.tensor_bytes != file_bytes:
        raise ShardRefused(
            "wrong_length", f"header and tensors take {len(header) + layout.tensor_bytes} bytes of {file_bytes}"
        )
    return metadata


def _check_hash(found: str, metadata: RunFileMetadata) -> None:
    if found != metadata.xxh3:
        raise ShardRefused("wrong_hash", f"tensor bytes have xxh3 {found}, the header says {metadata.xxh3:.64}")


def _is_stored(file: Path, name: str, record: RunRecord) -> bool:
    """Whether there is a file, it is whole, and its name durable; reads all of it."""
    try:
        with open(file, "rb", buffering=0) as raw:
            descriptor = raw.fileno()
            header = os.pread(descriptor, _header_length(os.pread(descriptor, 8, 0)), 0)
            metadata = _admit(header, name, record, file_bytes=os.fstat(descriptor).st_size)
            _check_hash(xxh3_from(descriptor, len(header)), metadata)
    except (FileNotFoundError, ShardRefused):
        return False
    sync_folder(file.parent)  # whoever linked it may not have done so yet
    return True


def _link(temporary: Path, final: Path) -> bool:
    try:
        os.link(temporary, final)
    except FileExistsError:
        return False
    sync_folder(final.parent)
    return True


def _put_away(final: Path, damaged: Path, name: str) -> None:
    kept = move_to_damaged(final, damaged)
    message = "it does not verify; the next one takes its place"
    facts = {"file": name, "moved_to": f"damaged/{kept.name}", "message": message}
    log(_LOGGER, RUN_FILE_FOUND_DAMAGED, facts, level=logging.ERROR)
