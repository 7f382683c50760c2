"""Wrong states are told from one another by what they are instead."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import hiddenstream
from gpu_worker.buffers import HostBuffer
from gpu_worker.compute import ShardComputer
from gpu_worker.forward import ForwardPass
from gpu_worker.mistakes import NORMED, likely_mistake, of_sample
from gpu_worker.recompute import load_plain, recompute_samples
from gpu_worker.shard_file import finish_shard
from hiddenstream.cli import run_command
from hiddenstream.contracts.errors import ModelError
from tests.gpu_worker.made import a_job, a_planned_run, loaded
from tests.run_helpers import commit_shard
from tests.tiny import random_rows

TAPS = ("embedding", "block.1", "block.4")  # of five blocks
LENGTHS = [12, 12, 12, 12, 12, 7]


@pytest.fixture
def states():
    """Made-up states of one sample, [4, 3], by name: all different."""
    numbers = np.random.default_rng(0)
    names = ("embedding", "block.0", "block.1", "block.2", NORMED, of_sample("b"))
    return {name: numbers.standard_normal((4, 3)) for name in names}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("block.2", "block.1 equals block.2: off by one"),
        ("block.0", "block.1 equals block.0: off by one"),
        ("embedding", "block.1 equals embedding"),
        (NORMED, "block.1 equals the normed last state: the final norm was applied to it"),
        (of_sample("b"), "block.1 equals the states of sample b: rows went to the wrong sample"),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 5e-3])
def test_what_it_is_instead_is_named(name, said, noise, states):
    """States that are exactly something else are named, rounding or not."""
    found = states[name] * (1 + noise)

    assert said == likely_mistake(found, "block.1", states)


def test_tokens_shifted_by_one_are_named(states):
    """In both directions."""
    right = states["block.1"]
    moved = [np.roll(right, 1, axis=0), np.roll(right, -1, axis=0)]

    said = [likely_mistake(found, "block.1", states) for found in moved]

    assert [
        f"block.1 equals itself at the token {where}: the tokens are shifted by one" for where in ("before", "after")
    ] == said


def test_zero_and_not_finite_are_named(states):
    """They equal nothing, and need no comparison."""
    broken = states["block.1"].copy()
    broken[2, 1] = np.nan

    assert "block.1 is zero at every token" == likely_mistake(np.zeros((4, 3)), "block.1", states)
    assert "block.1 is not finite, first at token 2" == likely_mistake(broken, "block.1", states)


@pytest.mark.parametrize("tokens", [4, 1])
def test_what_is_not_known_is_not_named(tokens, states):
    """A leak is another vector; and one token that another sample begins with too says nothing."""
    found = states["block.1"][:tokens] + np.random.default_rng(1).standard_normal((tokens, 3)) / 3
    several = {name: values if name == of_sample("b") else values[:tokens] for name, values in states.items()}
    several[of_sample("b")][0] = found[0]

    assert "" == likely_mistake(found, "block.1", several)


class Mistaken(ForwardPass):
    """The real forward pass of a run, with one mistake in what it gives."""

    def __init__(self, model, mistake):
        shifted = {"embedding": "block.0", "block.1": "block.2", "block.4": "block.4"}
        taps = tuple(shifted[tap] for tap in TAPS) if mistake == "shifted" else TAPS
        super().__init__(model, taps, torch.float32)
        self._mistake = mistake

    @torch.inference_mode()
    def run(self, rows):
        states = super().run(rows)
        hidden = states.hidden_NKD
        if self._mistake == "normed":
            hidden[:, 2] = self._model.backbone.norm(hidden[:, 2])
        if self._mistake == "zeroed":
            hidden[:, 1] = 0
        if self._mistake == "swapped":
            for first in range(0, len(hidden) - 23, 24):  # every batch has samples of 12 tokens at its end
                pair = hidden[len(hidden) - 24 - first : len(hidden) - first]
                pair.copy_(pair.roll(12, dims=0))
        return states


def stored_run(root, model, mistake):
    """Compute a run's one shard with a mistake, a batch for every length, and store it."""
    paths = a_planned_run(root, model, random_rows(LENGTHS), taps=TAPS)
    record, job = paths.read_record(), a_job(paths, token_budget=60)
    forward = Mistaken(loaded(record), mistake)
    computer = ShardComputer(
        record.identity, forward, token_budget=None, on_batch=lambda *_: None, on_activity=lambda _: None
    )
    buffer = HostBuffer(is_pinned=False)
    work = computer.compute(job, buffer)
    work.faults.clear()  # as a worker without checks would store it
    shard = finish_shard(job, record, work, buffer, made_by={"worker": "elsewhere"}, wait_seconds=0.0)
    commit_shard(paths, b"".join(bytes(piece) for piece in shard.pieces))
    return paths


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        ("shifted", ["embedding equals block.0: off by one", "block.1 equals block.2: off by one"]),
        ("normed", ["block.4 equals the normed last state: the final norm was applied to it"]),
        ("zeroed", ["block.1 is zero at every token"]),
        ("swapped", ["embedding equals the states of sample s", "block.1 equals the states of sample s"]),
        ("none", []),
    ],
)
def test_verify_names_the_mistake_of_a_run_made_elsewhere(mistake, named, tiny_model, tmp_path, capsys):
    """`verify --recompute --model` says what the stored states are instead, and fails; a right run passes."""
    model = tiny_model("llama")
    paths = stored_run(tmp_path, model, mistake)
    record = json.loads(paths.run_json.read_text())
    paths.run_json.write_text(json.dumps({**record, "model": "/elsewhere/model"}))

    code = run_command("verify", [str(paths.root), "--recompute", "6", "--model", str(model)])

    printed = capsys.readouterr().out
    assert (1 if named else 0) == code
    assert [] == [sentence for sentence in named if f"likely: {sentence}" not in printed]
    assert bool(named) == ("likely" in printed)


def test_float32_is_compared_to_a_ten_thousandth(tiny_model, tmp_path):
    """A difference of 2e-4 relative to the states' RMS is an error in a float32 run."""
    paths = stored_run(tmp_path, tiny_model("llama"), "none")

    report = recompute_samples(paths.root, 3, None, 0)

    assert (True, 1e-4, ()) == (report.is_within, report.tolerance, report.mistakes)
    assert 6 == len(hiddenstream.open(paths.root))


def test_recomputing_refuses_a_model_without_all_its_weights(tiny_model, tmp_path):
    """The oracle itself must not be made of random numbers."""
    weights = load_file(tiny_model("llama") / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    (tmp_path / "config.json").write_bytes((tiny_model("llama") / "config.json").read_bytes())
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})

    with pytest.raises(ModelError, match=r"lack weights, for example model\.layers\.1\.mlp\.up_proj\.weight"):
        load_plain(str(tmp_path), None, "float32")
