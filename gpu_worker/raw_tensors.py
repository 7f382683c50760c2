"""Tensors as the bytes of a file."""

from __future__ import annotations

import torch
from torch import Tensor

from hiddenstream.contracts.run_file import RawTensor

_NAMES = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.uint8: "uint8",
}


def raw_tensor(tensor: Tensor) -> RawTensor:
    """Return a tensor's bytes; over its own memory where it lies on the host without gaps."""
    plain = tensor.detach().cpu().contiguous()
    data = plain.flatten().view(torch.uint8).numpy().data if plain.numel() else b""
    return RawTensor(dtype=_NAMES[plain.dtype], shape=tuple(plain.shape), data=data)
