"""Planning a new run, or recognising an existing one."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from pathlib import Path

import pytest

from hiddenstream.chassis.settings import read_settings
from hiddenstream.contracts.errors import RunMismatch, UsageError
from hiddenstream.contracts.queue import RUN_NAME
from hiddenstream.run_directory.paths import RunPaths
from producer.resume import default_run_name, ensure_plan
from producer.settings import PlanFlags


class Folder:
    """A folder with data, a model and a run directory."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model = root, model
        self.run, self.data = root / "my run", root / "data.jsonl"
        self.write_data([1, 2, 3])

    def write_data(self, tokens: list[int]) -> None:
        self.data.write_text(json.dumps({"id": "a", "input_ids": tokens}) + "\n")

    def flags(self, *words: str) -> PlanFlags:
        return read_settings(PlanFlags, [str(self.run), *words], {}, command="plan")

    def new(self, *words: str) -> PlanFlags:
        """The flags that a new run needs, and *words*."""
        needed = ["--model", str(self.model), "--data", str(self.data)]
        layers = [] if "--layers" in words else ["--layers", "1,3"]
        return self.flags(*needed, *layers, *words)


@pytest.fixture
def folder(tmp_path: Path, bare_model_folder: Path) -> Folder:
    return Folder(tmp_path, bare_model_folder)


@pytest.mark.parametrize(("given", "missing"), [("--data", "--model"), ("--model", "--data")])
def test_new_run_needs_model_and_data(folder, given, missing):
    """What is missing is named by its flag."""
    with pytest.raises(UsageError, match=f"{missing} is required"):
        ensure_plan(folder.flags(given, str(folder.model)))


def test_new_run_takes_the_described_defaults(folder):
    """Whatever is not given is chosen as --help says."""
    record = ensure_plan(folder.new("--layers", "dflash:2"))

    assert ("bfloat16", "bfloat16") == (record.identity.compute_dtype, record.identity.stored_dtype)
    settings = record.settings
    assert ("reject", 12_288, 2**30, 512) == (
        settings.over_long,
        settings.token_budget,
        settings.shard_bytes,
        settings.max_length,
    )
    assert ("my-run", ("block.1", "block.3"), False) == (record.run, record.identity.taps, record.keeps_final)


def test_default_layers_are_those_of_dflash(folder):
    """A model too small for the default preset is told to name its layers."""
    flags = folder.flags("--model", str(folder.model), "--data", str(folder.data))

    with pytest.raises(UsageError, match=r"dflash:5.*collapses"):
        ensure_plan(flags)


@pytest.mark.parametrize("words", [("--final",), ("--layers", "1,3,final")])
def test_final_is_kept_however_it_is_asked_for(folder, words):
    """--final and the word among the layers mean the same."""
    record = ensure_plan(folder.new(*words))

    assert (("block.1", "block.3", "block.5"), True) == (record.identity.taps, record.keeps_final)
    assert record == ensure_plan(folder.new(*words))


def test_heads_are_kept_only_when_asked_for(folder):
    """--heads is in the record, and not in the identity: the states are the same."""
    record = ensure_plan(folder.new("--heads"))

    assert record.keeps_heads
    assert "heads" not in json.dumps(dataclasses.asdict(record.identity))
    assert record == ensure_plan(folder.new("--heads")) == ensure_plan(folder.flags())


def test_stored_dtype_follows_the_compute_dtype(folder):
    """--store-dtype is that of --dtype unless given."""
    record = ensure_plan(folder.new("--dtype", "float32"))

    assert ("float32", "float32") == (record.identity.compute_dtype, record.identity.stored_dtype)


def test_unchanged_command_finds_its_run_again(folder):
    """The same command, or the directory alone, resumes the run and changes nothing."""
    words = ("--max-length", "9000", "--shard-bytes", "2M", "--store-dtype", "float16", "--final", "--run-name", "x")
    record = ensure_plan(folder.new(*words))
    before = RunPaths(folder.run).run_json.stat()

    assert record == ensure_plan(folder.new(*words)) == ensure_plan(folder.flags())
    assert before.st_mtime_ns == RunPaths(folder.run).run_json.stat().st_mtime_ns


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--layers", "1,2"), "layers: this run has 'block.1,block.3', got 'block.1,block.2'"),
        (("--final",), "final: this run has False, got True"),
        (("--heads",), "heads: this run has False, got True"),
        (("--dtype", "float32"), "dtype: this run has 'bfloat16', got 'float32'"),
        (("--store-dtype", "float32"), "store_dtype: this run has 'bfloat16'"),
        (("--max-length", "100"), "max_length: this run has 512, got 100"),
        (("--over-long", "truncate"), "over_long: this run has 'reject'"),
        (("--shard-bytes", "1M"), "shard_bytes: this run has 1073741824"),
        (("--run-name", "other"), "run_name: this run has 'my-run', got 'other'"),
    ],
)
def test_other_setting_is_refused_by_name(folder, words, names):
    """A run is never continued as another one; the setting and both values are said."""
    ensure_plan(folder.new())

    with pytest.raises(RunMismatch) as caught:
        ensure_plan(folder.flags(*words))

    assert 1 == len(caught.value.differences)
    assert caught.value.differences[0].startswith(names)


