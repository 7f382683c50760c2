"""What the check at start refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_worker.canary import GateRefused
from gpu_worker.model import load_model
from hiddenstream.contracts.errors import ModelError
from tests.factories import a_run
from tests.tiny import save_tiny_model

CPU = torch.device("cpu")
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1 + n / 2 for n in range(8)],
    "original_max_position_embeddings": 64,
}


def a_record(folder, *, max_length):
    """Return a record of a run of a five-block model of width 64."""
    record = a_run(folder, [[1]]).read_record()
    settings = replace(record.settings, max_length=max_length, token_budget=512)
    identity = replace(record.identity, hidden_size=64)
    return replace(record, num_blocks=5, identity=identity, settings=settings)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_positions_that_depend_on_the_longest_sample_are_refused(tmp_path, dtype):
    """Longrope beyond its original length changes a short sample; the refusal says how to go on."""
    model = save_tiny_model("phi3", tmp_path / "model", original_max_position_embeddings=64, rope_parameters=LONGROPE)
    record = a_record(tmp_path / "run", max_length=200)
    record = replace(record, identity=replace(record.identity, compute_dtype=dtype))

    with pytest.raises(ModelError, match="smaller --max-length helps"):
        load_model(record, str(model), CPU)


def test_longrope_inside_its_original_length_is_taken(tmp_path):
    """The same model is right for samples up to its original length, and is not refused for them."""
    model = save_tiny_model("phi3", tmp_path / "model", original_max_position_embeddings=64, rope_parameters=LONGROPE)

    loaded = load_model(a_record(tmp_path / "run", max_length=64), str(model), CPU)

    assert 3 == len(loaded.blocks)
    assert "passed" == loaded.gate


def test_a_model_that_looks_both_ways_is_refused(tmp_path):
    """An encoder's tokens see padding and mates' widths, so its states would be wrong."""
    model = save_tiny_model("electra", tmp_path / "model")

    with pytest.raises(GateRefused, match="no causal model"):
        load_model(a_record(tmp_path / "run", max_length=200), str(model), CPU)


def test_a_model_without_a_finite_state_is_not_judged(tmp_path):
    """Where there is nothing to compare the gate has not run, and says so."""
    model = save_tiny_model("llama", tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][:] = torch.nan
    save_file(weights, model / "model.safetensors", {"format": "pt"})

    loaded = load_model(a_record(tmp_path / "run", max_length=64), str(model), CPU)

    assert "not_run" == loaded.gate
