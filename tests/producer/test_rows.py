"""Rows to samples and rejections."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from producer.raw_row import RawRow
from producer.rejections import REJECTION_REASONS, BadRow
from producer.rows import Limits, Rejection, Sample, read_sample

LIMITS = Limits(vocabulary_rows=100, max_length=4, over_long="reject")


def no_chat(row: Any) -> Any:
    raise BadRow("malformed_messages", "chat")


def read(row: Any, *, limits: Limits = LIMITS, problem: str | None = None) -> Sample | Rejection:
    return read_sample(RawRow(source="x:8", row=row, problem=problem), source_row=7, limits=limits, render_chat=no_chat)


def accepted(row: Any, *, limits: Limits = LIMITS) -> Sample:
    sample = read(row, limits=limits)
    assert isinstance(sample, Sample), sample
    return sample


def rejected(row: Any, *, problem: str | None = None) -> Rejection:
    rejection = read(row, problem=problem)
    assert isinstance(rejection, Rejection), rejection
    assert rejection.reason in REJECTION_REASONS
    return rejection


@pytest.mark.parametrize(
    ("row", "reason", "says"),
    [
        (None, "unreadable_line", "cannot be read"),
        ({}, "empty_row", "input_ids"),
        ({"input_ids": None, "messages": None}, "empty_row", "input_ids"),
        ({"text": "hello"}, "empty_row", "input_ids"),
        ({"input_ids": []}, "no_tokens", "empty"),
        ({"input_ids": np.array([], np.int32)}, "no_tokens", "empty"),
        ({"input_ids": [[1, 2]]}, "malformed_tokens", "list"),
        ({"input_ids": "1 2"}, "malformed_tokens", "str"),
        ({"input_ids": {"input_ids": [1]}}, "malformed_tokens", "dict"),
        ({"input_ids": [1, 2.0]}, "malformed_tokens", "float"),
        ({"input_ids": [1, "2"]}, "malformed_tokens", "str"),
        ({"input_ids": [1, True]}, "malformed_tokens", "bool"),
        ({"input_ids": [1, None]}, "malformed_tokens", "NoneType"),
        ({"input_ids": np.array([True])}, "malformed_tokens", "bool"),
        ({"input_ids": 5}, "malformed_tokens", "int"),
        ({"input_ids": [1, 100]}, "token_out_of_range", "token id 100 at position 1; the model has ids 0 to 99"),
        ({"input_ids": [-1, 2]}, "token_out_of_range", "token id -1 at position 0"),
        ({"input_ids": [1, 2, -100]}, "token_out_of_range", "token id -100 at position 2"),
        ({"input_ids": [1, 2**80]}, "token_out_of_range", f"token id {2**80} at position 1"),
        ({"input_ids": np.array([2**63 + 5], np.uint64)}, "token_out_of_range", f"{2**63 + 5} at position 0"),
        ({"input_ids": np.array([-3], np.int8)}, "token_out_of_range", "-3 at position 0"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "mask_length", "1 values for 2 tokens"),
        ({"input_ids": [1, 2], "loss_mask": []}, "mask_length", "0 values for 2 tokens"),
        ({"input_ids": [1, 2], "labels": [1, 2, 3]}, "mask_length", "3 values for 2 tokens"),
        ({"input_ids": [1, 2], "loss_mask": [0, 2]}, "malformed_mask", "2 at position 1"),
        ({"input_ids": [1, 2], "loss_mask": [0, 2**80]}, "malformed_mask", "64 bits"),
        ({"input_ids": [1, 2], "loss_mask": [0, -100]}, "malformed_mask", "-100 at position 1"),
        ({"input_ids": [1, 2], "loss_mask": [0.0, 1.0]}, "malformed_mask", "float"),
        ({"input_ids": [1, 2], "loss_mask": "01"}, "malformed_mask", "str"),
        ({"input_ids": [1, 2], "loss_mask": {"a": 1, "b": 2}}, "malformed_mask", "dict"),
        ({"input_ids": [1, 2, 3], "labels": [2, 3, -100]}, "malformed_mask", "2 at position 0, where the token is 1"),
        ({"input_ids": [1, 2, 3, 4, 5]}, "over_long", "5 tokens; the limit is 4"),
        ({"id": 1.5, "input_ids": [1]}, "malformed_id", "1.5"),
        ({"id": True, "input_ids": [1]}, "malformed_id", "True"),
        ({"id": ["a"], "input_ids": [1]}, "malformed_id", "a"),
        ({"id": "\ud800", "input_ids": [1]}, "malformed_id", "Unicode"),
        ({"id": "x" * 3000, "input_ids": [1]}, "malformed_id", "3000 bytes"),
        ({"messages": [1]}, "malformed_messages", "chat"),
    ],
)
def test_unusable_row_is_rejected_with_its_reason(row, reason, says):
    """Each way in which a row can be wrong has one reason, and a detail that shows the evidence."""
    rejection = rejected(row)

    assert reason == rejection.reason
    assert says in rejection.detail
    assert ("x:8", 7) == (rejection.source, rejection.source_row)


def test_rejection_keeps_the_id_of_its_row():
    """A rejected sample can be found by its id; a row without a usable one has none."""
    assert "a" == rejected({"id": "a", "input_ids": []}).id
    assert rejected({"id": 1.5, "input_ids": []}).id is None
    assert rejected(None, problem="why").id is None
    assert "why" == rejected(None, problem="why").detail


@pytest.mark.parametrize(
    ("row", "sample_id"),
    [
        ({}, "row-7"),
        ({"id": None}, "row-7"),
        ({"id": 12}, "12"),
        ({"id": ""}, ""),
        ({"conversation_id": "c", "uuid": "u"}, "c"),
        ({"uuid": "u"}, "u"),
        ({"id": "i", "uuid": "u"}, "i"),
        ({"id": 0, "uuid": "u"}, "0"),
    ],
)
def test_id_comes_from_the_row_or_its_number(row, sample_id):
    """A row names itself by id, conversation_id or uuid, or is named by its number."""
    assert sample_id == accepted({"input_ids": [1], **row}).id


@pytest.mark.parametrize(
    ("columns", "mask"),
    [
        ({}, None),
        ({"loss_mask": None, "labels": None}, None),
        ({"loss_mask": [0, 1, 0]}, [0, 1, 0]),
        ({"loss_mask": [False, True, False]}, [0, 1, 0]),
        ({"assistant_masks": [0, 1, 1]}, [0, 1, 1]),
        ({"assistant_mask": np.array([True, False, False])}, [1, 0, 0]),
        ({"loss_mask": np.array([0, 1, 1], np.uint64)}, [0, 1, 1]),
        ({"labels": [-100, 6, 7]}, [0, 1, 1]),
        ({"labels": np.array([-100, 6, -100], np.int8)}, [0, 1, 0]),
        ({"loss_mask": [1, 1, 1], "labels": [-100, 6, 7]}, [1, 1, 1]),
    ],
)
def test_mask_is_kept_unshifted_in_one_form(columns, mask):
    """Every way to write a mask gives 0 and 1 at the places where the input has them."""
    sample = accepted({"input_ids": [5, 6, 7], **columns})

    assert mask == (sample.mask if sample.mask is None else sample.mask.tolist())
    assert sample.mask is None or sample.mask.dtype == np.uint8


@pytest.mark.parametrize("tokens", [[0, 99], np.array([0, 99], np.uint8), np.array([0, 99], np.int64)])
def test_tokens_pass_unchanged(tokens):
    """Token ids are stored as given, as int32, nothing added before or after."""
    sample = accepted({"input_ids": tokens})

    assert [0, 99] == sample.tokens.tolist()
    assert np.int32 == sample.tokens.dtype


def test_truncation_cuts_mask_with_tokens_and_says_so():
    """A sample that is cut is cut everywhere, and only such a sample is flagged."""
    limits = Limits(vocabulary_rows=100, max_length=3, over_long="truncate")

    cut = accepted({"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]}, limits=limits)
    whole = accepted({"input_ids": [1, 2, 3]}, limits=limits)

    assert ([1, 2, 3], [0, 0, 1], True) == (cut.tokens.tolist(), cut.mask.tolist(), cut.is_truncated)
    assert ([1, 2, 3], False) == (whole.tokens.tolist(), whole.is_truncated)
