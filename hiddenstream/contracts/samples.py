"""The samples of one shard, packed: the part that job, plan and shard file have in common. No I/O here."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from hiddenstream.contracts.errors import WireError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedSamples:
    """Samples in order, their tokens and masks end to end.

    Attributes:
        ids: one id per sample, any text.
        token_counts: int64 [n], tokens of each sample, 1 or more.
        tokens: int32 [T], token ids end to end.
        mask_counts: int64 [n], mask values of each sample: its tokens, or 0 where it has no mask.
        masks: uint8 [M], values 0 and 1, end to end.

    Raises:
        WireError: the counts do not fit the arrays.
    """

    ids: tuple[str, ...]
    token_counts: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int32]
    mask_counts: npt.NDArray[np.int64]
    masks: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        n = len(self.ids)
        if self.token_counts.shape != (n,) or self.mask_counts.shape != (n,):
            raise WireError(
                f"{n} ids, but {self.token_counts.shape} token counts, {self.mask_counts.shape} mask counts"
            )
        if n and int(self.token_counts.min()) < 1:
            raise WireError("a sample without tokens")
        if n and int(self.token_counts.max()) > self.tokens.size:  # also keeps the sum below from wrapping around
            raise WireError(f"a sample of {int(self.token_counts.max())} tokens; {self.tokens.size} are here")
        if int(self.token_counts.sum()) != self.tokens.size:
            raise WireError(f"counts name {int(self.token_counts.sum())} tokens, {self.tokens.size} are here")
        if not np.all((self.mask_counts == 0) | (self.mask_counts == self.token_counts)):
            raise WireError("a mask of another length than its sample")
        if int(self.mask_counts.sum()) != self.masks.size:
            raise WireError(f"counts name {int(self.mask_counts.sum())} mask values, {self.masks.size} are here")
        if self.masks.size and int(self.masks.max()) > 1:
            raise WireError(f"a mask holds {int(self.masks.max())}; masks hold 0 and 1")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def token_offsets(self) -> npt.NDArray[np.int64]:
        """int64 [n + 1]: where each sample's tokens begin; the last entry is T."""
        return np.concatenate(([0], np.cumsum(self.token_counts))).astype(np.int64)

    @property
    def mask_offsets(self) -> npt.NDArray[np.int64]:
        """int64 [n + 1]: where each sample's mask begins; the last entry is M."""
        return np.concatenate(([0], np.cumsum(self.mask_counts))).astype(np.int64)

    def take(self, places: list[int]) -> PackedSamples:
        """Return the samples at *places*, in that order."""
        tokens, masks = self.token_offsets, self.mask_offsets
        return PackedSamples(
            ids=tuple(self.ids[i] for i in places),
            token_counts=self.token_counts[places],
            tokens=np.concatenate([self.tokens[:0], *(self.tokens[tokens[i] : tokens[i + 1]] for i in places)]),
            mask_counts=self.mask_counts[places],
            masks=np.concatenate([self.masks[:0], *(self.masks[masks[i] : masks[i + 1]] for i in places)]),
        )

    def digest(self) -> str:
        """Return 32 hex digits that name exactly these ids, tokens and masks in this order.

        xxh3-128 over, for each sample: its id's UTF-8 length (u32) and bytes, its token count (u32) and
        int32 tokens, its mask count (u32) and uint8 mask; all little-endian.
        """
        state = xxhash.xxh3_128()
        tokens, masks = self.token_offsets, self.mask_offsets
        for place, sample_id in enumerate(self.ids):
            id_bytes = sample_id.encode()
            state.update(struct.pack("<I", len(id_bytes)) + id_bytes)
            state.update(struct.pack("<I", int(self.token_counts[place])))
            state.update(self.tokens[tokens[place] : tokens[place + 1]].astype("<i4", copy=False).tobytes())
            state.update(struct.pack("<I", int(self.mask_counts[place])))
            state.update(self.masks[masks[place] : masks[place + 1]].tobytes())
        return state.hexdigest()
