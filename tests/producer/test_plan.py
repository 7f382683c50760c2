"""Making a plan: from input files to a run directory."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter, namedtuple
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hiddenstream.contracts.batches import cut_batches
from hiddenstream.contracts.errors import DiskTooSmall, RunDirectoryError, UsageError
from hiddenstream.model_reference import resolve_model
from hiddenstream.run_directory.paths import RunPaths
from hiddenstream.run_directory.plan import Plan, plan_id_of
from producer.plan import make_plan
from tests.producer.planned import GOOD, samples_of, table_of


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


def test_same_rows_in_any_format_give_the_same_plan(request_of, tmp_path):
    """JSON Lines, Parquet and a saved dataset of the same rows have one plan id."""
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
