"""Plain transformers: the whole model as anybody loads it, run on one sample alone.

This is the oracle, so it shares no code with the forward pass of the worker.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers

from gpu_worker.fresh_state import FreshState
from gpu_worker.mistakes import NORMED
from hiddenstream.contracts.errors import ModelError
from hiddenstream.contracts.taps import EMBEDDING, tap_depth


def load_plain(name: str, revision: str | None, dtype: str, *, device: str | None = None) -> Any:
    """Load the whole model as anybody would: its causal language model, or the multimodal one that it is.

    Args:
        device: where; a GPU where there is one, unless given.

    Raises:
        ModelError: it does not load, or its files lack weights.
    """
    transformers.utils.logging.disable_progress_bar()
    faults = []
    for auto_class in (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText):
        try:
            model, report = auto_class.from_pretrained(
                name,
                revision=revision,
                dtype=getattr(torch, dtype),
                device_map=device or ("cuda" if torch.cuda.is_available() else None),
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError) as error:
            faults.append(str(error))
            continue
        if not report["missing_keys"]:
            return _always_fresh(model.eval())
        faults.append(f"its files lack weights, for example {min(report['missing_keys'])}")
    raise ModelError(f"--model {name}: {faults[0]}")


def _always_fresh(model: Any) -> Any:
    """Have every forward pass of *model* begin with the state in which it was loaded."""
    fresh = FreshState(model)

    def restore(*_: Any) -> None:
        fresh.restore()

    model.register_forward_pre_hook(restore)
    return model


@torch.inference_mode()
def plain_states(
    plain: Any, input_ids: Any, taps: tuple[str, ...], *, most_tokens: int | None = None
) -> dict[str, Any]:
    """Return each tap of one sample, float64 [S, H], by transformers' own ``hidden_states``.

    ``NORMED`` counts as a tap here. Of a sample of more than *most_tokens*, the states of the first ones are returned.

    Their numbering is found out, not assumed: it begins with what enters block 0, but in some families (mamba) with
    what leaves it. The last block's output is taken by a hook, since transformers gives its normed form.
    """
    blocks = _blocks_of(plain, plain.config.get_text_config().num_hidden_layers)
    seen: dict[str, Any] = {}
    handles = [
        blocks[0].register_forward_pre_hook(_keeps_input(seen), with_kwargs=True),
        blocks[0].register_forward_hook(_keeps_output(seen, "first")),
        blocks[-1].register_forward_hook(_keeps_output(seen, "last")),
    ]
    try:
        ids = torch.from_numpy(np.array(input_ids, np.int64))[None].to(plain.device)
        states = plain(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    finally:
        for handle in handles:
            handle.remove()
    shift = 0 if torch.equal(states[0], seen["first"]) else 1
    chosen = {}
    for tap in taps:
        if tap == NORMED:
            state = states[-1]
        elif tap_depth(tap) == len(blocks) - 1:
            state = seen["last"]
        else:
            state = seen["entering"] if tap == EMBEDDING else states[tap_depth(tap) + shift]
        chosen[tap] = state[0, :most_tokens].double().cpu().numpy()
    return chosen


def _keeps_input(seen: dict[str, Any]) -> Any:
    def keep(_block: Any, arguments: Any, named: Any) -> None:
        seen["entering"] = arguments[0] if arguments else named["hidden_states"]

    return keep


def _keeps_output(seen: dict[str, Any], name: str) -> Any:
    def keep(_block: Any, _arguments: Any, output: Any) -> None:
        seen[name] = output[0] if isinstance(output, tuple) else output

    return keep


def _blocks_of(plain: Any, count: int) -> Any:
    """Return the blocks of the text decoder; the first list of *count* in the whole model may be a vision tower's."""
    decoder = plain
    while isinstance(inner := decoder.get_decoder(), transformers.PreTrainedModel) and inner is not decoder:
        decoder = inner
    lists = [m for m in decoder.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    if not lists:
        raise ModelError(f"{type(plain).__name__} has no list of {count} blocks")
    return lists[0]
