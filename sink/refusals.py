"""How a request or an upload ends other than well."""

from __future__ import annotations

from hiddenstream.contracts.errors import HiddenstreamError
from hiddenstream.contracts.sink_api import RETRY_STATUSES, SHARD_REFUSALS

RETRY_AFTER_SECONDS = 5


class ShardRefused(HiddenstreamError):
    """A request that is not fulfilled, told to the client.

    Attributes:
        reason: a key of :data:`hiddenstream.contracts.sink_api.SHARD_REFUSALS`.
        status: its HTTP status.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = SHARD_REFUSALS[reason]

    @property
    def retry_after_seconds(self) -> int | None:
        """When the same request is worth repeating, or None for never."""
        return RETRY_AFTER_SECONDS if self.status in RETRY_STATUSES else None


class UploadAborted(HiddenstreamError):
    """A client that went away or fell silent before its request was whole; there is nobody to answer."""

    reason = "upload_aborted"
