"""Making a plan: from input files to a run directory."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter, namedtuple
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hiddenstream.contracts.batches import cut_batches
from hiddenstream.contracts.errors import DiskTooSmall, RunDirectoryError, UsageError
from hiddenstream.model_reference import resolve_model
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import Plan, plan_id_of
from producer.plan import make_plan
from producer.rejections import REJECTION_REASONS, ConflictingIds, NothingPlanned, StrictRejection

GOOD = {"id": "good", "input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}
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


def table_of(paths: RunPaths) -> list[dict]:
    return pq.read_table(paths.samples).to_pylist()


def samples_of(paths: RunPaths) -> dict[str, tuple[list[int], list[int]]]:
    """Return tokens and mask of every planned id, read as a worker would get them."""
    plan, found = Plan(paths), {}
    for shard in range(plan.shards):
        packed = plan.samples_of(shard)
        for i, sample_id in enumerate(packed.ids):
            one = packed.take([i])
            assert sample_id not in found
            found[sample_id] = (one.tokens.tolist(), one.masks.tolist())
    return found


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


def test_record_and_plan_agree(plan_of):
    """Counts, identity and plan id of run.json are those of the files beside it."""
    rows = [{"id": f"s{i}", "input_ids": [*range(1 + i % 30)], "loss_mask": [1] * (1 + i % 30)} for i in range(200)]
    rows[3].pop("loss_mask")

    paths, record = plan_of(rows)

    assert record == paths.read_record()
    assert plan_id_of(Plan(paths).digests()) == record.identity.plan_id
    assert (200, 1, 0, 0) == (record.samples, record.without_mask, record.truncated, record.merged)
    assert sum(len(row["input_ids"]) for row in rows) == record.tokens
    assert {row["id"]: (row["input_ids"], row.get("loss_mask", [])) for row in rows} == samples_of(paths)
    plan = Plan(paths)
    slots = 0
    for shard in range(plan.shards):
        lengths = plan.token_counts_of(shard).tolist()
        for batch in cut_batches(lengths, max_token_slots=64):
            slots += len(batch) * max(lengths[place] for place in batch)
    assert (plan.shards, slots) == (record.shards, record.token_slots)


def test_planning_twice_gives_the_same_plan(request_of, tmp_path):
    """A plan depends on its input and settings only."""
    rows = [{"id": str(i), "input_ids": [i % 100] * (1 + i % 40)} for i in range(300)]

    once = make_plan(request_of(rows, run_directory=tmp_path / "one"))
    again = make_plan(request_of(rows, run_directory=tmp_path / "two"))

    assert once.identity == again.identity


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
    from hiddenstream.model_reference import ModelReference

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


def test_conversations_are_planned_with_their_masks(plan_of, model_folder):
    """Rows with messages become samples like any other, a bad one a rejection."""
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]

    paths, record = plan_of(
        [{"id": "chat", "messages": talk}, {"id": "bad", "messages": [*talk[:1], {}]}, GOOD],
        model=resolve_model(str(model_folder)),
    )

    tokens, mask = samples_of(paths)["chat"]
    assert len(tokens) == len(mask)
    assert 4 == sum(mask)  # h, o, the end marker, the line break
    assert {"malformed_messages": 1} == record.rejected


def test_conversations_without_a_tokenizer_stop_planning(plan_of):
    """What no row can be done without is an error, not a thousand rejections."""
    with pytest.raises(UsageError, match="tokenizer"):
        plan_of([GOOD, {"messages": [{"role": "user", "content": "hi"}]}])


def test_leftovers_of_a_crash_are_replaced(request_of, plan_of):
    """A plan without run.json is no plan; the next attempt begins afresh."""
    leftover = RunPaths(request_of().run_directory)
    leftover.plan.mkdir(parents=True)
    leftover.tokens.write_bytes(b"half a token file" * 100)
    leftover.samples.write_bytes(b"PAR1")
    (leftover.plan / "foreign").write_text("")
    (leftover.root / "run.json.new").write_text("{")

    paths, record = plan_of([GOOD])

    assert {"tokens.bin", "samples.parquet"} == set(os.listdir(paths.plan))
    assert {"plan", "run.json"} == set(os.listdir(paths.root))
    assert 1 == record.samples


def test_planned_directory_is_never_planned_again(plan_of):
    """A second plan over the first would orphan its shards."""
    paths, _ = plan_of([GOOD])
    before = paths.run_json.read_bytes()

    with pytest.raises(RunDirectoryError, match="planned already"):
        plan_of([{**GOOD, "id": "other"}])
    assert before == paths.run_json.read_bytes()


def test_run_json_is_written_last(request_of, monkeypatch):
    """When run.json gets its name, everything that it describes is whole and readable."""
    request = request_of([GOOD])
    paths, seen = RunPaths(request.run_directory), []
    replace = os.replace

    def watch(old, new):
        seen.append((Path(new).name, samples_of(paths), paths.is_planned()))
        replace(old, new)

    monkeypatch.setattr(os, "replace", watch)
    make_plan(request)

    assert [("run.json", {"good": ([1, 2, 3], [0, 1, 1])}, False)] == seen


def test_disk_too_small_is_said_before_anything_is_final(plan_of, tmp_path, monkeypatch):
    """States that would not fit are refused with both sizes, and no plan is left behind."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000, 900, 100))

    with pytest.raises(DiskTooSmall) as caught:
        plan_of([GOOD])

    assert (3 * (2 * 16 * 4 + 5), 100) == (caught.value.needed_bytes, caught.value.free_bytes)
    assert not RunPaths(tmp_path / "run").plan.exists()


