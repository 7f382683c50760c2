"""Reading input files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hiddenstream.contracts.errors import UsageError
from hiddenstream.model_reference import file_digest
from producer.dataset import describe_sources, read_rows

ROWS = [{"id": "a", "input_ids": [1, 2]}, {"id": "b", "input_ids": [3]}]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def rows_in(*paths: Path) -> list[Any]:
    return [raw.row and {name: plain(value) for name, value in raw.row.items()} for raw in read_rows(paths)]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_a_file_without_a_suffix_is_told_by_its_beginning(tmp_path, kind):
    """A container sees the file under a name of its own."""
    file = tmp_path / "input"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), file)
    else:
        file.write_bytes(gzip.compress(LINES) if kind.endswith("gz") else LINES)

    assert ROWS == rows_in(file)


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.ndjson", "x.JSONL.jsonl"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(LINES, id="plain"),
        pytest.param(b"\xef\xbb\xbf" + LINES, id="byte order mark"),
        pytest.param(LINES.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(b"\n\n" + LINES.replace(b"\n", b"\n \r\n\n"), id="blank lines"),
        pytest.param(LINES.rstrip(), id="no newline at the end"),
    ],
)
@pytest.mark.parametrize("is_gzipped", [False, True])
def test_json_lines_are_read_whatever_their_dress(tmp_path, name, content, is_gzipped):
    """Byte order mark, line ends, blank lines and gzip make no difference."""
    file = tmp_path / (name + ".gz" * is_gzipped)
    file.write_bytes(gzip.compress(content) if is_gzipped else content)

    assert ROWS == rows_in(file)


@pytest.mark.parametrize(
    "bad",
    [
        b'{"id": "c", "inp',
        b"[1, 2]",
        b'"text"',
        b"null",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"input_ids": [' + b"9" * 5000,
    ],
    ids=["broken", "list", "text", "null", "no UTF-8", "deep", "huge number"],
)
def test_bad_line_is_reported_with_its_number_and_the_next_goes_on(tmp_path, bad):
    """A line that is no JSON object costs itself only."""
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"\n" + LINES.replace(b"\n", b"\n" + bad + b"\n", 1))

    first, problem, last = read_rows([file])

    assert (f"{file}:2", None) == (first.source, first.problem)
    assert (f"{file}:3", None) == (problem.source, problem.row)
    assert f"{file}:3" in problem.problem
    assert ROWS[1] == last.row


def test_broken_last_line_is_reported(tmp_path):
    """A file that was cut off loses its last line only, visibly."""
    file = tmp_path / "x.jsonl"
    file.write_bytes(LINES[:-5])

    first, last = read_rows([file])

    assert ROWS[0] == first.row
    assert f"{file}:2" in last.problem


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint16())], ids=str)
def test_parquet_lists_of_any_kind_are_read_with_their_nulls(tmp_path, kind):
    """Small and large lists give the same rows; a null is None, also inside a list."""
    table = pa.table({"input_ids": pa.array([[1, 2], None, [], [3, None]], kind), "other": [1.5, 2, 3, 4]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)

    assert [[1, 2], None, [], [3, None]] == [row["input_ids"] for row in rows_in(tmp_path / "x.parquet")]
    assert f"{tmp_path / 'x.parquet'} row 4" == list(read_rows([tmp_path / "x.parquet"]))[3].source


def test_parquet_slices_keep_their_rows_apart(tmp_path):
    """Every row of a file of many batches has its own tokens and mask."""
    rows = [{"id": i, "input_ids": [i] * (i % 5), "loss_mask": [i % 2 == 0] * (i % 5)} for i in range(3000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")

    assert rows == rows_in(tmp_path / "x.parquet")


def test_parquet_without_a_known_column_still_counts_its_rows(tmp_path):
    """Rows that mean nothing are rows all the same, to be rejected one by one."""
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "x.parquet")

    assert [{"text": "a"}, {"text": "b"}] == rows_in(tmp_path / "x.parquet")


def test_saved_dataset_is_read_in_its_own_order(tmp_path):
    """A directory of datasets' save_to_disk, of several files and with null rows, is read as datasets reads it."""
    rows = [{"id": str(i), "input_ids": [i, i + 1], "extra": i} for i in range(25)] + [{"id": None, "input_ids": None}]
    dataset = datasets.Dataset.from_list(rows)
    dataset.select(range(25, -1, -1)).save_to_disk(tmp_path / "saved", num_shards=3)

    read = rows_in(tmp_path / "saved")

    assert [{"id": row["id"], "input_ids": row["input_ids"]} for row in reversed(rows)] == read


