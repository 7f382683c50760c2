"""What is stored, and what is not: the lines of a run's ledger. No I/O here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from hiddenstream.contracts.checked import checked, refuse_time_without_zone
from hiddenstream.contracts.errors import WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A planned sample that has no states, and why.

    Attributes:
        id: the sample.
        reason: from a closed list: ``non_finite``, ``overflow``, ``all_zero``, ``constant``,
            ``out_of_memory``, ``kills_engine``.
        detail: evidence, for people.
    """

    id: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLine:
    """One line of a ledger: a shard that is durably stored.

    Attributes:
        shard: its number.
        file_bytes: size of its file.
        xxh3: xxh3-128 of its tensor bytes, hex, as in its metadata.
        header_xxh3: xxh3-128 of everything before them.
        tokens, samples: how many are stored in it.
        quarantined: planned samples that are not.
        delivery: the delivery that was committed; ``recovered`` for a line rebuilt from a file.
        made_by: worker, device, versions, batching way and stage times, as in the shard's metadata.
        receive_seconds, fsync_seconds: what the sink took.
        time: ISO 8601 time of the commit, UTC.
    """

    shard: int
    file_bytes: int
    xxh3: str
    header_xxh3: str
    tokens: int
    samples: int
    quarantined: tuple[Quarantined, ...]
    delivery: str
    made_by: Mapping[str, Any]
    receive_seconds: float
    fsync_seconds: float
    time: str

    def to_line(self) -> bytes:
        """Return the line with its newline; ``check`` is xxh3-64 of the line without it."""
        body = json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)
        return f'{body[:-1]},"check":"{xxhash.xxh3_64_hexdigest(body.encode())}"}}\n'.encode()

    @classmethod
    def from_line(cls, line: bytes) -> CommitLine:
        """Rebuild a line, or refuse it.

        Raises:
            WireError: torn, altered, or not a ledger line.
        """
        body, separator, check = line.rstrip(b"\n").rpartition(b',"check":"')
        if not separator or check != f'{xxhash.xxh3_64_hexdigest(body + b"}")}"}}'.encode():
            raise WireError(f"ledger line is torn or altered: {line[:80]!r}")
        try:
            wire = json.loads(body + b"}")
            quarantined = tuple(checked(Quarantined(**entry)) for entry in wire["quarantined"])
            commit = checked(cls(**{**wire, "quarantined": quarantined}))
            refuse_time_without_zone(commit.time)
            return commit
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise WireError(f"ledger line is malformed: {error!r}") from error
