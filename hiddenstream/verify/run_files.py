"""Verifying the files that workers make once per run: bytes against their checksum, and whose run they are."""

from __future__ import annotations

from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.run import RunRecord
from hiddenstream.mapped_run_file import decode_run_file
from hiddenstream.mapped_shard import map_file
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.verify.findings import Finding
from hiddenstream.verify.shards import ShardCheck


def check_run_file(paths: RunPaths, record: RunRecord, name: str, *, is_due: bool) -> ShardCheck:
    """Check one of ``RUN_FILES``; reads all of it.

    Args:
        is_due: whether something was stored, so that the workers have been there.
    """
    file = paths.run_file(name)
    try:
        content = map_file(file)
        decode_run_file(name, record, content)
    except FileNotFoundError:
        is_wanted = {"final_norm": record.keeps_final, "heads": record.keeps_heads}.get(name, False)
        message = f"{file} is not there, though it was asked for; a worker that starts makes it"
        findings = (Finding(kind="run_file_missing", message=message),) if is_wanted and is_due else ()
        return ShardCheck(read_bytes=0, findings=findings)
    except (OSError, ValueError, WireError) as error:
        finding = Finding(kind="run_file_damaged", message=f"{file}: {error}; remove it, and a worker makes it again")
        return ShardCheck(read_bytes=0, findings=(finding,))
    return ShardCheck(read_bytes=len(content), findings=())
