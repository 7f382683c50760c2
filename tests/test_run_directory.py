"""The run directory: its plan, its ledgers, its lock."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from hiddenstream.contracts.errors import HiddenstreamError, RunDirectoryError
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.paths import RunPaths, producer_lock
from hiddenstream.run_directory.plan import Plan, encode_sample, plan_id_of
from tests.contracts.golden import COMMIT, COMMIT_BYTES
from tests.contracts.strategies import damaged
from tests.factories import a_run, a_shard
from tests.run_helpers import append_line, line_of, with_column


@pytest.fixture
def paths(tmp_path):
    return a_run(tmp_path / "run", ((3, 1), (2,), (5, 4)))


def test_a_plan_comes_back_as_it_was_written(paths):
    """Every shard's ids, counts, tokens and masks are those of the table and of tokens.bin."""
    tokens = np.random.default_rng(0)
    plan = Plan(paths)

    for shard, lengths in enumerate(((3, 1), (2,), (5, 4))):
        drawn = [(tokens.integers(0, 100, length), tokens.integers(0, 2, length)) for length in lengths]
        samples = plan.samples_of(shard)

        assert plan.token_counts_of(shard).tolist() == list(lengths)
        np.testing.assert_array_equal(np.concatenate([ids for ids, _ in drawn]), samples.tokens)
        np.testing.assert_array_equal(np.concatenate([mask for _, mask in drawn]), samples.masks)
    assert plan.places == {"s0": (0, 0), "s1": (0, 1), "s2": (1, 0), "s3": (2, 0), "s4": (2, 1)}
    assert plan_id_of(plan.digests()) == paths.read_record().identity.plan_id


def test_rows_may_lie_in_any_order(paths):
    """Shard and place decide the order, not the order of the input."""
    with_column(paths, "place", [1, 0, 0, 1, 0])

    assert [Plan(paths).ids_of(shard) for shard in range(3)] == [("s1", "s0"), ("s2",), ("s4", "s3")]


@pytest.mark.parametrize(
    ("tokens", "mask", "record"),
    [
        ([1], None, "01000000"),
        ([1, -2], [1, 0], "01000000feffffff01000000"),
        ([1], [1], "0100000001000000"),
    ],
)
def test_a_sample_has_these_bytes_in_tokens_bin(tokens, mask, record):
    """Tokens, then the mask, then zeros to a multiple of four."""
    mask_array = None if mask is None else np.array(mask, np.uint8)

    assert encode_sample(np.array(tokens, np.int32), mask_array).hex() == record


def test_a_shard_outside_the_plan_is_an_index_error(paths):
    """The error says which shards there are."""
    for shard in (-1, 3):
        with pytest.raises(IndexError, match="0 to 2"):
            Plan(paths).rows_of(shard)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("shard", [0, 0, 1, 2, 2**31 - 1]),
        ("shard", [0, 0, 1, 2, None]),
        ("place", [0, 0, 0, 0, 1]),
        ("place", [0, 2, 0, 0, 1]),
        ("tokens", [3, 1, 2, 5, 0]),
        ("tokens", [3, 1, 2, 5, 2**31 - 1]),
        ("offset", [0, 16, 24, 36, -4]),
        ("offset", [0, 16, 24, 36, 2**63 - 1]),
        ("id", ["s0", "s1", "s2", "s3", None]),
    ],
)
def test_a_table_that_plans_the_impossible_is_refused(paths, column, values):
    """Whatever a damaged table says, the plan is refused by one of our errors, and no memory is spent on it."""
    with_column(paths, column, values, keep_plan_id=True)

    with pytest.raises(HiddenstreamError):
        list(Plan(paths).digests())


def test_another_table_is_no_plan(paths):
    """Parquet with other columns is refused by name."""
    pq.write_table(pa.table({"id": ["a"]}), paths.samples)

    with pytest.raises(RunDirectoryError, match="columns"):
        Plan(paths)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged(b"PAR1" + bytes(range(60)) + b"PAR1"))
def test_bytes_that_are_no_table_are_refused(paths, content):
    """Whatever samples.parquet holds, no other error."""
    paths.samples.write_bytes(content)

    with pytest.raises(RunDirectoryError, match="plan"):
        Plan(paths)


