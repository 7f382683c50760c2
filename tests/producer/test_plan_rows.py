"""What becomes of each row of the input when a plan is made."""

from __future__ import annotations

import os

import pytest

from hiddenstream.model_reference import ModelReference
from hiddenstream.run_directory.paths import RunPaths
from producer.plan import make_plan
from producer.rejections import REJECTION_REASONS, ConflictingIds, NothingPlanned, StrictRejection
from tests.producer.planned import GOOD, samples_of, table_of

BAD_ROWS = {
    "empty_row": {"text": "hello"},
    "malformed_id": {"id": 1.5, "input_ids": [1]},
    "malformed_tokens": {"input_ids": [[1, 2]]},
    "no_tokens": {"input_ids": []},
    "token_out_of_range": {"input_ids": [300]},
    "malformed_mask": {"input_ids": [1], "loss_mask": [7]},
    "mask_length": {"input_ids": [1], "loss_mask": [1, 1]},
    "malformed_messages": {"messages": "hello"},
    "over_long": {"input_ids": [1] * 65},
}


def test_bad_rows_name_every_reason():
    """The list of bad rows below leaves only unreadable lines out, which no JSON value can be."""
    assert {*BAD_ROWS, "unreadable_line"} == REJECTION_REASONS


def test_each_bad_row_is_counted_by_reason_and_the_run_goes_on(request_of):
    """One row of every bad kind among good ones costs exactly itself."""
    rows = [GOOD, *BAD_ROWS.values(), {**GOOD, "id": "last"}]
    request = request_of(rows)
    with open(request.data[0], "a") as data:
        data.write('{"id": "torn", "input_i')

    record = make_plan(request)

    assert dict.fromkeys(REJECTION_REASONS, 1) == record.rejected
    assert 2 == record.samples
    assert 12 == record.input_rows
    table = table_of(RunPaths(request.run_directory))
    assert ["planned", *["rejected"] * 9, "planned", "rejected"] == [row["status"] for row in table]
    assert [*BAD_ROWS, "unreadable_line"] == [row["reason"] for row in table if row["status"] == "rejected"]
    assert [f"{request.data[0]}:{i + 1}" for i in range(12)] == [row["source"] for row in table]
    assert [*range(12)] == [row["source_row"] for row in table]
    assert {"good", "last"} == set(samples_of(RunPaths(request.run_directory)))


@pytest.mark.parametrize("reason", sorted(BAD_ROWS))
def test_strict_stops_at_the_first_bad_row(plan_of, tmp_path, reason):
    """With --strict any bad row ends planning, is named, and leaves no plan."""
    with pytest.raises(StrictRejection, match=rf"data\.jsonl:2 is rejected \({reason}\)"):
        plan_of([GOOD, BAD_ROWS[reason]], is_strict=True)
    assert not RunPaths(tmp_path / "run").is_planned()


def test_strict_stops_at_an_unreadable_line(request_of):
    """A torn line is a bad row too."""
    request = request_of([GOOD], is_strict=True)
    request.data[0].write_text("{")

    with pytest.raises(StrictRejection, match=r"data\.jsonl:1 is rejected \(unreadable_line\)"):
        make_plan(request)


def test_equal_rows_are_merged_and_counted(plan_of):
    """A repeated id with the same tokens and mask is one sample; the table names the row it repeats."""
    paths, record = plan_of([GOOD, {"id": "x", "input_ids": [9]}, GOOD, GOOD])

    assert (2, 2, 4) == (record.samples, record.merged, record.input_rows)
    merged = table_of(paths)[2]
    assert ("good", "merged", -1) == (merged["id"], merged["status"], merged["shard"])
    assert merged["detail"].endswith("data.jsonl:1")


@pytest.mark.parametrize(
    "other",
    [
        {"input_ids": [1, 2, 4], "loss_mask": [0, 1, 1]},
        {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 0]},
        {"input_ids": [1, 2, 3]},
        {"input_ids": [1, 2], "loss_mask": [0, 1]},
        {"input_ids": [1, 2, 3, 0x010100]},
    ],
)
def test_conflicting_rows_stop_planning(plan_of, other):
    """A repeated id with other tokens or another mask is never resolved in silence."""
    with pytest.raises(ConflictingIds, match=r"'good'.*data\.jsonl:1.*data\.jsonl:3") as caught:
        plan_of([GOOD, {"id": "x", "input_ids": [9]}, {"id": "good", **other}], model=wide_model())
    assert 2 == caught.value.exit_code


def wide_model():
    """A model with a vocabulary so large that a token's bytes may look like a mask."""
    return ModelReference(
        name="m",
        revision=None,
        digest="xxh3:0",
        num_blocks=6,
        hidden_size=16,
        vocabulary_rows=2**24,
        max_positions=None,
    )


UNSAFE_IDS = [
    "../../x",
    "/abs",
    "a/b",
    "",
    ".",
    "x" * 300,
    "a\0b",
    "a\nb",
    "Case",
    "case",
    "日本語",
    "\u00e9",
    "e\u0301",
    "x.safetensors",
    "🏁",
]


def test_unsafe_ids_survive_byte_for_byte(plan_of, tmp_path):
    """Ids are values, never paths: nothing is written outside the run directory, and no two ids become one."""
    paths, record = plan_of([{"id": name, "input_ids": [i]} for i, name in enumerate(UNSAFE_IDS)])

    assert len(UNSAFE_IDS) == record.samples
    assert {name: ([i], []) for i, name in enumerate(UNSAFE_IDS)} == samples_of(paths)
    assert {"data.jsonl", "run"} == set(os.listdir(tmp_path))


def test_lengths_at_the_limits(plan_of):
    """One token and exactly the budget are planned; one more than the budget is rejected with both numbers."""
    paths, record = plan_of([{"id": str(n), "input_ids": [5] * n} for n in (0, 1, 63, 64, 65)])

    assert {"1", "63", "64"} == set(samples_of(paths))
    assert {"no_tokens": 1, "over_long": 1} == record.rejected
    assert "65 tokens; the limit is 64" == table_of(paths)[-1]["detail"]


def test_truncation_is_counted_and_flagged(plan_of):
    """Over-long samples are cut, tokens and mask alike, and the table says which."""
    rows = [{"id": str(n), "input_ids": [*range(n)], "loss_mask": [1] * n} for n in (8, 9, 10)]

    paths, record = plan_of(rows, max_length=9, over_long="truncate")

    assert (1, 0) == (record.truncated, sum(record.rejected.values()))
    assert [False, False, True] == [row["is_truncated"] for row in table_of(paths)]
    assert ([*range(9)], [1] * 9) == samples_of(paths)["10"]


@pytest.mark.parametrize(
    ("max_length", "token_budget", "longest"), [(None, 64, 64), (10, 64, 10), (None, 10_000, 512), (9000, 9000, 512)]
)
def test_smallest_limit_counts(plan_of, max_length, token_budget, longest):
    """A sample may be no longer than the setting, the model's positions and the token budget."""
    _, record = plan_of([GOOD], max_length=max_length, token_budget=token_budget)

    assert longest == record.settings.max_length


def test_input_without_a_usable_row_is_an_error(plan_of):
    """A run of nothing is refused, with what became of the rows."""
    with pytest.raises(NothingPlanned, match="2 no_tokens, 1 over_long"):
        plan_of([BAD_ROWS["no_tokens"], BAD_ROWS["over_long"], BAD_ROWS["no_tokens"]])


def test_empty_file_is_an_error(plan_of):
    """No rows at all are said to be that."""
    with pytest.raises(NothingPlanned, match="no rows at all"):
        plan_of([])
