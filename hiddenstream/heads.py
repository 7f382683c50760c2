"""A model's embedding and lm_head as they are stored beside a run, for trainers that want them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.run_file import RunFileMetadata

EMBEDDING, HEAD, HEAD_BIAS = "embed_tokens.weight", "lm_head.weight", "lm_head.bias"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heads:
    """What turns tokens into the first state and the last normed state into logits. Views of a mapped file.

    V vocabulary, H width; in the run's compute dtype, ``ml_dtypes.bfloat16`` for bfloat16.

    Attributes:
        embed_tokens: [V, H], as in the checkpoint: some families scale what they look up in it.
        lm_head: [V, H]; the same array where the model ties the two.
        lm_head_bias: [V], or None where the model has none.
        is_tied: whether the model uses one weight for both.
        settings: numbers of the model's configuration that have to do with logits or scaling, by their names there:
            ``final_logit_softcapping``, ``logit_scale``, ``logits_scaling``, ... Its code says how they are used.
        class_name: the model's class in transformers, for people.
    """

    embed_tokens: npt.NDArray[Any]
    lm_head: npt.NDArray[Any]
    lm_head_bias: npt.NDArray[Any] | None
    is_tied: bool
    settings: Mapping[str, float]
    class_name: str

    @classmethod
    def from_run_file(cls, metadata: RunFileMetadata, arrays: Mapping[str, npt.NDArray[Any]]) -> Heads:
        """Read what gpu_worker/heads.py wrote.

        Raises:
            WireError: a tensor or a fact is missing, or makes no sense.
        """
        try:
            is_tied, settings = json.loads(metadata.facts["is_tied"]), json.loads(metadata.facts["settings"])
            embed_tokens = arrays[EMBEDDING]
            heads = cls(
                embed_tokens=embed_tokens,
                lm_head=embed_tokens if is_tied is True else arrays[HEAD],
                lm_head_bias=arrays.get(HEAD_BIAS),
                is_tied=is_tied,
                settings=settings,
                class_name=metadata.facts["class"],
            )
        except (KeyError, ValueError, RecursionError) as error:
            raise WireError(f"heads is malformed: {error!r}") from error
        if not isinstance(is_tied, bool) or not isinstance(settings, dict) or heads.embed_tokens.ndim != 2:
            raise WireError(f"heads is malformed: {dict(metadata.facts)}")
        return heads
