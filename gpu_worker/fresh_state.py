"""Putting a model back into the state in which it was loaded.

Some models keep state between forward passes: ``rope_type: dynamic`` stretches its frequencies to the longest sample
so far and keeps them (a sample of 33 tokens changes by 0.24 after a long one, transformers 5.24). A sample's states
must not depend on what was run before it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

# Hooks stay, so what transformers notes of its own must too: without it, it installs them again, and every state that
# it returns is there twice.
_LEFT_ALONE = (vars(nn.Module()).keys() - {"training"}) | {"_output_capturing_hooks_installed"}
_NOTED_KINDS = (Tensor, int, float, complex, str, tuple, list, dict, set, type(None))  # bool is an int


class FreshState:
    """What a module's buffers and plain attributes are now, to be put back later.

    Noted are, of every submodule, its buffers, and those attributes that are tensors, numbers, text, None, tuples,
    lists, dicts or sets; not parameters, and not what lies deeper inside an attribute.
    """

    def __init__(self, module: nn.Module) -> None:
        self._noted = [_NotedModule(part) for part in module.modules()]

    def restore(self) -> int:
        """Put back what has changed, remove what was added, and return how many things that were.

        Where nothing has changed, nothing is read from the device: tensors are compared by identity and version.
        """
        return sum(noted.restore() for noted in self._noted)


class _NotedModule:
    def __init__(self, module: nn.Module) -> None:
        self._buffers = _NotedNames(module._buffers, set())
        self._attributes = _NotedNames(vars(module), _LEFT_ALONE)

    def restore(self) -> int:
        return self._buffers.restore() + self._attributes.restore()


class _NotedNames:
    """The values under the names of one dict; *left_alone* are names that are not looked at."""

    def __init__(self, values: dict[str, Any], left_alone: set[str]) -> None:
        self._values = values
        self._known = {*values, *left_alone}
        self._noted = {
            name: _NotedValue(value)
            for name, value in values.items()
            if name not in left_alone and isinstance(value, _NOTED_KINDS)
        }

    def restore(self) -> int:
        added = [name for name in self._values if name not in self._known]
        for name in added:
            del self._values[name]
        changed = 0
        for name, noted in self._noted.items():
            is_another = name not in self._values or self._values[name] is not noted.value
            if is_another:
                self._values[name] = noted.value
            changed += noted.restore_content() or is_another
        return len(added) + changed


class _NotedValue:
    """One value, and a copy of its content where that can change in place."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._version = _version_of(value)
        if isinstance(value, Tensor):
            self._content: Any = value.detach().clone()
        else:
            self._content = value.copy() if isinstance(value, list | dict | set) else None

    def restore_content(self) -> bool:
        """Put the content back if it has changed, and return whether it had."""
        if isinstance(self.value, Tensor):
            return self._restore_tensor(self.value)
        if self._content is None or _items(self.value) == _items(self._content):
            return False
        self.value.clear()
        if isinstance(self.value, list):
            self.value.extend(self._content)
        else:
            self.value.update(self._content)
        return True

    def _restore_tensor(self, tensor: Tensor) -> bool:
        if self._version is not None and self._version == _version_of(tensor):
            return False
        if self._version is None and torch.equal(tensor, self._content):
            return False
        with torch.inference_mode():
            tensor.copy_(self._content)
        self._version = _version_of(tensor)
        return True


def _version_of(value: Any) -> int | None:
    """Return the count of writes into a tensor; tensors made in inference mode have none."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else None


def _items(content: Any) -> list[Any]:
    """Return what identifies the items of a list, dict or set: comparing tensors by value would read the device."""
    if isinstance(content, dict):
        return [(name, id(item)) for name, item in content.items()]
    return sorted(map(id, content)) if isinstance(content, set) else [id(item) for item in content]
