"""What the supervisor tells an engine at its start. No torch here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOrders:
    """Everything an engine needs, sent on its standard input, since some of it is secret.

    Attributes:
        worker: the worker's name.
        redis, sink, token: how to reach queue and sink.
        device: cpu, cuda, cuda:N or auto.
        gpus: how many GPUs to spread the model over.
        claimed: UUIDs of the GPUs claimed for it, which alone it sees; empty where none was claimed.
        token_budget: most token slots of a forward batch, or None to follow the jobs.
        model: where the model is.
        record: the text of the run's ``run.json``.
        is_model_checked: whether an earlier engine has found that the model is the run's; reading all weights once is
            enough.
    """

    worker: str
    redis: str
    sink: str
    token: str | None
    device: str
    gpus: int
    claimed: tuple[str, ...]
    token_budget: int | None
    model: str
    record: str
    is_model_checked: bool = False

    def to_json(self) -> str:
        """Return the orders as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EngineOrders:
        """Rebuild orders from the text that :meth:`to_json` made."""
        fields = json.loads(text)
        return cls(**{**fields, "claimed": tuple(fields["claimed"])})

    def environment(self) -> dict[str, str]:
        """Return the variables by which CUDA sees the claimed GPUs and no others."""
        if not self.claimed:
            return {}
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.claimed), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
