"""Capturing the chosen taps during one forward pass.

Shape letters: B rows, T token slots, D model width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hiddenstream.contracts.errors import ModelError
from hiddenstream.contracts.taps import tap_depth

_CAPTURES = "_output_capturing_hooks_installed"  # transformers' note that it need not install them again


@contextmanager
def captured_taps(blocks: nn.ModuleList, taps: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
    """Collect *taps* of the one forward pass made inside the context; no hook outlives it.

    Args:
        blocks: the decoder blocks, from block 0 on.
        taps: names of :mod:`hiddenstream.contracts.taps`.

    Yields:
        A mapping that the forward pass fills: tap to [B, T, D], a reference, not a copy.

    Raises:
        ModelError: from the forward pass, where a tap is no such tensor, or is reached twice.
    """
    captured: dict[str, Tensor] = {}
    handles = []
    try:
        for tap in taps:
            depth = tap_depth(tap)
            if depth < 0:
                handles.append(blocks[0].register_forward_pre_hook(_keep_input(captured, tap), with_kwargs=True))
            else:
                handles.append(blocks[depth].register_forward_hook(_keep_output(captured, tap)))
        yield captured
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def no_hook_left(model: nn.Module) -> Iterator[None]:
    """Remove the hooks that transformers leaves on every module when it is asked for hidden states."""
    before = [(module, set(module._forward_hooks)) for module in model.modules()]
    noted = [(module, vars(module).get(_CAPTURES)) for module, _ in before]
    try:
        yield
    finally:
        for module, known in before:
            for number in set(module._forward_hooks) - known:
                del module._forward_hooks[number]
                for others in (module._forward_hooks_with_kwargs, module._forward_hooks_always_called):
                    others.pop(number, None)
        for module, was_noted in noted:
            if was_noted is None:
                vars(module).pop(_CAPTURES, None)


def _keep_input(captured: dict[str, Tensor], tap: str) -> Any:
    def keep(_block: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        _put(captured, tap, arguments[0] if arguments else named["hidden_states"])

    return keep


def _keep_output(captured: dict[str, Tensor], tap: str) -> Any:
    def keep(_block: nn.Module, _arguments: tuple[Any, ...], output: Any) -> None:  # a value would replace the output
        _put(captured, tap, output)

    return keep


def _put(captured: dict[str, Tensor], tap: str, output: Any) -> None:
    if tap in captured:
        raise ModelError(f"{tap} is reached more than once in a forward pass: this model runs blocks in a loop")
    captured[tap] = hidden_of(output, tap)


def hidden_of(output: Any, tap: str) -> Tensor:
    """Return the hidden state [B, T, D] in what a block returned: a tensor, or a tuple that begins with it.

    Raises:
        ModelError: anything else. Guessing would store another tensor under the tap's name.
    """
    hidden_BTD = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(hidden_BTD, torch.Tensor) or hidden_BTD.ndim != 3:
        kind = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, torch.Tensor) else f"{type(output)}"
        raise ModelError(f"{tap} of this model is {kind}, not [rows, tokens, width]; it cannot be stored")
    return hidden_BTD
