"""A run's status from its directory alone, where no producer is asked."""

from __future__ import annotations

import time

from hiddenstream.contracts.run import RunRecord
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.status_page.client import fetch_status
from hiddenstream.status_page.compose import Seen, compose
from hiddenstream.status_page.disk import look_at_disk
from hiddenstream.status_page.failures import rejected_groups
from hiddenstream.status_page.status import RunStatus
from hiddenstream.status_page.totals import LedgerTotals


class RunLook:
    """Follows a run's ledger, and asks its producer's page where there is one."""

    def __init__(self, paths: RunPaths, record: RunRecord) -> None:
        """Read the run.

        Raises:
            RunDirectoryError: its plan or ledger cannot be read.
        """
        self._paths, self._record = paths, record
        self._totals = LedgerTotals()
        self._ledger = LedgerReader(paths.ledger, on_commit=self._totals.add)
        self._rejected = rejected_groups(paths, record.rejected)

    def status(self, url: str | None = None, *, has_ended: bool = False) -> RunStatus:
        """Return the run's status, from the page at *url* if that answers for this run, else from the directory.

        Args:
            has_ended: whether it is known that no service runs any more.

        Raises:
            RunDirectoryError: the ledger cannot be read.
        """
        told = fetch_status(url) if url else None
        if told is not None and told.fingerprint == self._record.identity.fingerprint:
            return told
        self._ledger.poll()
        now = time.time()
        seen = Seen(
            phase="ended" if has_ended else "unwatched",
            run=self._record.run,
            disk=look_at_disk(self._paths.root, 0),
            failures=self._rejected,
        )
        return compose(self._record, self._totals.snapshot(now), seen, now=now)