def test_saved_conversations_are_read(tmp_path):
    """Nested columns come back as lists of objects."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    datasets.Dataset.from_list([{"messages": messages}]).save_to_disk(tmp_path / "saved")

    assert [{"messages": messages}] == rows_in(tmp_path / "saved")


def test_several_splits_are_refused_by_name(tmp_path):
    """Which split is meant must be said."""
    split = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=split, test=split).save_to_disk(tmp_path / "saved")

    with pytest.raises(UsageError, match=rf"{tmp_path}/saved/train, .*saved/test"):
        rows_in(tmp_path / "saved")


def test_folder_is_read_in_sorted_order(tmp_path):
    """A folder is its data files, by name; hidden files and notes are none."""
    pq.write_table(pa.Table.from_pylist(ROWS[1:]), tmp_path / "b.parquet")
    (tmp_path / "a.jsonl").write_bytes(LINES[: LINES.index(b"\n")])
    (tmp_path / "README.md").write_text("notes")
    (tmp_path / ".hidden").write_text("notes")

    assert ROWS == rows_in(tmp_path)


def test_unused_column_order_and_presence_do_not_matter(tmp_path):
    """Files whose columns come in another order, or only in some, are read row by row."""
    pq.write_table(pa.table({"id": ["a"], "input_ids": [[1]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"loss_mask": [[1]], "input_ids": [[2]], "id": ["b"]}), tmp_path / "b.parquet")

    first, second = rows_in(tmp_path)

    assert {"id": "a", "input_ids": [1]} == first
    assert {"id": "b", "input_ids": [2], "loss_mask": [1]} == second


def unreadable(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.csv", b"a,b", "unknown kind"),
        ("input", b"a,b", "unknown kind"),
        ("input", b"", "unknown kind"),
        ("x.parquet", b"PAR1 not really", "x.parquet"),
        ("x.parquet", b"", "x.parquet"),
        ("x.jsonl.gz", gzip.compress(LINES * 100, mtime=0)[:-20], "damaged gzip"),  # the same in every process
        ("x.jsonl.gz", b"plain text", "damaged gzip|gzipped"),
        ("x.json", b"[\n{}\n]", "one JSON array"),
    ],
)
def test_file_that_cannot_be_read_stops_planning(tmp_path, name, content, says):
    """Rows nobody can count are no reason to go on."""
    file = unreadable(tmp_path, name, content)

    with pytest.raises(UsageError, match=says) as caught:
        rows_in(file)
    assert str(file) in str(caught.value)


def test_absent_file_and_foreign_folder_are_refused(tmp_path):
    """A path is named in the error, with what is accepted."""
    (tmp_path / "data.csv").write_text("a")
    (tmp_path / "empty").mkdir()

    with pytest.raises(UsageError, match="no such file"):
        rows_in(tmp_path / "absent.jsonl")
    with pytest.raises(UsageError, match=r"data\.csv.*JSON Lines"):
        rows_in(tmp_path)
    with pytest.raises(UsageError, match=r"no data files.*JSON Lines"):
        rows_in(tmp_path / "empty")
    with pytest.raises(UsageError, match="names no file"):
        rows_in()


def test_damaged_saved_dataset_is_refused(tmp_path):
    """A saved dataset whose files are cut or gone is named."""
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    arrow = next((tmp_path / "saved").glob("*.arrow"))

    arrow.write_bytes(arrow.read_bytes()[:40])
    with pytest.raises(UsageError, match=arrow.name):
        rows_in(tmp_path / "saved")
    arrow.unlink()
    with pytest.raises(UsageError, match=arrow.name):
        rows_in(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text("{}")
    with pytest.raises(UsageError, match="saved cannot be read"):
        rows_in(tmp_path / "saved")


def test_sources_are_named_by_size_and_content(tmp_path):
    """Every file is described in the order in which it is read."""
    (tmp_path / "b.jsonl").write_bytes(LINES)
    (tmp_path / "a.jsonl").write_bytes(b"")

    first, second = describe_sources([tmp_path])

    assert (str(tmp_path / "a.jsonl"), 0) == (first.name, first.size_bytes)
    assert (len(LINES), file_digest(tmp_path / "b.jsonl")) == (second.size_bytes, second.xxh3)


def test_file_name_that_is_no_text_can_be_described(tmp_path):
    """A name of arbitrary bytes is shown with escapes rather than failing the plan."""
    file = Path(str(tmp_path) + "/\udcff.jsonl")
    file.write_bytes(LINES)

    first, _ = read_rows([file])

    assert first.source.encode()
    assert describe_sources([file])[0].name.encode()


def test_value_that_is_no_text_rejects_its_row_alone(tmp_path):
    """An id that is not UTF-8 makes its row unreadable; the rows around it are read."""
    ids = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": ids, "input_ids": [[1], [2], [3]]}), tmp_path / "x.parquet")

    rows = list(read_rows([tmp_path / "x.parquet"]))

    assert ["a", None, "c"] == [row.row and row.row["id"] for row in rows]
    assert "UnicodeDecodeError" in str(rows[1].problem)


def test_column_that_is_there_twice_is_refused(tmp_path):
    """Which of two columns of one name is meant cannot be known."""
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array([[1]]), pa.array([[2]])], ["id", "input_ids", "input_ids"])
    pq.write_table(table, tmp_path / "x.parquet")

    with pytest.raises(UsageError, match="'input_ids' twice"):
        list(read_rows([tmp_path / "x.parquet"]))
