"""Reading the ledger: which shards are durably stored, over all sinks, also while they append."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hiddenstream.contracts.commit import CommitLine
from hiddenstream.contracts.errors import RunDirectoryError, WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerProblem:
    """A line that is no commit line."""

    file: str
    line: int
    message: str


class LedgerReader:
    """Follows every ``*.jsonl`` of a ledger folder.

    A last line without its newline is being written and is left for the next :meth:`poll`, which raises
    RunDirectoryError where a ledger cannot be read.

    Attributes:
        commits: one commit line of each shard, in the order the shards were first read. Where a shard's file was
            lost or damaged and made again, the line with the newest time, whose bytes are those on disk.
        problems: lines that could not be read, each once.
    """

    def __init__(
        self, folder: Path, *, on_commit: Callable[[CommitLine, CommitLine | None], None] = lambda *_: None
    ) -> None:
        """Follow *folder*.

        Args:
            on_commit: called with each line that counts from now on, and with the one that it replaces, if any.
        """
        self.commits: dict[int, CommitLine] = {}
        self.problems: list[LedgerProblem] = []
        self._folder = folder
        self._on_commit = on_commit
        self._read_bytes: dict[Path, int] = {}
        self._read_lines: dict[Path, int] = {}

    def poll(self) -> list[CommitLine]:
        """Read what was appended since the last call; return the commits of shards new to it."""
        fresh: list[CommitLine] = []
        for file in sorted(self._folder.glob("*.jsonl")):
            try:
                with open(file, "rb") as ledger:
                    ledger.seek(self._read_bytes.get(file, 0))
                    text = ledger.read()
            except OSError as error:
                raise RunDirectoryError(f"the ledger {file} cannot be read: {error}") from error
            whole = text[: text.rfind(b"\n") + 1]
            self._read_bytes[file] = self._read_bytes.get(file, 0) + len(whole)
            for line in whole.splitlines(keepends=True):
                self._read_lines[file] = self._read_lines.get(file, 0) + 1
                try:
                    commit = CommitLine.from_line(line)
                except WireError as error:
                    self.problems.append(LedgerProblem(file=file.name, line=self._read_lines[file], message=str(error)))
                    continue
                known = self.commits.get(commit.shard)
                if known is None:
                    fresh.append(commit)
                if known is None or _is_newer(commit, known):
                    self.commits[commit.shard] = commit
                    self._on_commit(commit, known)
        return fresh


def _is_newer(commit: CommitLine, known: CommitLine) -> bool:
    return datetime.fromisoformat(commit.time) > datetime.fromisoformat(known.time)
