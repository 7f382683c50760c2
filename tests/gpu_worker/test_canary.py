"""What the check at start chooses, and what it refuses. Each planted fault is caught by one test of the canary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from gpu_worker import swap_check, trial
from gpu_worker.block_check import BlockFigures, Subject, token_errors
from gpu_worker.canary import choose_way
from gpu_worker.canary_batches import lengths_that_matter
from gpu_worker.fresh_state import FreshState
from gpu_worker.model import load_model
from gpu_worker.packed_attention import AttentionSwitch
from gpu_worker.packing import Segments
from gpu_worker.ways import BatchRunner
from hiddenstream.contracts.errors import GateRefused
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


def a_record(folder, *, longest_tokens, dtype="float32"):
    """Return a record of a run of a five-block model of width 64."""
    record = a_run(folder, [[1]]).read_record()
    settings = replace(record.settings, max_length=longest_tokens, token_budget=512)
    identity = replace(record.identity, hidden_size=64, compute_dtype=dtype)
    return replace(record, num_blocks=5, longest_tokens=longest_tokens, identity=identity, settings=settings)


def a_gate(family, folder, *, ways=None, dtype="float32", change=lambda backbone: None):
    """Choose a way for a tiny model that *change* has been done to."""
    backbone = AutoModelForCausalLM.from_pretrained(save_tiny_model(family, folder / "model")).base_model.eval()
    backbone.to(getattr(torch, dtype))
    blocks = change(backbone) or backbone.layers
    identity = replace(a_record(folder / "run", longest_tokens=70).identity, compute_dtype=dtype)
    return choose_way(backbone, blocks, identity, device=CPU, longest_tokens=70, token_budget=512, ways=ways)


def a_subject(backbone):
    """Return a model under test."""
    return Subject(
        backbone=backbone,
        blocks=backbone.layers,
        device=CPU,
        dtype=backbone.dtype,
        fresh=FreshState(backbone),
        fresh_blocks=[FreshState(block) for block in backbone.layers],
        attention=AttentionSwitch(backbone),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_positions_that_depend_on_the_longest_sample_are_batched_by_length(tmp_path, dtype):
    """Longrope beyond its original length changes a short sample beside a long one, but not among its equals."""
    model = save_tiny_model("phi3", tmp_path / "model", original_max_position_embeddings=64, rope_parameters=LONGROPE)

    loaded = load_model(a_record(tmp_path / "run", longest_tokens=200, dtype=dtype), str(model), CPU)

    assert "equal_lengths" == loaded.gate.way
    assert "block.0" in loaded.gate.refused["padded"]


def test_longrope_inside_its_original_length_is_padded(tmp_path):
    """The same model is right in padded batches for samples up to its original length."""
    model = save_tiny_model("phi3", tmp_path / "model", original_max_position_embeddings=64, rope_parameters=LONGROPE)

    loaded = load_model(a_record(tmp_path / "run", longest_tokens=64), str(model), CPU)

    assert 3 == len(loaded.blocks)
    assert ("passed", "padded") == (loaded.gate.verdict, loaded.gate.way)


def test_rope_that_remembers_the_longest_sample_starts_fresh(tmp_path):
    """Dynamic rope keeps a long sample's frequencies; batches of one length, each on a fresh state, are right."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = save_tiny_model("llama", tmp_path / "model", max_position_embeddings=64, rope_parameters=rope)

    loaded = load_model(a_record(tmp_path / "run", longest_tokens=100), str(model), CPU)

    assert "equal_lengths" == loaded.gate.way


def test_a_model_that_looks_both_ways_is_not_padded(tmp_path):
    """An encoder's tokens see padding; without any, among its equals, it is right."""
    model = save_tiny_model("electra", tmp_path / "model")

    loaded = load_model(a_record(tmp_path / "run", longest_tokens=200), str(model), CPU)

    assert "equal_lengths" == loaded.gate.way


def test_a_model_that_remembers_its_batches_is_put_back_before_each(tmp_path):
    """A block that counts its passes gives every batch something else, unless its count is put back."""

    class Counting(nn.Module):
        passes = 0

        def __init__(self, inner):
            super().__init__()
            self.inner, self.passes = inner, 0

        def forward(self, hidden):
            self.passes += 1
            return self.inner(hidden) + self.passes

    def count_in_block_0(backbone):
        backbone.layers[0].mlp = Counting(backbone.layers[0].mlp)

    gate = a_gate("llama", tmp_path, change=count_in_block_0)

    assert gate.way in ("equal_lengths", "one_at_a_time")
    assert "padded" in gate.refused


def test_a_model_that_is_never_the_same_is_refused(tmp_path):
    """With dropout left on, no way of batching gives what a sample alone gives; the refusal says what was tried."""

    def drop_out(backbone):
        for block in backbone.layers:
            block.mlp = nn.Sequential(block.mlp, nn.Dropout(0.3))
        backbone.train()

    with pytest.raises(GateRefused, match=r"padded: block.0 .*equal_lengths: .*one_at_a_time: "):
        a_gate("llama", tmp_path, change=drop_out)


