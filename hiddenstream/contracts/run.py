"""What a run is: its identity and its fingerprint. No I/O here.

``run.json`` holds a :class:`RunRecord`. Its :class:`RunIdentity` says what a stored state means; two runs
with equal fingerprints would store equal states. Settings that only say how the work is cut are not identity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from hiddenstream.contracts.checked import checked
from hiddenstream.contracts.errors import WireError

FORMAT_VERSION = 1
DTYPES = ("float32", "bfloat16", "float16")
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """What the states of a run mean.

    Attributes:
        format_version: of the run directory, the job and the shard together.
        model_digest: resolved revision of a hub model, or ``xxh3:`` and the digest of a local one's files.
        taps: stored taps, ascending in depth; the order of a shard's second axis.
        hidden_size: width of each tap.
        compute_dtype: dtype that the model runs in.
        stored_dtype: dtype that the states are kept in.
        plan_id: digest of every planned shard's ids, tokens and masks, in order.
    """

    format_version: int
    model_digest: str
    taps: tuple[str, ...]
    hidden_size: int
    compute_dtype: str
    stored_dtype: str
    plan_id: str

    @property
    def fingerprint(self) -> str:
        """16 hex digits that name this identity; they name the queue, and travel in every job and shard."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that the states of one token take."""
        return len(self.taps) * self.hidden_size * DTYPE_BYTES[self.stored_dtype]

    def differences(self, other: RunIdentity) -> list[str]:
        """Return one readable line for each field in which *other* differs."""
        return [
            f"{f.name}: this run has {getattr(self, f.name)!r}, got {getattr(other, f.name)!r}"
            for f in fields(self)
            if getattr(self, f.name) != getattr(other, f.name)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """One input file as it was planned.

    Attributes:
        name: its path as given.
        size_bytes: its size.
        xxh3: xxh3-128 of its content, hex.
    """

    name: str
    size_bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """How the input was turned into samples and shards.

    Attributes:
        max_length, over_long: tokens a sample may have; ``reject`` or ``truncate`` longer ones.
        token_budget: token slots of one forward batch, as proposed to workers.
        shard_bytes: bytes of states a shard should have at most.
        is_strict: stop at the first bad row instead of counting it.
    """

    max_length: int
    over_long: str
    token_budget: int
    shard_bytes: int
    is_strict: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The content of ``run.json``.

    Attributes:
        run: the run's name, used in URLs and queue names.
        model: where the model was found: a path or a hub id; workers may find it elsewhere.
        revision: revision of a hub model as asked, or None.
        num_blocks: decoder blocks of the whole model.
        keeps_final: whether ``--final`` was asked, that is, ``block.N-1`` is also ``final``.
        keeps_heads: whether ``--heads`` was asked, that is, embedding and lm_head are stored beside the states.
        shards, samples, tokens: what is planned.
        longest_tokens: tokens of the longest planned sample.
        rejected: rejected rows by reason.
        merged: rows that repeat another row's id, tokens and mask.
        truncated: planned samples that were cut to the maximum length.
        without_mask: planned samples that have no loss mask.
        token_slots: token slots of all forward batches, padding included.
        planning_seconds, created: time that planning took; when it ended, ISO 8601, UTC.
    """

    run: str
    identity: RunIdentity
    model: str
    revision: str | None
    num_blocks: int
    keeps_final: bool
    keeps_heads: bool = False
    settings: PlanSettings
    sources: tuple[DataSource, ...]
    shards: int
    samples: int
    tokens: int
    longest_tokens: int
    rejected: Mapping[str, int]
    merged: int
    truncated: int
    without_mask: int
    token_slots: int
    planning_seconds: float
    created: str

    @property
    def input_rows(self) -> int:
        """Rows of the input: planned + rejected + merged."""
        return self.samples + sum(self.rejected.values()) + self.merged

    def to_json(self) -> str:
        """Return the text of ``run.json``; the fingerprint is included for people, and checked on reading."""
        return json.dumps({**asdict(self), "fingerprint": self.identity.fingerprint}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> RunRecord:
        """Rebuild a record, or refuse it.

        Raises:
            WireError: not JSON, another format version, a field amiss, or a fingerprint of another identity.
        """
        try:
            wire = json.loads(text)
            version = wire["identity"]["format_version"]
            if version != FORMAT_VERSION:
                raise WireError(f"run.json has format version {version}; this program reads version {FORMAT_VERSION}")
            fingerprint = wire.pop("fingerprint")
            identity = _identity(wire.pop("identity"))
            record = cls(
                identity=identity,
                settings=checked(PlanSettings(**wire.pop("settings"))),
                sources=tuple(checked(DataSource(**source)) for source in wire.pop("sources")),
                **wire,
            )
            checked(record)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise WireError(f"run.json is malformed: {error!r}") from error
        if fingerprint != identity.fingerprint:
            raise WireError(f"run.json says fingerprint {fingerprint}, its identity gives {identity.fingerprint}")
        return record


def _identity(wire: Mapping[str, Any]) -> RunIdentity:
    identity = checked(RunIdentity(**{**wire, "taps": tuple(wire["taps"])}))
    if identity.stored_dtype not in DTYPES or identity.compute_dtype not in DTYPES:
        raise ValueError(f"dtypes {identity.compute_dtype!r}, {identity.stored_dtype!r}; known are {DTYPES}")
    return identity
