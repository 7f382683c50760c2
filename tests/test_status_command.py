"""What `hiddenstream status` prints and exits with."""

from __future__ import annotations

import json

import pytest

from hiddenstream.cli import run_command
from hiddenstream.contracts.commit import Quarantined
from hiddenstream.status_page.words import duration
from tests.factories import a_run, a_shard, store_shard
from tests.run_helpers import append_line, commit_shard, described


@pytest.fixture
def paths(tmp_path):
    return a_run(tmp_path / "run")


def test_an_unfinished_run_exits_with_4(paths, capsys):
    """The counts add up in one line, in words."""
    store_shard(paths, 0)

    code = run_command("status", [str(paths.root)])

    assert code == 4
    assert "3 planned = 2 committed + 0 quarantined + 1 to do" in capsys.readouterr().out


def test_a_complete_run_exits_with_0(paths):
    """All stored is success."""
    store_shard(paths, 0)
    store_shard(paths, 1)

    assert run_command("status", [str(paths.root)]) == 0


def test_a_complete_run_with_quarantined_samples_exits_with_3(paths, capsys):
    """Quarantined samples are counted by reason and show in the exit code."""
    commit_shard(paths, a_shard(paths, 0, quarantined=[Quarantined(id="s1", reason="all_zero", detail="")]))
    store_shard(paths, 1)

    code = run_command("status", [str(paths.root)])

    assert code == 3
    assert "1 quarantined (all_zero 1)" in capsys.readouterr().out


def test_unreadable_ledger_lines_are_told(paths, capsys):
    """A line that counts for nothing is not passed over in silence."""
    append_line(paths, b"half a li\n")

    run_command("status", [str(paths.root)])

    assert "1 lines cannot be read" in capsys.readouterr().out


def test_states_are_described_by_tap(paths, capsys):
    """A line for each tap says how large its states are, and --json holds what it was made of."""
    commit_shard(paths, a_shard(paths, 0, made_by=described({"block.1": 3.0})))

    run_command("status", [str(paths.root)])
    lines = capsys.readouterr().out.splitlines()
    run_command("status", [str(paths.root), "--json"])
    told = json.loads(capsys.readouterr().out)

    assert "states     block.1: RMS 3.162, mean 3, largest 4" in lines
    assert {"block.1": {"count": 2, "mean": 3.0, "m2": 2.0, "largest": 4.0}} == told["statistics"]


@pytest.mark.parametrize("order", [1, -1])
def test_json_is_one_object(paths, capsys, order):
    """--json prints the same facts for programs, before or after the directory."""
    store_shard(paths, 0)

    run_command("status", [str(paths.root), "--json"][::order])

    told = json.loads(capsys.readouterr().out)
    assert (told["committed_samples"], told["to_do_samples"], told["is_complete"]) == (2, 1, False)


def test_no_run_exits_with_1_and_a_wrong_flag_with_2(tmp_path, capsys):
    """Errors go to standard error, in one line that names the thing."""
    codes = [
        run_command("status", [str(tmp_path)]),
        run_command("status", []),
        run_command("status", [str(tmp_path), "--jason"]),
    ]

    assert codes == [1, 2, 2]
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 3
    assert str(tmp_path) in told.err
    assert "--jason" in told.err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7300, "2 h 1 min"), (90000, "1 d 1 h")]
)
def test_durations_for_people(seconds, text):
    """A time is told in its two largest units."""
    assert text == duration(seconds)
