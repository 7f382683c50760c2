"""Putting a model back into the state in which it was loaded.

Some models keep something between forward passes: rotary embeddings that grow with the longest sample seen
(``dynamic``, ``longrope``), caches, counters. A sample's states must not depend on what ran before it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

_KEPT_KINDS = (bool, int, float, str, tuple, Tensor, type(None))


class FreshState:
    """What a module holds besides parameters and submodules: buffers, attributes that are tensors or plain values."""

    def __init__(self, module: nn.Module) -> None:
        """Take note of the state of *module* and all modules in it."""
        self._noted = [(part, _plain_attributes(part), _buffers(part)) for part in module.modules()]

    def restore(self) -> None:
        """Put back what has changed since, and remove what was added."""
        for part, attributes, buffers in self._noted:
            for name in _plain_attributes(part).keys() - attributes.keys():
                delattr(part, name)
            for name, (value, content) in attributes.items():
                if vars(part).get(name) is not value:
                    setattr(part, name, value)
                if content is not None:
                    value.copy_(content)
            for name in part._buffers.keys() - buffers.keys():
                del part._buffers[name]
            for name, (buffer, content) in buffers.items():
                part._buffers[name] = buffer
                if buffer is not None and content is not None:
                    buffer.copy_(content)


def _plain_attributes(part: nn.Module) -> dict[str, tuple[Any, Tensor | None]]:
    return {
        name: (value, value.clone() if isinstance(value, Tensor) else None)
        for name, value in vars(part).items()
        if not name.startswith("_") and name != "training" and isinstance(value, _KEPT_KINDS)
    }


def _buffers(part: nn.Module) -> dict[str, tuple[Tensor | None, Tensor | None]]:
    return {name: (buffer, None if buffer is None else buffer.clone()) for name, buffer in part._buffers.items()}
