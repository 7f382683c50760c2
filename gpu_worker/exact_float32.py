"""Making float32 mean float32.

On a GPU, "float32" is often TensorFloat-32, with 10 bits of precision and not 23: cuDNN's convolutions by default, and
every product inside of flash-linear-attention's Triton kernels. Measured on an H200 with tiny random models: a block of
Qwen3.5, OLMo-hybrid or Kimi Linear gives a token other values in another batch by up to 1e-3 (relative) with them.
"""

from __future__ import annotations

import sys

import torch


def make_float32_exact(dtype: str) -> None:
    """Where *dtype* is ``float32``, let this process compute in it; call it before a model's code is imported.

    transformers then finds no flash-linear-attention and takes its own functions, which are slower.
    """
    if dtype != "float32":
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if torch.cuda.is_available():
        sys.modules.setdefault("fla", None)  # type: ignore[arg-type]
