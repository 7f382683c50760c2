"""The job on the queue: what the producer promises the worker. No I/O here.

Wire form: one msgpack map with the keys of :class:`ExtractionJob`, arrays as little-endian bytes.
It is the only argument of the RQ job. Its function is only a name, :data:`TASK`: a worker compares it and does its one
task, rather than importing and calling whatever a job names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.samples import PackedSamples

SCHEMA = 1
TASK = "hiddenstream.extract"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtractionJob:
    """One shard to run through the model.

    Attributes:
        run: the run's name.
        fingerprint: the run's fingerprint; a worker of another run must refuse the job.
        shard: number of the shard, from 0.
        delivery: which delivery of the shard this is; differs each time the shard is enqueued.
        token_budget: proposed token slots of one forward batch; not identity, a worker may go lower.
        samples: ids, tokens and masks, in the order of the shard.
    """

    run: str
    fingerprint: str
    shard: int
    delivery: str
    token_budget: int
    samples: PackedSamples

    def encode(self) -> bytes:
        """Return the job's wire form."""
        samples = self.samples
        return bytes(
            msgpack.packb(
                {
                    "schema": SCHEMA,
                    "run": self.run,
                    "fingerprint": self.fingerprint,
                    "shard": self.shard,
                    "delivery": self.delivery,
                    "token_budget": self.token_budget,
                    "ids": list(samples.ids),
                    "token_counts": samples.token_counts.astype("<i8").tobytes(),
                    "tokens": samples.tokens.astype("<i4").tobytes(),
                    "mask_counts": samples.mask_counts.astype("<i8").tobytes(),
                    "masks": samples.masks.tobytes(),
                }
            )
        )

    @classmethod
    def decode(cls, payload: bytes) -> ExtractionJob:
        """Rebuild a job, or refuse it.

        Raises:
            WireError: the bytes are not msgpack, the schema is not ours, or a field is missing or malformed.
        """
        try:
            wire: dict[str, Any] = msgpack.unpackb(payload)
            schema = wire.get("schema")
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise WireError(f"job is not a msgpack map: {type(error).__name__}") from None  # it holds the payload
        if type(schema) is not int or schema != SCHEMA:
            raise WireError(f"job schema {schema!r} is not {SCHEMA}: producer and worker are of different versions")
        try:
            job = cls(
                run=_text(wire["run"]),
                fingerprint=_text(wire["fingerprint"]),
                shard=_whole(wire["shard"], least=0),
                delivery=_text(wire["delivery"]),
                token_budget=_whole(wire["token_budget"], least=1),
                samples=PackedSamples(
                    ids=tuple(_text(sample_id) for sample_id in wire["ids"]),
                    token_counts=np.frombuffer(wire["token_counts"], "<i8"),
                    tokens=np.frombuffer(wire["tokens"], "<i4"),
                    mask_counts=np.frombuffer(wire["mask_counts"], "<i8"),
                    masks=np.frombuffer(wire["masks"], np.uint8),
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"job is malformed: {repr(error)[:200]}") from None
        return job


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _whole(value: object, *, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is not a whole number of at least {least}")
    return value
