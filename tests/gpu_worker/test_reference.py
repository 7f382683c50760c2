"""The states that a run's first worker stores are matched by every later one, or it refuses."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from gpu_worker import reference_guard
from gpu_worker.canary import choose_way
from gpu_worker.reference import (
    allowed_difference,
    compute_reference,
    differences_from,
    refuse_other_states,
    relative_differences,
)
from gpu_worker.reference_guard import ReferenceGuard, decode_reference, encode_reference
from gpu_worker.sink_client import SinkClient
from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.contracts.errors import GateRefused
from tests.gpu_worker.made import CPU, a_planned_run, forward_of, loaded
from tests.sink.harness import a_sink, files_left
from tests.tiny import random_rows, save_tiny_model

TAPS = ("embedding", "block.0", "block.2")


@pytest.fixture
def run(tmp_path):
    """A planned run of a tiny model whose longest sample has 30 tokens."""
    model = save_tiny_model("qwen3", tmp_path / "model")
    return a_planned_run(tmp_path, model, random_rows([30, 4]), taps=TAPS)


@contextmanager
def guards_of(paths):
    """Yield what makes a guard and lets it match the run's reference on a real sink."""
    with a_sink(paths) as sink:

        def match(model):
            record = paths.read_record()
            guard = ReferenceGuard(record, model, forward_of(model, record))
            guard.match(SinkClient(f"http://127.0.0.1:{sink.port}", "run", None), StopRequest(), {"worker": "w"})
            return guard

        yield match


def reference_of(paths, model):
    """Compute the reference of a run."""
    record = paths.read_record()
    return compute_reference(model, forward_of(model, record), TAPS, record.longest_tokens)


def check(paths, model, reference):
    """Compare a worker's model with a reference; return the largest difference."""
    record = paths.read_record()
    forward = forward_of(model, record)
    differences = differences_from(reference, forward, TAPS)
    return refuse_other_states(differences, reference, model, forward, record.identity)


def test_the_first_worker_stores_what_the_next_ones_match(run):
    """There is one reference in the run directory, and the same model finds no difference."""
    with guards_of(run) as match:
        first, second = match(loaded(run.read_record())), match(loaded(run.read_record()))

    assert (0.0, 0.0) == (first.difference, second.difference)
    assert (run.root / "reference.safetensors").exists()
    assert [] == files_left(run)


@pytest.mark.parametrize("tap", ["block.0", "block.2"])
def test_a_worker_with_other_weights_is_refused(run, tap):
    """One matrix that is a hundredth larger is seen, and the refusal names the shallowest tap that it changes."""
    with guards_of(run) as match:
        match(loaded(run.read_record()))
        other = loaded(run.read_record())
        with torch.no_grad():
            other.blocks[int(tap[-1])].mlp.down_proj.weight.mul_(1.01)

        with pytest.raises(GateRefused, match=f"^{tap} of the run's reference samples differs"):
            match(other)


@pytest.mark.parametrize("way", ["packed", "equal_lengths", "one_at_a_time"])
def test_other_ways_of_batching_match(run, way):
    """What one worker stored from padded batches, another one matches in its own way."""
    model, other = loaded(run.read_record()), loaded(run.read_record())
    gate = choose_way(
        other.backbone,
        other.blocks,
        run.read_record().identity,
        device=CPU,
        longest_tokens=30,
        token_budget=512,
        ways=(way,),
    )

    difference = check(run, replace(other, gate=gate), reference_of(run, model))

    assert difference < 1e-5


def test_taps_that_were_shifted_by_one_are_named(run):
    """A reference whose block.0 is block 1's output is refused as off by one."""
    model = loaded(run.read_record())
    sound = reference_of(run, model)
    states_NKD = sound.states_NKD.copy()
    record = run.read_record()
    deeper = forward_of(model, record).with_taps(("block.1",)).run(sound.rows).hidden_NKD
    states_NKD[:, 1] = deeper[:, 0].numpy()

    with pytest.raises(GateRefused, match=r"the stored block.0 equals block.1: off by one"):
        check(run, model, replace(sound, states_NKD=states_NKD))


def test_rounding_is_allowed_as_far_as_it_grows_in_this_model(run):
    """The noise that the first worker measures is what differences are held against."""
    model = loaded(run.read_record())
    sound = reference_of(run, model)
    shaken = replace(sound, states_NKD=sound.states_NKD * np.float32(1.01))

    with pytest.raises(GateRefused):
        check(run, model, shaken)
    assert 0.0 < sound.noise["block.2"] < 1e-5
    assert check(run, model, replace(shaken, noise=dict.fromkeys(TAPS, 0.005))) == pytest.approx(0.0099, rel=0.01)


def test_one_value_that_is_not_finite_does_not_blind_the_comparison(run):
    """The other values are compared all the same; many that are finite in one alone are a difference."""
    states = np.random.default_rng(0).normal(size=(40, 1, 64)).astype(np.float32)
    spoilt, half = states.copy(), states.copy()
    spoilt[0, 0, 0] = half[:20] = np.inf

    assert relative_differences(spoilt, spoilt, ("a",)) == {"a": 0.0}
    assert relative_differences(-spoilt, spoilt, ("a",))["a"] > 1.9
    assert relative_differences(half, states, ("a",)) == {"a": float("inf")}
    identity = run.read_record().identity
    assert 1e-4 == allowed_difference(identity, float("inf")) == allowed_difference(identity, float("nan"))


def test_a_reference_file_is_read_as_it_was_written(run):
    """Samples, states and noise come back; a changed byte is refused with the way out."""
    model = loaded(run.read_record())
    record = run.read_record()
    reference = reference_of(run, model)
    content = b"".join(bytes(piece) for piece in encode_reference(reference, record, {"worker": "w"}))

    found = decode_reference(content, record)

    assert np.array_equal(reference.states_NKD, found.states_NKD)
    assert all(map(np.array_equal, reference.rows, found.rows))
    assert reference.noise == found.noise
    with pytest.raises(GateRefused, match="delete it"):
        decode_reference(content[:-1] + bytes([content[-1] ^ 1]), record)


def test_a_model_that_changes_while_it_works_is_noticed(run, monkeypatch, caplog):
    """Every so many shards a sample is computed again; if it differs, the shards since the last check are named."""
    monkeypatch.setattr(reference_guard, "_SHARDS_BETWEEN_CHECKS", 3)
    model = loaded(run.read_record())
    with guards_of(run) as match:
        guard = match(model)
    for shard in range(5):
        guard.after_shard(shard)
    with torch.no_grad():
        model.blocks[0].mlp.down_proj.weight.mul_(1.01)

    with caplog.at_level(logging.ERROR), pytest.raises(GateRefused, match=r"^block.0"):
        guard.after_shard(5)

    assert [3, 4, 5] == caplog.records[-1].facts["shards"]
