"""What can go wrong, by cause. Every error names the thing and the way out."""

from __future__ import annotations


class HiddenstreamError(Exception):
    """Root of every error that hiddenstream raises on purpose.

    Attributes:
        reason: the cause, from a closed list; used in logs, metrics and wire answers.
        exit_code: what a command exits with when this error ends it.
    """

    reason = "error"
    exit_code = 1


class UsageError(HiddenstreamError):
    """A setting or an argument that cannot be meant; nothing was started."""

    reason = "usage"
    exit_code = 2


class WireError(HiddenstreamError):
    """Bytes from outside (job, shard, ledger line, plan) that are not what the contract says."""

    reason = "malformed"


class RunMismatch(HiddenstreamError):
    """A run directory, job or shard that belongs to another run.

    Attributes:
        differences: one line for each field that differs.
    """

    reason = "run_mismatch"
    exit_code = 2

    def __init__(self, what: str, differences: list[str]) -> None:
        super().__init__(f"{what} belongs to another run: " + "; ".join(differences))
        self.differences = differences


class RunDirectoryError(HiddenstreamError):
    """A run directory that is absent, unfinished, locked or damaged."""

    reason = "run_directory"


class ModelError(HiddenstreamError):
    """A model that cannot be found, read or run as asked."""

    reason = "model"
    exit_code = 2


class GateRefused(ModelError):
    """A model whose states would be stored wrongly by this worker."""


class QueueError(HiddenstreamError):
    """A Redis that cannot serve as the queue as it is configured."""

    reason = "queue"
    exit_code = 2


class DiskTooSmall(HiddenstreamError):
    """The output would not fit on the disk."""

    reason = "disk_too_small"

    def __init__(self, path: str, *, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(
            f"the run needs {needed_bytes / 1e9:.2f} GB, but {path} has {free_bytes / 1e9:.2f} GB free;"
            " free some space, choose fewer layers, or put the run directory on a larger disk"
        )
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes
