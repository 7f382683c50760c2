"""The samples of the canary: every length at which a layer may change what it does, in batches as a way cuts them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from transformers import AutoModelForCausalLM

from gpu_worker.canary_batches import canary_batches, lengths_that_matter
from gpu_worker.fresh_state import FreshState
from gpu_worker.ways import BatchRunner
from tests.gpu_worker.made import CPU
from tests.tiny import save_tiny_model

CONFIG = {
    "sliding_window": 30,
    "linear_conv_kernel_dim": 7,
    "rope_parameters": {"full_attention": {"original_max_position_embeddings": 100, "factor": 40.0}},
    "attention_chunk_size": 1000,
    "hidden_size": 50,
}


def test_lengths_lie_around_every_threshold():
    """Windows, kernels and limits of positions, also nested ones; not other numbers, nor what no sample reaches."""
    lengths = lengths_that_matter(CONFIG, 150)

    assert sorted(lengths, reverse=True) == lengths
    assert {1, 2, 3, 4, 5, 63, 64, 65, 150} <= set(lengths)
    assert {29, 30, 31, 61, 6, 7, 8, 15, 99, 100, 101} <= set(lengths)
    assert not {49, 50, 51, 201} & set(lengths)


@pytest.fixture(scope="module")
def runner_of(tmp_path_factory):
    """Return a function that makes a runner of a tiny model."""
    backbone = AutoModelForCausalLM.from_pretrained(save_tiny_model("llama", tmp_path_factory.mktemp("m"))).base_model
    return lambda way: BatchRunner(backbone, CPU, way, FreshState(backbone))


@pytest.mark.parametrize("way", ["packed", "padded"])
def test_real_batches_hold_long_and_short_side_by_side(runner_of, way):
    """Every length is there, equal ones too, and batches are as large as the run's, but not larger."""
    runner, lengths = runner_of(way), lengths_that_matter(CONFIG, 150)

    batches = canary_batches(runner, lengths, token_budget=1000, vocabulary=128, is_filled=True)

    found = [[row.size for row in batch] for batch in batches]
    assert set(lengths) <= {length for batch in found for length in batch}
    assert any(batch.count(17) >= 2 for batch in found)
    assert all(runner.token_slots(batch) <= 1000 for batch in found)
    assert runner.token_slots(found[-1]) > 700
    assert any(max(batch[:2]) == 150 and min(batch[:2]) <= 65 for batch in found)
    if way == "packed":
        order = [length for batch in found for length in batch]
        assert any(one > 60 > other for one, other in pairwise(order))
        assert any(one < 60 < other for one, other in pairwise(order))


def test_samples_of_one_length_come_in_pairs(runner_of):
    """The way for equal lengths is tried with two samples of each."""
    batches = canary_batches(runner_of("equal_lengths"), [9, 4, 1], token_budget=1000, vocabulary=128, is_filled=True)

    assert [[9, 9], [4, 4], [1, 1], [9, 9]] == [[row.size for row in batch] for batch in batches]
