"""What only a GPU can show. Skipped where there is none."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_worker.buffers import HostBuffer
from gpu_worker.compute import ShardComputer
from gpu_worker.forward import ForwardPass
from gpu_worker.model import TORCH_DTYPES, choose_device, load_model
from gpu_worker.recompute import load_plain, plain_states
from hiddenstream.contracts.job import ExtractionJob
from hiddenstream.contracts.run import RunRecord
from hiddenstream.contracts.samples import PackedSamples
from tests.factories import a_run
from tests.tiny import save_tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
TAPS = ("embedding", "block.0", "block.2", "block.4")
LENGTHS = [3, 17, 1, 64, 9, 9, 9, 40, 2, 64]


def a_record(folder: Path, dtype: str, hidden_size: int = 64) -> RunRecord:
    """Return a record of a run of a five-block model."""
    record = a_run(folder, [[1]]).read_record()
    identity = replace(record.identity, taps=TAPS, hidden_size=hidden_size, compute_dtype=dtype, stored_dtype=dtype)
    return replace(record, num_blocks=5, longest_tokens=64, identity=identity)


def a_job(lengths: list[int], token_budget: int) -> ExtractionJob:
    """Return a job of samples of these lengths, without masks."""
    generator = np.random.default_rng(0)
    samples = PackedSamples(
        ids=tuple(f"s{n}" for n in range(len(lengths))),
        token_counts=np.array(lengths, np.int64),
        tokens=generator.integers(1, 128, sum(lengths)).astype(np.int32),
        mask_counts=np.zeros(len(lengths), np.int64),
        masks=np.empty(0, np.uint8),
    )
    return ExtractionJob(run="r", fingerprint="f", shard=0, delivery="d", token_budget=token_budget, samples=samples)


def a_computer(record: RunRecord, forward: ForwardPass) -> ShardComputer:
    """Return what computes shards and tells nobody."""
    return ShardComputer(
        record.identity, forward, token_budget=None, on_batch=lambda *_: None, on_activity=lambda _: None
    )


def expected_way(family: str, dtype: str) -> str:
    """Return how a family's samples are batched; hybrids are packed with flash-linear-attention alone."""
    if dtype == "float32" or family in ("falcon", "gemma2"):
        return "padded"
    is_hybrid = family == "qwen3_5_text"
    return "padded" if is_hybrid and importlib.util.find_spec("fla") is None else "packed"


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5_text", "gpt2", "falcon", "gemma2"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_states_equal_plain_transformers(family: str, dtype: str, tolerance: float, tmp_path: Path) -> None:
    """Batches in the way that was chosen, through a pinned buffer, equal each sample alone by relative L2."""
    record = a_record(tmp_path / "run", dtype)
    model_folder = str(save_tiny_model(family, tmp_path / "model"))
    job = a_job(LENGTHS, token_budget=128)
    model = load_model(record, model_folder, choose_device("auto"))
    forward = ForwardPass(model, TAPS, TORCH_DTYPES[dtype])
    computer = a_computer(record, forward)

    work = computer.compute(job, HostBuffer(is_pinned=True))

    assert not work.faults
    assert model.gate.way == expected_way(family, dtype)
    plain = load_plain(model_folder, None, dtype)
    for first, tokens in zip(work.first_rows, work.token_rows, strict=True):
        expected = plain_states(plain, tokens, TAPS)
        for place, tap in enumerate(TAPS):
            found = work.states_TKD[first : first + tokens.size, place].double().numpy()
            assert np.linalg.norm(found - expected[tap]) <= tolerance * np.linalg.norm(expected[tap]), (family, tap)


def test_a_batch_that_does_not_fit_is_split(tmp_path: Path) -> None:
    """A real out-of-memory splits the batch; every sample is computed, and memory is free again."""
    record = a_record(tmp_path / "run", "float32", hidden_size=1024)
    sizes = {"hidden_size": 1024, "intermediate_size": 16384, "max_position_embeddings": 8192}
    model_folder = str(save_tiny_model("llama", tmp_path / "model", **sizes, num_attention_heads=16, head_dim=64))
    model = load_model(record, model_folder, choose_device("cuda"))
    forward = ForwardPass(model, TAPS, torch.float32)
    computer = a_computer(record, forward)
    held = torch.cuda.memory_allocated()
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction((held + 3 * 2**30) / total)
        work = computer.compute(a_job([2000] * 16, token_budget=32_000), HostBuffer(is_pinned=True))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

    assert work.out_of_memory_splits >= 1
    assert not work.faults
    assert torch.isfinite(work.states_TKD).all()
    assert torch.cuda.memory_allocated() <= held + 2**20


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "falcon", "qwen3_5_text"])
def test_a_model_spread_over_two_gpus_gives_the_same_states(family: str, tmp_path: Path) -> None:
    """Blocks lie on both GPUs, and the states, gathered on the first, equal plain transformers on one."""
    record = a_record(tmp_path / "run", "float32")
    model_folder = str(save_tiny_model(family, tmp_path / "model"))
    job = a_job(LENGTHS, token_budget=128)

    model = load_model(record, model_folder, choose_device("cuda"), gpus=2)
    work = a_computer(record, ForwardPass(model, TAPS, torch.float32)).compute(job, HostBuffer(is_pinned=True))

    assert {"cuda:0", "cuda:1"} == {str(parameter.device) for parameter in model.backbone.parameters()}
    assert not work.faults
    plain = load_plain(model_folder, None, "float32")
    for first, tokens in zip(work.first_rows, work.token_rows, strict=True):
        expected = plain_states(plain, tokens, TAPS)
        for place, tap in enumerate(TAPS):
            found = work.states_TKD[first : first + tokens.size, place].double().numpy()
            assert np.linalg.norm(found - expected[tap]) <= 1e-5 * np.linalg.norm(expected[tap]), (family, tap)
