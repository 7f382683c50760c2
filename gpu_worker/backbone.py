"""Finding a model's text backbone and its decoder blocks by what they are, and cutting away the rest.

A checkpoint is loaded through the class of its configuration as it is, so that its weights have the names that class
expects. For a multimodal configuration that is a wrapper: vision and audio towers, projectors, and a text backbone.
The backbone is told from the towers by its configuration's type, never by the length of its list of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import transformers
from torch import nn

from hiddenstream.contracts.errors import ModelError

LANGUAGE_MODELS = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForMultimodalLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What was cut away from a model before its weights were read.

    Attributes:
        blocks: the decoder blocks that remain, of the text backbone.
        away: names of the modules that were dropped: blocks above the last tap, towers, projectors, heads.
        built_dtypes: dtype in which the architecture itself makes each remaining parameter, by name.
    """

    blocks: nn.ModuleList
    away: tuple[str, ...]
    built_dtypes: dict[str, Any]


def model_class(config: Any) -> type[Any]:
    """Return the class that loads a checkpoint of *config*: its base model, or a wrapper with towers.

    Raises:
        ModelError: transformers has no causal language model for it.
    """
    kind = type(config).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{kind} is an encoder-decoder: its decoder's states depend on another input; give a causal language model"
        )
    is_language_model = any(_mapped(name, config) for name in LANGUAGE_MODELS)
    text = config.get_text_config()
    if not is_language_model and not _mapped("AutoModelForCausalLM", text):
        raise ModelError(
            f"{kind} is no causal language model that transformers {transformers.__version__} knows; give one, or a"
            " newer transformers"
        )
    for name in ("AutoModel", *reversed(LANGUAGE_MODELS)):
        family = _mapped(name, config)
        if family is not None:
            return family
    raise ModelError(f"transformers {transformers.__version__} has no model class for {kind}")


def whole_classes(config: Any) -> list[type[Any]]:
    """Return the classes that may have saved a checkpoint of *config*: the one it names, and every language model."""
    named = [getattr(transformers, name, None) for name in getattr(config, "architectures", None) or ()]
    mapped = [_mapped(name, config) for name in LANGUAGE_MODELS]
    return list(dict.fromkeys(family for family in (*named, *mapped) if family is not None))


def _mapped(auto_class: str, config: Any) -> type[Any] | None:
    mapping = getattr(transformers, auto_class)._model_mapping
    if type(config) not in mapping:
        return None
    family = mapping[type(config)]
    return family[0] if isinstance(family, tuple | list) else family  # type: ignore[no-any-return]


def cut_class(family: type[Any], keep: int, cuts: list[Cut]) -> type[Any]:
    """Return *family* with an ``__init__`` that drops what no tap needs, so those weights are never read.

    Args:
        family: from :func:`model_class`.
        keep: how many decoder blocks remain.
        cuts: what was cut is appended.
    """

    def __init__(self: Any, config: Any, *arguments: Any, **named: Any) -> None:
        family.__init__(self, config, *arguments, **named)
        cuts.append(_cut(self, keep))

    return type(family.__name__, (family,), {"__init__": __init__, "__module__": family.__module__})


def _cut(model: Any, keep: int) -> Cut:
    backbone = text_backbone(model)
    blocks = find_blocks(backbone, backbone.config.num_hidden_layers)
    name_of = {module: name for name, module in model.named_modules()}
    away = [name_of[block] for block in blocks[keep:]]
    del blocks[keep:]
    for parent, child in _beside(model, name_of[backbone]):
        away.append(name_of[getattr(parent, child)])
        setattr(parent, child, None)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    # transformers ties weights by this list of names when it loads; some are gone now
    model.all_tied_weights_keys = {
        name: source for name, source in model.all_tied_weights_keys.items() if {name, source} <= parameters.keys()
    }
    built_dtypes = {name: parameter.dtype for name, parameter in parameters.items()}
    return Cut(blocks=blocks, away=tuple(away), built_dtypes=built_dtypes)


def _beside(model: nn.Module, path: str) -> Iterator[tuple[nn.Module, str]]:
    """Yield (parent, child's name) of every module that hangs beside the way from *model* down *path*."""
    parent = model
    for step in path.split(".") if path else ():
        yield from [
            (parent, child) for child, module in parent.named_children() if child != step and module is not None
        ]
        parent = getattr(parent, step)


def text_backbone(model: Any) -> Any:
    """Return the text backbone of *model*: its base model, or the part of a wrapper that has the text configuration.

    Raises:
        ModelError: a wrapper holds no such part, or several.
    """
    text = type(model.config.get_text_config())
    if isinstance(model.config, text):
        return model.base_model
    parts = [m for m in model.modules() if isinstance(m, transformers.PreTrainedModel) and isinstance(m.config, text)]
    outermost = _outermost(parts)
    if len(outermost) != 1:
        raise ModelError(
            f"{type(model).__name__} has {len(outermost)} parts of a {text.__name__}; exactly one was expected, its"
            " text backbone"
        )
    embedding = outermost[0].get_input_embeddings()
    return [part for part in parts if _holds(part, embedding)][-1]  # without the head, if the part has one


def find_blocks(backbone: nn.Module, count: int) -> nn.ModuleList:
    """Return the one list of *count* decoder blocks in a text backbone, the least deep where there are several.

    Raises:
        ModelError: there is none, or more than one at that depth.
    """
    lists = {n: m for n, m in backbone.named_modules() if isinstance(m, nn.ModuleList) and len(m) == count}
    least_depth = min((name.count(".") for name in lists), default=0)
    shallow = _outermost([module for name, module in lists.items() if name.count(".") == least_depth])
    if len(shallow) != 1:
        raise ModelError(
            f"{type(backbone).__name__} has {len(shallow)} lists of {count} blocks; exactly one was expected"
        )
    found: nn.ModuleList = shallow[0]
    return found


def _outermost(modules: list[Any]) -> list[Any]:
    return [m for m in modules if not any(other is not m and _holds(other, m) for other in modules)]


def _holds(outer: nn.Module, inner: nn.Module) -> bool:
    return any(module is inner for module in outer.modules())
