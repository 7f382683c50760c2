"""Which columns of the input mean something. All others are ignored, and not even read where the format allows it."""

from __future__ import annotations

TOKENS = "input_ids"
IDS = ("id", "conversation_id", "uuid")  # the first that is there names the sample
LABELS = "labels"
MASKS = ("loss_mask", "assistant_masks", "assistant_mask", LABELS)  # the first that is there is the mask
CHATS = ("messages", "conversations")
TOOLS = "tools"
USED = frozenset({TOKENS, *IDS, *MASKS, *CHATS, TOOLS})
