"""What `hiddenstream verify` prints and exits with."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

from hiddenstream.cli import run_command
from hiddenstream.contracts.commit import Quarantined
from tests.factories import a_run, a_shard, store_shard
from tests.run_helpers import commit_shard
from tests.verify_helpers import a_complete_run, flip, tensor_begin


@pytest.fixture
def paths(tmp_path):
    return a_complete_run(tmp_path / "run")


def test_quarantined_samples_show_in_the_exit_code(tmp_path):
    """A good, complete run with a quarantined sample exits with 3."""
    paths = a_run(tmp_path / "run", ((3, 1), (2,)))
    bad = Quarantined(id="s1", reason="non_finite", detail="")
    commit_shard(paths, a_shard(paths, 0, quarantined=[bad]))
    store_shard(paths, 1)

    assert run_command("verify", [str(paths.root)]) == 3


def test_the_command_names_damage_and_exits_with_1(paths, capsys):
    """People read a line for each damaged place; programs the same as JSON."""
    flip(paths.shard(1), tensor_begin(paths, 1, "hidden_states"))

    codes = run_command("verify", [str(paths.root)]), run_command("verify", ["--json", str(paths.root)])

    lines, _, rest = capsys.readouterr().out.partition("\n{")
    told = json.loads("{" + rest)
    assert codes == (1, 1)
    assert "DAMAGE tensors_altered in shard 1:" in lines
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

    ended = run_command("verify", [str(paths.root), "--recompute", "5", "--model", "m"])

    assert code == ended
    assert {"run_directory": paths.root, "count": 5, "model": "m", "seed": 0} == worker.asked
    assert "recomputed 5 samples" in capsys.readouterr().out