def test_all_differences_are_listed_at_once(folder):
    """Whoever must correct a command corrects it once."""
    ensure_plan(folder.new())

    with pytest.raises(RunMismatch) as caught:
        ensure_plan(folder.new("--layers", "0", "--dtype", "float16", "--over-long", "truncate"))
    assert 3 == len(caught.value.differences)


def test_other_model_is_refused(folder, tmp_path):
    """A model is known by its content: a copy is the same model, one changed byte is another."""
    ensure_plan(folder.new())
    copy = tmp_path / "copy"
    shutil.copytree(folder.model, copy)
    ensure_plan(folder.flags("--model", str(copy)))

    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(RunMismatch, match="model: this run has 'xxh3:"):
        ensure_plan(folder.flags("--model", str(copy)))


def test_other_data_is_refused(folder):
    """Data is known by its content, in order: other bytes or other files are another run."""
    ensure_plan(folder.new())
    renamed = folder.data.rename(folder.root / "renamed.jsonl")
    ensure_plan(folder.flags("--data", str(renamed)))
    folder.write_data([1, 2, 4])

    with pytest.raises(RunMismatch, match=r"data file .*data\.jsonl: this run has '36 bytes"):
        ensure_plan(folder.flags("--data", str(folder.data)))
    with pytest.raises(RunMismatch, match="this run has 1 files, got 2"):
        ensure_plan(folder.flags("--data", str(renamed), "--data", str(folder.data)))


def test_data_that_is_gone_is_only_a_warning(folder, caplog):
    """The plan holds the tokens, so a run goes on without its data."""
    record = ensure_plan(folder.new())
    folder.data.unlink()

    with caplog.at_level(logging.WARNING):
        caplog.clear()
        assert record == ensure_plan(folder.new())
    assert ["data_not_checked"] == [entry.message for entry in caplog.records if entry.levelno >= logging.WARNING]


def test_other_token_budget_is_allowed_and_said(folder, caplog):
    """The budget is no identity; the log says that the planned batches stay."""
    record = ensure_plan(folder.new("--token-budget", "100", "--max-length", "200"))

    with caplog.at_level(logging.WARNING):
        caplog.clear()
        assert record == ensure_plan(folder.new("--token-budget", "200", "--max-length", "200"))
    assert ["token_budget_kept"] == [entry.message for entry in caplog.records if entry.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", ["run 1", "..x", "-a", "日本", "x" * 100, "_", "a.b"])
def test_any_folder_gives_an_allowed_run_name(tmp_path, name):
    """The default name is always safe in keys, URLs and job ids."""
    assert RUN_NAME.fullmatch(default_run_name(tmp_path / name))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--run-name", "a/b"), "letters, digits"),
        (("--dtype", "float8"), "choose from float32, bfloat16, float16"),
        (("--over-long", "drop"), "choose from reject, truncate"),
        (("--max-length", "0"), "at least 1"),
        (("--shard-bytes", "x"), "whole number"),
        (("--no-such",), "no-such"),
    ],
)
def test_setting_that_cannot_be_meant_is_refused(folder, words, says):
    """A malformed setting ends the command before anything is read."""
    with pytest.raises(UsageError, match=says):
        folder.flags(*words)


def test_environment_gives_settings_too():
    """Every flag has its variable; several data files are separated by commas."""
    environment = {"HIDDENSTREAM_RUN_DIRECTORY": "r", "HIDDENSTREAM_DATA": "a,b", "HIDDENSTREAM_FINAL": "no"}

    flags = read_settings(PlanFlags, [], environment, command="plan")

    assert (Path("r"), (Path("a"), Path("b")), False) == (flags.run_directory, flags.data, flags.final)
