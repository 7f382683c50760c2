"""Conversations to tokens and loss masks, with the model's own tokenizer and chat template.

The tokens are exactly those of ``tokenizer.apply_chat_template(messages)``; nothing is added. The mask marks what
the assistant says: by the template's own ``{% generation %}`` markers, or else by comparing renderings. What the
template writes for ``messages[:i]`` and the prompt for an answer must be how the whole rendering begins, and so must
``messages[:i + 1]``; the text between the two is answer i. A template that rewrites earlier turns (drops old
reasoning, say) breaks this; such a sample gets no mask rather than a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import TemplateError

from hiddenstream.contracts.errors import UsageError
from producer.conversations import ASSISTANT, messages_of, tools_of
from producer.rejections import MALFORMED_MESSAGES, BadRow

_GENERATION_MARKER = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
# A template is a program from outside; what it raises on a conversation condemns the conversation.
_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
TokensAndMask = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8] | None]
Span = tuple[int, int]


class ChatTokenizer:
    """Renders and tokenizes conversations; the tokenizer is loaded with the first one."""

    def __init__(self, model: str, revision: str | None) -> None:
        self._model, self._revision = model, revision
        self._tokenizer: Any = None

    def __call__(self, row: Mapping[str, Any]) -> TokensAndMask:
        """Return a row's tokens, and its mask where the template lets one be known.

        Raises:
            BadRow: a malformed conversation, or one that the template refuses.
            UsageError: the model has no tokenizer or no chat template.
        """
        try:
            messages, tools = messages_of(row), tools_of(row)
        except RecursionError as error:
            raise BadRow(MALFORMED_MESSAGES, "it is nested too deeply") from error
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._model, self._revision)
        try:
            return _tokenized(self._tokenizer, messages, tools)
        except _TEMPLATE_ERRORS as error:
            raise BadRow(MALFORMED_MESSAGES, f"the chat template refuses it: {error!r}"[:400]) from error


def load_tokenizer(model: str, revision: str | None) -> Any:
    """Load a model's tokenizer.

    Raises:
        UsageError: there is none, or it has no chat template.
    """
    from transformers import AutoTokenizer  # takes a second to import, and only conversations need it

    way_out = "give rows with input_ids instead, or put the tokenizer's files beside the model"
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, revision=revision)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise UsageError(
            f"the data holds conversations, but --model {model} has no usable tokenizer ({error}); {way_out}"
        ) from error
    try:
        tokenizer.get_chat_template()
    except ValueError as error:  # none at all, or several and no default
        raise UsageError(
            f"the data holds conversations, but the tokenizer of --model {model} has no chat template; {way_out}"
        ) from error
    return tokenizer


def _tokenized(tokenizer: Any, messages: list[dict[str, Any]], tools: list[Any] | None) -> TokensAndMask:
    if not tokenizer.is_fast:  # tokenizers in Python do not say which characters a token covers
        tokens = tokenizer.apply_chat_template(messages, tools=tools, return_dict=True)["input_ids"]
        return np.array(tokens, dtype=np.int32), None
    if _GENERATION_MARKER.search(tokenizer.get_chat_template(tools=tools)):
        marked = tokenizer.apply_chat_template(
            messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True
        )
        return np.array(marked["input_ids"], dtype=np.int32), np.array(marked["assistant_masks"], dtype=np.uint8)
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    spans = answer_spans(tokenizer, messages, tools, text)
    mask = None if spans is None else mask_of_spans(encoded["offset_mapping"], spans)
    return np.array(encoded["input_ids"], dtype=np.int32), mask


def answer_spans(
    tokenizer: Any, messages: Sequence[dict[str, Any]], tools: list[Any] | None, text: str
) -> list[Span] | None:
    """Return where in *text*, the whole rendering, each answer stands; None where that cannot be known."""
    spans = []
    for place, message in enumerate(messages):
        if message["role"] != ASSISTANT:
            continue
        try:
            before = tokenizer.apply_chat_template(
                messages[:place], tools=tools, tokenize=False, add_generation_prompt=True
            )
            after = tokenizer.apply_chat_template(messages[: place + 1], tools=tools, tokenize=False)
        except _TEMPLATE_ERRORS:  # it refuses a part of what it took whole
            return None
        if not (after.startswith(before) and text.startswith(after)):
            return None
        spans.append((len(before), len(after)))
    return spans


def mask_of_spans(offsets: Sequence[Span], spans: Sequence[Span]) -> npt.NDArray[np.uint8]:
    """Mark the tokens that cover at least one character inside one of *spans*.

    Args:
        offsets: first character and one past the last, of each token.
        spans: the same, of each answer.
    """
    places = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    begins, ends = places[:, 0], np.maximum(places[:, 1], places[:, 0] + 1)  # a token without characters counts as one
    mask = np.zeros(len(places), dtype=np.uint8)
    for begin, end in spans:
        mask[(begins < end) & (ends > begin)] = 1
    return mask