@pytest.mark.parametrize("family", ["llama", "qwen3_5_text"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packing_that_keeps_samples_apart_is_chosen(tmp_path, family, dtype):
    """Attention alone, and convolution and delta rule: the packed way passes, and mates change not one bit."""
    gate = a_gate(family, tmp_path, ways=("packed", "padded"), dtype=dtype)

    assert ("packed", True, 0.0) == (gate.way, gate.is_bitwise, gate.differences["swap"])


def miss_one_boundary(monkeypatch):
    """Make every pack lose the boundary between its second and third sample."""
    sound = Segments.of

    def leaky(lengths, device):
        if len(lengths) < 3:
            return sound(lengths, device)
        return sound([lengths[0], lengths[1] + lengths[2], *lengths[3:]], device)

    monkeypatch.setattr(Segments, "of", staticmethod(leaky))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_missing_boundary_is_seen_block_by_block(tmp_path, monkeypatch, dtype):
    """A sample that sees the one before it falls back to padding, and the reason names the block."""
    miss_one_boundary(monkeypatch)

    gate = a_gate("llama", tmp_path, ways=("packed", "padded"), dtype=dtype)

    assert "padded" == gate.way
    assert "block.0" in gate.refused["packed"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_missing_boundary_is_seen_by_swapping_mates(tmp_path, monkeypatch, dtype):
    """Also where nobody compares blocks, other tokens in a mate change the sample that sees it."""
    miss_one_boundary(monkeypatch)
    monkeypatch.setattr(trial, "compare_blocks", lambda *_: BlockFigures())

    gate = a_gate("llama", tmp_path, ways=("packed", "padded"), dtype=dtype)

    assert "padded" == gate.way
    assert "other batch mates change" in gate.refused["packed"]


@pytest.mark.parametrize("is_leaky", [False, True])
def test_exchanged_mates_of_a_mixture_of_experts_change_no_bit(tmp_path, monkeypatch, is_leaky):
    """Where mates may change rounding, exchanging equally long ones may not, unless a sample sees its mate."""
    if is_leaky:
        miss_one_boundary(monkeypatch)
    backbone = AutoModelForCausalLM.from_pretrained(save_tiny_model("mixtral", tmp_path)).base_model.bfloat16().eval()
    runner = BatchRunner(backbone, CPU, "packed", FreshState(backbone))
    subject = a_subject(backbone)

    with torch.inference_mode():
        survives = swap_check._survives_exchange(subject, runner, np.arange(40, dtype=np.int32), ("block.2",))

    assert (not is_leaky) == survives


def test_a_recurrence_that_nobody_resets_is_seen_below_the_rounding(tmp_path):
    """Mamba's scan runs on over boundaries; in bfloat16 that hides in rounding, but swapped mates change bits."""
    gate = a_gate("mamba2", tmp_path, ways=("packed", "padded"), dtype="bfloat16")

    assert "padded" == gate.way


def hold_no_more_than(monkeypatch, most_slots):
    """Make every batch of more slots run out of memory."""
    sound = BatchRunner.run

    def run(self, rows, **named):
        if self.token_slots([row.size for row in rows]) > most_slots:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
        return sound(self, rows, **named)

    monkeypatch.setattr(BatchRunner, "run", run)


def test_a_check_that_does_not_fit_takes_smaller_batches(tmp_path, monkeypatch):
    """Out of memory at the run's token budget, the check is made with fewer slots, and the way is not blamed."""
    hold_no_more_than(monkeypatch, 200)

    gate = a_gate("llama", tmp_path)

    assert ("padded", {}) == (gate.way, gate.refused)


def test_a_model_that_the_longest_sample_does_not_fit_on_is_refused(tmp_path, monkeypatch):
    """Where not even the longest sample fits alone, the refusal says so instead of trying for ever."""
    hold_no_more_than(monkeypatch, 60)

    with pytest.raises(GateRefused, match=r"the longest sample, of 70 tokens, does not fit: CUDA out of memory"):
        a_gate("llama", tmp_path)


RAISED = [NotImplementedError(), RuntimeError("\n  no kernel for this shape"), AssertionError()]


@pytest.mark.parametrize("error", RAISED)
def test_a_way_that_raises_is_not_taken(tmp_path, monkeypatch, error):
    """Whatever a kernel raises, also without a word, the next way is tried."""
    sound = BatchRunner.run

    def run(self, rows, **named):
        if self.way == "packed":
            raise error
        return sound(self, rows, **named)

    monkeypatch.setattr(BatchRunner, "run", run)

    gate = a_gate("llama", tmp_path, ways=("packed", "padded"))

    assert "padded" == gate.way
    assert gate.refused["packed"]


def test_blocks_on_other_devices_are_compared():
    """What enters a block of a model on several GPUs may lie on the one before."""
    found = torch.ones(1, 3, 4, device="meta")

    errors = token_errors(found, torch.ones(1, 3, 4), torch.ones(1, 3, 4))

    assert ("meta", (3,)) == (errors.device.type, tuple(errors.shape))


def test_a_longest_sample_just_past_a_window_is_run_more_than_once():
    """A few tokens may differ for other reasons, so more than a few must lie past each threshold."""
    assert 5 == lengths_that_matter({"sliding_window": 60}, 62).count(62)
    assert 1 == lengths_that_matter({"sliding_window": 60}, 90).count(90)


def test_taps_shifted_by_one_are_named(tmp_path):
    """Where the list of blocks begins with the second, the refusal says what each is."""
    with pytest.raises(GateRefused, match=r"embedding equals block.0: off by one"):
        a_gate("llama", tmp_path, change=lambda backbone: backbone.layers[1:])


def test_a_model_without_a_finite_state_is_not_judged(tmp_path):
    """Where there is nothing to compare the gate says so, and samples are run one at a time."""
    model = save_tiny_model("llama", tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][:] = torch.nan
    save_file(weights, model / "model.safetensors", {"format": "pt"})

    loaded = load_model(a_record(tmp_path / "run", longest_tokens=64), str(model), CPU)

    assert ("not_run", "one_at_a_time") == (loaded.gate.verdict, loaded.gate.way)
