"""Reading refuses whatever is not the run that the plan and the ledger describe."""

from __future__ import annotations

import os

import pytest

import hiddenstream
from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.errors import RunDirectoryError
from tests.factories import a_run, a_shard, store_shard
from tests.run_helpers import commit_shard, with_record

BAD = Quarantined(id="s1", reason="non_finite", detail="NaN in block.2")


@pytest.fixture
def paths(tmp_path):
    return a_run(tmp_path / "run", ((3, 1, 2), (2,), (5, 4)))


def _cut(data: bytes) -> bytes:
    return data[:-1]


def _flip_header(data: bytes) -> bytes:
    return data.replace(b'"delivery":"a1"', b'"delivery":"a2"')


def _empty(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [_cut, _flip_header, _empty])
def test_a_shard_that_is_not_the_committed_one_is_refused(paths, damage):
    """A truncated or altered file gives an error that names the shard, never a sample."""
    store_shard(paths, 0)
    store_shard(paths, 1)
    file = paths.shard(0)
    file.write_bytes(damage(file.read_bytes()))
    run = hiddenstream.open(paths.root)

    with pytest.raises(RunDirectoryError, match=r"shard 0 .*hiddenstream verify"):
        run["s0"]
    assert run["s3"].id == "s3"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", "other"),
        ("fingerprint", "0" * 16),
        ("plan_id", "0"),
        ("taps", ("block.0", "block.2")),
        ("sample_ids", ("s0", "s2", "s1")),
        ("format_version", 2),
        ("quarantined", (BAD,)),
    ],
)
def test_a_committed_header_that_does_not_fit_the_plan_is_refused(paths, field, value):
    """Even what the ledger vouches for is held against the plan; the error names shard and field."""
    commit_shard(paths, a_shard(paths, 0, **{field: value}), quarantined=())

    with pytest.raises(RunDirectoryError, match="shard 0 "):
        hiddenstream.open(paths.root)[0]


def test_another_shards_file_under_a_shards_name_is_refused(paths):
    """The number in the header must be the number in the name, even where the ledger agrees with the file."""
    commit_shard(paths, a_shard(paths, 1), shard=0)

    with pytest.raises(RunDirectoryError, match=r"shard 0 .*shard is 1, not 0"):
        hiddenstream.open(paths.root)[0]


def test_a_missing_file_is_named(paths):
    """A committed shard whose file is gone is damage, not an absent sample."""
    store_shard(paths, 0)
    paths.shard(0).unlink()

    with pytest.raises(RunDirectoryError, match="shard 0 "):
        hiddenstream.open(paths.root)["s0"]


def test_a_replaced_shard_is_read_by_its_newest_line(paths):
    """A shard that was lost and made again under another delivery is readable."""
    commit_shard(paths, a_shard(paths, 0, delivery="a1"), time="2026-01-01T00:00:00.000Z")
    commit_shard(paths, a_shard(paths, 0, delivery="a2"), time="2026-01-02T00:00:00.000Z", sink="another")

    assert hiddenstream.open(paths.root)["s0"].id == "s0"


@pytest.mark.parametrize("kind", ["absent", "empty folder", "a file", "unplanned ledger", "other plan"])
def test_what_is_no_run_is_refused(tmp_path, paths, kind):
    """Anything that is no run directory ends in one error that names it."""
    if kind == "empty folder":
        (tmp_path / "x").mkdir()
    elif kind == "a file":
        (tmp_path / "x").write_text("{}")
    elif kind == "unplanned ledger":
        store_shard(a_run(tmp_path / "y", ((1,),) * 9), 8)
        os.rename(tmp_path / "y" / "ledger", paths.ledger)
        os.rename(paths.root, tmp_path / "x")
    elif kind == "other plan":
        with_record(paths, shards=9)
        os.rename(paths.root, tmp_path / "x")

    with pytest.raises(RunDirectoryError, match=r"x|shard 8"):
        hiddenstream.open(tmp_path / "x")
