"""Verifying: every kind of damage is found, and named by shard and sample."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hiddenstream.contracts.shard import header_length
from hiddenstream.run_directory.plan import Plan
from hiddenstream.verify.verify import verify_run
from tests.factories import a_run, a_shard, the_states
from tests.run_helpers import append_line, commit_shard, line_of
from tests.verify_helpers import a_complete_run, flip, found, overwrite, tensor_begin


@pytest.fixture
def paths(tmp_path):
    return a_complete_run(tmp_path / "run")


def test_a_whole_run_is_good(paths):
    """A run without damage has no finding, and every byte of it was read."""
    report = verify_run(paths)

    assert (report.findings, report.exit_code, report.to_do) == ((), 0, ())
    assert sum(file.stat().st_size for file in paths.shards.rglob("*.safetensors")) == report.read_bytes


def test_samples_that_are_still_to_do_are_listed(paths):
    """A shard that no ledger knows makes the run incomplete, not damaged; its samples are named."""
    (paths.ledger / "sink.jsonl").unlink()
    append_line(paths, line_of(paths.shard(0).read_bytes()).to_line())

    report = verify_run(paths)

    assert (report.exit_code, report.to_do, report.damage) == (4, ("s2", "s3", "s4"), ())
    assert {"foreign_file"} == {finding.kind for finding in report.findings}


@pytest.mark.parametrize("bit_of", ["first", "last"])
def test_a_bit_flip_in_the_states_is_found(paths, bit_of):
    """One bit in a gigabyte is enough; the shard is named."""
    begin = tensor_begin(paths, 2, "hidden_states")
    flip(paths.shard(2), begin if bit_of == "first" else begin + 9 * 2 * 4 * 4 - 1)

    assert {("tensors_altered", 2, None)} == found(paths)


@pytest.mark.parametrize(
    ("tensor", "offset", "kind", "sample"),
    [
        ("input_ids", 12, "tokens_differ", "s1"),
        ("loss_mask", 0, "mask_differs", "s0"),
        ("sample_rows", 8, "rows_misfit", None),
        ("mask_offsets", 8, "rows_misfit", None),
    ],
)
def test_a_bit_flip_in_the_small_tensors_names_the_sample(paths, tensor, offset, kind, sample):
    """Tokens and masks are the plan's, so the sample that was hit is known."""
    flip(paths.shard(0), tensor_begin(paths, 0, tensor) + offset)

    assert {("tensors_altered", 0, None), (kind, 0, sample)} == found(paths)


def test_a_bit_flip_anywhere_in_the_header_is_found(paths):
    """Not one bit of a header can change unseen, and none ends in an error of Python's."""
    file = paths.shard(1)
    whole = file.read_bytes()
    for offset in range(0, header_length(whole), 7):
        file.write_bytes(whole)
        flip(file, offset)

        findings = found(paths)

        assert any(kind.startswith("header_") and shard == 1 for kind, shard, _ in findings), offset


@pytest.mark.parametrize("left_bytes", [0, 1, 7, 8, 100, -1])
def test_a_truncated_file_is_found(paths, left_bytes):
    """However much of a file is left, its shard is named."""
    file = paths.shard(1)
    os.truncate(file, left_bytes if left_bytes >= 0 else file.stat().st_size - 1)

    assert ("file_size", 1, None) in found(paths)


def test_a_zeroed_tail_names_the_samples_it_hit(paths):
    """A file of the right length whose end reads as zeros, as after a power cut, is damage; s3 is whole."""
    file, begin = paths.shard(2), tensor_begin(paths, 2, "hidden_states")
    second = begin + 5 * 2 * 4 * 4
    overwrite(file, second, bytes(file.stat().st_size - second))

    findings = found(paths)

    assert {("tensors_altered", 2, None), ("states_all_zero", 2, "s4")} <= findings
    assert ("states_all_zero", 2, "s3") not in findings


def test_a_grown_file_is_found(paths):
    """Bytes after the end are damage too."""
    with open(paths.shard(0), "ab") as file:
        file.write(b"\0")

    assert {("file_size", 0, None), ("tensors_altered", 0, None)} == found(paths)


def test_swapped_files_are_found_both(paths):
    """Two good files under each other's names are two damaged shards."""
    one, two = paths.shard(0), paths.shard(1)
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)

    findings = found(paths)

    assert {("header_misfit", 0, None), ("header_misfit", 1, None)} <= findings
    assert ("sample_missing", 0, "s1") in findings


def test_a_swap_that_the_ledger_vouches_for_is_found(tmp_path):
    """The plan decides what a shard holds, not the ledger."""
    paths = a_run(tmp_path / "run", ((2,), (2,)))
    commit_shard(paths, a_shard(paths, 1), shard=0)
    commit_shard(paths, a_shard(paths, 0), shard=1)

    assert {("header_misfit", 0, None), ("sample_missing", 0, "s0")} <= found(paths)


def test_a_renamed_file_is_missing_and_foreign(paths):
    """A file under another name is named twice: as the shard that misses it, and as a stranger."""
    os.rename(paths.shard(1), paths.shard(777))

    assert {("file_missing", 1, None), ("foreign_file", None, None)} == found(paths)


def test_a_missing_file_is_found(paths):
    """A committed shard without its file is damage."""
    paths.shard(1).unlink()

    assert {("file_missing", 1, None)} == found(paths)


def test_foreign_files_and_leftovers_are_notes(paths):
    """What lies about is named, but is no damage; a live sink's lock is not even named."""
    incoming = paths.incoming / "sink"
    incoming.mkdir(parents=True)
    (incoming / "lock").touch()
    (incoming / "000001-0.part").write_bytes(b"half")
    (paths.shards / "notes.txt").write_text("mine")

    report = verify_run(paths)

    assert report.exit_code == 0
    assert [finding.kind for finding in report.findings] == ["foreign_file", "leftover"]
    assert "notes.txt" in report.findings[0].message
    assert "000001-0.part" in report.findings[1].message


def test_states_of_zero_in_an_intact_file_are_what_was_stored(tmp_path):
    """Zeros are evidence of damage only where the checksum says that something changed."""
    paths = a_run(tmp_path / "run", ((3,),))
    commit_shard(paths, a_shard(paths, 0, states=np.zeros_like(the_states(Plan(paths).samples_of(0)))))

    assert set() == found(paths)
