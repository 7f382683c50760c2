"""Conversations as data sets write them, made one form: a list of {"role", "content", ...}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from producer.columns import CHATS, TOOLS
from producer.rejections import MALFORMED_MESSAGES, BadRow

ASSISTANT = "assistant"
_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": ASSISTANT,
    "assistant": ASSISTANT,
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}


def messages_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row's conversation in the form that chat templates read.

    Raises:
        BadRow: no list of messages, or one without a known role or content.
    """
    column = next(name for name in CHATS if row.get(name) is not None)
    value = row[column]
    if not isinstance(value, list) or not value:
        raise BadRow(MALFORMED_MESSAGES, f"{column} is no list of messages: {_excerpt(value)}")
    return [_message(f"message {place} of {column}", message) for place, message in enumerate(value)]


def tools_of(row: Mapping[str, Any]) -> list[Any] | None:
    """Return a row's tools; a list, or the JSON text of one, as many data sets keep it.

    Raises:
        BadRow: neither.
    """
    value = row.get(TOOLS)
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except (ValueError, RecursionError) as error:
            raise BadRow(MALFORMED_MESSAGES, f"{TOOLS} is text, but not JSON: {error}") from error
    if value is not None and not isinstance(value, list):
        raise BadRow(MALFORMED_MESSAGES, f"{TOOLS} is no list: {_excerpt(value)}")
    return [_without_nulls(tool) for tool in value] if value else None


def _message(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRow(MALFORMED_MESSAGES, f"{where} is no object: {_excerpt(value)}")
    message: dict[str, Any] = _without_nulls(value)
    if "role" not in message and "from" in message:
        message = _from_sharegpt(where, message)
    if not isinstance(message.get("role"), str):
        raise BadRow(MALFORMED_MESSAGES, f"{where} has no role")
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise BadRow(MALFORMED_MESSAGES, f"{where} has no content")
    if content is not None and not isinstance(content, str) and not (isinstance(content, list) and content):
        raise BadRow(MALFORMED_MESSAGES, f"{where} has content that is no text: {_excerpt(content)}")
    return message


def _from_sharegpt(where: str, message: Mapping[str, Any]) -> dict[str, Any]:
    role = _SHAREGPT_ROLES.get(str(message["from"]))
    if role is None:
        raise BadRow(MALFORMED_MESSAGES, f"{where} is from {_excerpt(message['from'])}, which is no known role")
    return {"role": role, "content": message.get("value")}


def _without_nulls(value: Any) -> Any:
    """Drop keys without a value: Arrow adds every key of any row to all rows, and templates ask which are there."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _excerpt(value: Any) -> str:
    return ascii(value)[:80]