def test_input_without_a_usable_row_is_an_error(plan_of):
    """A run of nothing is refused, with what became of the rows."""
    with pytest.raises(NothingPlanned, match="2 no_tokens, 1 over_long"):
        plan_of([BAD_ROWS["no_tokens"], BAD_ROWS["over_long"], BAD_ROWS["no_tokens"]])


def test_empty_file_is_an_error(plan_of):
    """No rows at all are said to be that."""
    with pytest.raises(NothingPlanned, match="no rows at all"):
        plan_of([])


def test_same_rows_in_any_format_give_the_same_plan(request_of, tmp_path):
    """JSON Lines, Parquet and a saved dataset of the same rows have one plan id."""
    import datasets
    import pyarrow as pa

    rows = [{"id": str(i), "input_ids": [i] * (1 + i % 9), "loss_mask": [i % 2] * (1 + i % 9)} for i in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")

    ids = {make_plan(request_of(rows)).identity.plan_id}
    for name in ("x.parquet", "saved"):
        request = request_of((), data=(tmp_path / name,), run_directory=tmp_path / f"run-{name}")
        ids.add(make_plan(request).identity.plan_id)

    assert 1 == len(ids)


def test_several_files_are_one_input(request_of, tmp_path):
    """Rows are numbered over all files; each keeps its own file's name and line."""
    (tmp_path / "more.jsonl").write_text(json.dumps({"input_ids": [4]}) + "\n")
    request = request_of([{"input_ids": [3]}])

    record = make_plan(request_of([{"input_ids": [3]}], data=(*request.data, tmp_path / "more.jsonl")))

    rows = table_of(RunPaths(request.run_directory))
    assert ["row-0", "row-1"] == [row["id"] for row in rows]
    assert f"{tmp_path / 'more.jsonl'}:1" == rows[1]["source"]
    assert 2 == len(record.sources)


def test_equal_lengths_keep_their_own_tokens(plan_of):
    """Samples of one length are never exchanged when they are sorted and cut into shards."""
    generator = np.random.default_rng(1)
    rows = [{"id": f"s{i}", "input_ids": generator.integers(0, 300, 7).tolist()} for i in generator.permutation(500)]

    paths, _ = plan_of(rows)

    assert {row["id"]: (row["input_ids"], []) for row in rows} == samples_of(paths)
    assert len(Counter(row["shard"] for row in table_of(paths))) > 10