def test_a_damaged_table_is_refused_or_read(paths):
    """A byte changed anywhere in samples.parquet ends in a plan or one of our errors."""
    whole = paths.samples.read_bytes()
    for offset in range(0, len(whole), 11):
        paths.samples.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x55]) + whole[offset + 1 :])

        try:
            assert len(list(Plan(paths).digests())) <= 5
        except HiddenstreamError:
            continue


def test_a_torn_last_line_is_read_once_it_is_whole(tmp_path):
    """A line that is being written is no problem and no commit; when its rest comes, it is one."""
    paths = RunPaths(tmp_path)
    reader = LedgerReader(paths.ledger)
    append_line(paths, COMMIT_BYTES[:100])
    while_torn = reader.poll()

    append_line(paths, COMMIT_BYTES[100:])

    assert (while_torn, reader.poll(), reader.poll(), reader.problems) == ([], [COMMIT], [], [])


def test_ledgers_of_several_sinks_are_one(paths):
    """Each sink appends to its own file; the first line of a shard is news, a repeated one is not."""
    lines = [line_of(a_shard(paths, shard)) for shard in range(3)]
    reader = LedgerReader(paths.ledger)
    append_line(paths, lines[1].to_line(), sink="b")
    append_line(paths, lines[0].to_line(), sink="a")
    first = reader.poll()

    append_line(paths, lines[1].to_line(), sink="a")
    append_line(paths, lines[2].to_line(), sink="c")

    assert (first, reader.poll()) == ([lines[0], lines[1]], [lines[2]])
    assert set(reader.commits) == {0, 1, 2}


def test_the_newest_line_of_a_shard_counts(paths):
    """A shard that was lost and made again is what its newest line says, in whichever ledger that is."""
    old = line_of(a_shard(paths, 0, delivery="a1"), time="2026-01-01T00:00:00.000Z")
    new = line_of(a_shard(paths, 0, delivery="a2"), time="2026-01-01T00:00:00.001Z")

    for number, order in enumerate(((old, new), (new, old))):
        folder = RunPaths(paths.root / f"case{number}")
        append_line(folder, b"".join(line.to_line() for line in order))
        reader = LedgerReader(folder.ledger)
        reader.poll()

        assert reader.commits == {0: new}


def test_a_bad_line_costs_itself_only(tmp_path):
    """The lines around it are read, and it is named by file and line, once."""
    paths = RunPaths(tmp_path)
    append_line(paths, b"half a li\n" + COMMIT_BYTES)
    reader = LedgerReader(paths.ledger)

    reader.poll()
    reader.poll()

    assert list(reader.commits) == [3]
    assert [(problem.file, problem.line) for problem in reader.problems] == [("sink.jsonl", 1)]


def test_a_run_without_a_ledger_has_no_commits(tmp_path):
    """The folder may not be there yet."""
    assert LedgerReader(tmp_path / "ledger").poll() == []


def test_a_second_producer_is_refused_and_a_dead_one_is_not_missed(tmp_path):
    """The lock is the kernel's: it keeps another process out, and ends with its holder, however that dies."""
    paths = RunPaths(tmp_path)
    script = (
        "import sys, pathlib\n"
        "from hiddenstream.run_directory.paths import RunPaths, producer_lock\n"
        f"with producer_lock(RunPaths(pathlib.Path({str(tmp_path)!r}))):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"

    with pytest.raises(RunDirectoryError, match="has a producer already"), producer_lock(paths):
        pass
    holder.kill()
    holder.communicate()

    with producer_lock(paths):
        assert (tmp_path / "producer.lock").exists()


def test_shards_lie_a_thousand_to_a_folder(tmp_path):
    """Folders stay small however many shards a run has."""
    shards = RunPaths(tmp_path).shards

    names = [str(RunPaths(tmp_path).shard(number).relative_to(shards)) for number in (0, 999, 1000, 1234567)]

    assert names == [
        "000/000000.safetensors",
        "000/000999.safetensors",
        "001/001000.safetensors",
        "1234/1234567.safetensors",
    ]
