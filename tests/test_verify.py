"""Verifying: every kind of damage is found, and named by shard and sample."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hiddenstream.contracts.run import Quarantined
from hiddenstream.contracts.shard import decode_header, header_length
from hiddenstream.run_directory.plan import Plan
from hiddenstream.verify.verify import verify_run
from hiddenstream.verify_command import main
from tests.factories import a_run, a_shard, store_shard, the_states
from tests.run_helpers import append_line, commit_shard, line_of, with_column, with_record


@pytest.fixture
def paths(tmp_path):
    """A complete run of three shards with five samples."""
    paths = a_run(tmp_path / "run", ((3, 1), (2,), (5, 4)))
    for shard in range(3):
        store_shard(paths, shard)
    return paths


def found(paths):
    """Return (kind, shard, sample) of every finding."""
    return {(finding.kind, finding.shard, finding.sample_id) for finding in verify_run(paths).findings}


def tensor_begin(paths, shard: int, name: str) -> int:
    data = paths.shard(shard).read_bytes()
    start = header_length(data)
    return start + decode_header(data[:start])[0].tensors[name].begin


def overwrite(file: Path, offset: int, data: bytes) -> None:
    with open(file, "r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def flip(file: Path, offset: int) -> None:
    overwrite(file, offset, bytes([file.read_bytes()[offset] ^ 1]))


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


def test_a_torn_ledger_line_is_found_by_file_and_line(paths):
    """A line that was cut and then written over is damage; the shard it named is to do again."""
    ledger = paths.ledger / "sink.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(lines[0] + lines[1][:50] + b"\n" + lines[2])

    report = verify_run(paths)

    assert (report.damage[0].kind, report.to_do, report.exit_code) == ("ledger_line", ("s2",), 1)
    assert "sink.jsonl, line 2" in report.damage[0].message


def test_a_last_line_without_its_end_is_a_note(paths):
    """A sink may be writing it; it counts for nothing yet."""
    ledger = paths.ledger / "sink.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-30])

    report = verify_run(paths)

    assert ({"unfinished_line", "foreign_file"}, 4) == ({f.kind for f in report.findings}, report.exit_code)


def test_a_ledger_line_of_an_unplanned_shard_is_found(paths):
    """A shard that the plan does not have is damage, and does not hide the rest."""
    append_line(paths, line_of(paths.shard(0).read_bytes(), shard=9).to_line())

    assert {("unknown_shard", 9, None)} == found(paths)


def test_an_older_line_of_other_bytes_is_named(paths):
    """A shard that was made again is judged by its newest line; the older one is named."""
    content = a_shard(paths, 0, delivery="b7")
    commit_shard(paths, content, time="2026-01-01T00:01:00.000Z", sink="another")

    report = verify_run(paths)

    assert ([(f.kind, f.shard) for f in report.findings], report.exit_code) == ([("committed_twice", 0)], 0)


def test_altered_tokens_in_the_plan_name_shard_and_sample(paths):
    """A bit flip in tokens.bin is told from one in the shard: the plan's own id no longer fits."""
    flip(paths.tokens, 0)

    assert {
        ("plan_altered", None, None),
        ("header_misfit", 0, None),
        ("tokens_differ", 0, "s0"),
    } == found(paths)


def test_a_short_tokens_file_is_found(paths):
    """The shard whose tokens are cut off is named."""
    os.truncate(paths.tokens, paths.tokens.stat().st_size - 8)

    assert {("plan_altered", 2, None), ("plan_altered", None, None)} <= found(paths)


def test_an_id_planned_twice_is_found(paths):
    """Two planned samples of one id could not be told apart."""
    with_column(paths, "id", ["s0", "s1", "s2", "s0", "s4"], keep_plan_id=True)

    assert ("id_repeated", 2, "s0") in found(paths)


def test_an_altered_id_names_the_shard(paths):
    """A plan with another id than was computed is found through the plan's id and the shard's header."""
    with_column(paths, "id", ["s0", "s1", "S2", "s3", "s4"], keep_plan_id=True)

    assert {("plan_altered", None, None), ("header_misfit", 1, None), ("sample_missing", 1, "S2")} <= found(paths)


def test_counts_of_the_record_are_checked_against_the_table(paths):
    """Rows that vanished from the plan are found."""
    with_record(paths, rejected={"no_tokens": 2})

    assert ("counts_differ", None, None) in found(paths)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 100])
def test_a_plan_that_cannot_be_read_ends_verifying(paths, content, capsys):
    """Without a plan nothing can be judged: one error, exit code 1."""
    paths.samples.write_bytes(content)

    code = main([str(paths.root)])

    assert code == 1
    assert "plan" in capsys.readouterr().err


def test_quarantined_samples_show_in_the_exit_code(tmp_path):
    """A good, complete run with a quarantined sample exits with 3."""
    paths = a_run(tmp_path / "run", ((3, 1), (2,)))
    bad = Quarantined(id="s1", reason="non_finite", detail="")
    commit_shard(paths, a_shard(paths, 0, quarantined=[bad]))
    store_shard(paths, 1)

    assert main([str(paths.root)]) == 3


def test_states_of_zero_in_an_intact_file_are_what_was_stored(tmp_path):
    """Zeros are evidence of damage only where the checksum says that something changed."""
    paths = a_run(tmp_path / "run", ((3,),))
    commit_shard(paths, a_shard(paths, 0, states=np.zeros_like(the_states(Plan(paths).samples_of(0)))))

    assert set() == found(paths)


def test_the_command_names_damage_and_exits_with_1(paths, capsys):
    """People read a line for each damaged place; programs the same as JSON."""
    flip(paths.shard(1), tensor_begin(paths, 1, "hidden_states"))

    codes = main([str(paths.root)]), main(["--json", str(paths.root)])

    lines, _, rest = capsys.readouterr().out.partition("\n{")
    told = json.loads("{" + rest)
    assert codes == (1, 1)
    assert "DAMAGE tensors_altered: shard 1:" in lines
    assert tuple(told["findings"][0][key] for key in ("kind", "shard", "is_damage")) == ("tensors_altered", 1, True)
    assert (told["is_good"], told["is_complete"]) == (False, True)


class FakeRecompute(ModuleType):
    """Stands in for the worker, which this package cannot import."""

    def __init__(self, *, is_within: bool) -> None:
        super().__init__("gpu_worker.recompute")
        self.is_within, self.asked = is_within, {}

    def recompute_samples(self, run_directory, count, model, seed):
        self.asked = {"run_directory": run_directory, "count": count, "model": model, "seed": seed}
        return self

    def summary(self) -> str:
        return "recomputed 5 samples"


@pytest.mark.parametrize(("is_within", "code"), [(True, 0), (False, 1)])
def test_recomputing_decides_the_exit_code(paths, capsys, monkeypatch, is_within, code):
    """States that come out otherwise are damage, however well they are stored."""
    worker = FakeRecompute(is_within=is_within)
    monkeypatch.setitem(sys.modules, "gpu_worker.recompute", worker)

    ended = main([str(paths.root), "--recompute", "5", "--model", "m"])

    assert code == ended
    assert {"run_directory": paths.root, "count": 5, "model": "m", "seed": 0} == worker.asked
    assert "recomputed 5 samples" in capsys.readouterr().out
