"""Shards computed by a real model: what is unsound is left out alone, and the rest is right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import hiddenstream
from gpu_worker.buffers import HostBuffer
from gpu_worker.compute import ShardComputer
from gpu_worker.forward import BatchStates, CastLoss, gathered
from gpu_worker.judge import fault_of
from gpu_worker.recompute import load_plain, plain_states
from gpu_worker.shard_file import finish_shard
from gpu_worker.sink_client import SinkClient
from hiddenstream.contracts.statistics import statistics_from_wire
from hiddenstream.run_directory.ledger import LedgerReader
from tests.gpu_worker.made import a_job, a_planned_run, forward_of, loaded
from tests.sink.harness import a_sink, files_left
from tests.tiny import random_rows, save_tiny_model

RARE = 127  # a token id that only the samples of its tests use
LENGTHS = [3, 17, 1, 9, 9, 30, 2, 12]


class SmallMemory:
    """The real forward pass on a device that holds no more than so many token slots."""

    def __init__(self, real, *, most_slots):
        self._real, self._most_slots, self.cut = real, most_slots, real.cut

    def run(self, rows):
        if len(rows) * max(row.size for row in rows) > self._most_slots:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
        return self._real.run(rows)


def some_rows():
    """Rows of mixed lengths without the rare token."""
    rows = random_rows(LENGTHS)
    return [{**row, "input_ids": [token % RARE for token in row["input_ids"]]} for row in rows]


def with_rare_token(rows, *places):
    """Put the rare token into the middle of some rows."""
    for place in places:
        tokens = rows[place]["input_ids"]
        tokens[len(tokens) // 2] = RARE
    return rows


@pytest.fixture(scope="session")
def poisoned_model(tmp_path_factory):
    """A tiny Llama whose embedding of the rare token is not a number."""
    folder = save_tiny_model("llama", tmp_path_factory.mktemp("poisoned"))
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][RARE, 5] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def compute(paths, *, most_slots=None, wrapped=None, token_budget=None, job_budget=40, beats=None, activities=None):
    """Compute a run's one shard; return its work and what is sent of it."""
    record, job = paths.read_record(), a_job(paths, token_budget=job_budget)
    forward = forward_of(loaded(record), record)
    if most_slots is not None:
        forward = SmallMemory(forward, most_slots=most_slots)
    if wrapped is not None:
        forward = wrapped(forward)
    on_batch = (lambda *_: None) if beats is None else (lambda tokens, slots: beats.append((tokens, slots)))
    on_activity = (lambda _: None) if activities is None else activities.append
    computer = ShardComputer(
        record.identity, forward, token_budget=token_budget, on_batch=on_batch, on_activity=on_activity
    )
    buffer = HostBuffer(is_pinned=False)
    work = computer.compute(job, buffer)
    return work, finish_shard(job, record, work, buffer, made_by={"worker": "w"}, wait_seconds=0.0)


def stored(paths, shard):
    """Have a real sink store a shard; return the run as its reader sees it."""
    with a_sink(paths) as sink:
        outcome = SinkClient(f"http://127.0.0.1:{sink.port}", "run", None).put_shard(0, shard.pieces)
    assert "committed" == outcome
    return hiddenstream.open(paths.root)


def worst_difference(run):
    """Return the largest difference of one value between what is stored and plain transformers."""
    plain = load_plain(run.record.model, None, "float32")
    return max(
        np.abs(expected - sample.states_of(tap)).max()
        for sample in run
        for tap, expected in plain_states(plain, sample.input_ids, sample.taps).items()
    )


def test_a_shard_is_stored_as_plain_transformers_computes_it(tiny_model, tmp_path):
    """A finished shard is accepted by a sink, and every sample reads back as submitted, its states right."""
    rows = some_rows()
    paths = a_planned_run(tmp_path, tiny_model("llama"), rows)

    work, shard = compute(paths)
    run = stored(paths, shard)

    assert {row["id"]: row["input_ids"] for row in rows} == {sample.id: sample.input_ids.tolist() for sample in run}
    assert worst_difference(run) <= 1e-4
    assert (len(rows), sum(LENGTHS), 0) == (shard.facts.samples, shard.facts.tokens, shard.facts.quarantined)
    assert work.batches == shard.facts.batches > 1
    assert sum(LENGTHS) <= work.token_slots


def test_a_sample_of_nan_is_quarantined_alone(poisoned_model, tmp_path):
    """A sample whose states are not finite is left out with tap and token named; its mates are right."""
    rows = with_rare_token(some_rows(), 1, 4)
    paths = a_planned_run(tmp_path, poisoned_model, rows)

    _, shard = compute(paths)
    run = stored(paths, shard)

    assert {"s1", "s4"} == run.quarantined.keys()
    assert {"non_finite"} == {entry.reason for entry in run.quarantined.values()}
    assert "embedding is not finite at token 8" == run.quarantined["s1"].detail
    assert {f"s{n}" for n in range(8)} - {"s1", "s4"} == {sample.id for sample in run}
    assert worst_difference(run) <= 1e-4
    assert 2 == shard.facts.quarantined


def test_padding_of_nan_harms_nobody(tiny_model, tmp_path):
    """Where one token's embedding is not a number, samples that do not use it are right, padding and all."""
    folder = save_tiny_model("llama", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][0] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    rows = [{**row, "input_ids": [token % 126 + 1 for token in row["input_ids"]]} for row in some_rows()]
    paths = a_planned_run(tmp_path, folder, rows)

    run = stored(paths, compute(paths)[1])

    assert len(rows) == len(run)
    assert worst_difference(run) <= 1e-4


def test_states_of_zeros_are_quarantined(tmp_path):
    """A model that computes zeros stores nothing: each sample is left out with the tap named."""
    folder = save_tiny_model("llama", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][:RARE] = 0  # all that these samples use
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    paths = a_planned_run(tmp_path, folder, some_rows(), taps=("block.1",))

    run = stored(paths, compute(paths)[1])

    assert {("all_zero", "block.1 is zero at every token")} == {(q.reason, q.detail) for q in run.quarantined.values()}
    assert len(LENGTHS) == len(run.quarantined)


def test_a_shard_of_quarantined_samples_only_is_stored(poisoned_model, tmp_path):
    """A shard of which nothing is sound is a valid file without rows, so the run ends."""
    rows = with_rare_token(some_rows(), *range(len(LENGTHS)))
    paths = a_planned_run(tmp_path, poisoned_model, rows)

    _, shard = compute(paths)
    run = stored(paths, shard)

    assert 0 == len(run)
    assert len(rows) == len(run.quarantined)
    assert (0, 0) == (shard.facts.samples, shard.facts.tokens)
    assert "shards/000/000000.safetensors" in files_left(paths)


def test_a_batch_that_does_not_fit_is_split(tiny_model, tmp_path):
    """Out of memory halves a batch until it fits; all samples are right, and the splits are counted."""
    beats = []
    paths = a_planned_run(tmp_path, tiny_model("llama"), some_rows())

    work, shard = compute(paths, most_slots=30, job_budget=96, beats=beats)
    run = stored(paths, shard)

    assert len(LENGTHS) == len(run)
    assert worst_difference(run) <= 1e-4
    assert 3 == work.out_of_memory_splits == shard.facts.out_of_memory_splits
    assert work.batches == len(beats)


def test_a_sample_that_never_fits_is_quarantined(tiny_model, tmp_path):
    """One sample larger than the memory is left out with the device's own words; the others are right."""
    paths = a_planned_run(tmp_path, tiny_model("llama"), some_rows())

    _, shard = compute(paths, most_slots=29)
    run = stored(paths, shard)

    assert {"s5": ("out_of_memory", "CUDA out of memory. Tried to allocate 2.00 GiB.")} == {
        sample_id: (entry.reason, entry.detail) for sample_id, entry in run.quarantined.items()
    }
    assert worst_difference(run) <= 1e-4


def test_a_shortage_and_a_fault_in_one_shard(poisoned_model, tmp_path):
    """A sample that does not fit and one that is not finite are each left out for their own reason."""
    paths = a_planned_run(tmp_path, poisoned_model, with_rare_token(some_rows(), 2))

    run = stored(paths, compute(paths, most_slots=29)[1])

    assert {"s5": "out_of_memory", "s2": "non_finite"} == {q.id: q.reason for q in run.quarantined.values()}
    assert worst_difference(run) <= 1e-4


@pytest.mark.parametrize("budget", [1, 20, 40, 10_000])
def test_a_worker_may_go_below_the_plan_s_budget(budget, tiny_model, tmp_path):
    """A worker's lower budget makes more batches, not other states; a sample above it runs all the same."""
    paths = a_planned_run(tmp_path, tiny_model("llama"), some_rows())

    work, shard = compute(paths, token_budget=budget)
    run = stored(paths, shard)

    assert len(LENGTHS) == len(run)
    assert worst_difference(run) <= 1e-4
    assert work.token_slots // work.batches <= max(min(budget, 40), max(LENGTHS))


def some_states(values, loss=None):
    """Return what a forward pass tells of states [N, K, D]."""
    hidden = torch.tensor(values, dtype=torch.float32)
    return BatchStates(
        hidden_NKD=hidden,
        largest_NK=hidden.abs().amax(dim=2),
        means_NK=hidden.mean(dim=2),
        variances_NK=hidden.var(dim=2, correction=0),
        cast_loss=loss and CastLoss(was_finite_NK=torch.tensor(loss[0]), overflowed_NK=torch.tensor(loss[1])),
        token_slots=len(values),
        forward_seconds=0.0,
    )


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("values", "loss", "tokens", "fault"),
    [
        ([[[1.0], [2.0]], [[3.0], [0.0]]], None, [7, 8], None),
        ([[[1.0], [2.0]], [[NAN], [NAN]]], None, [7, 8], ("non_finite", "a is not finite at token 1")),
        ([[[1.0], [float("inf")]], [[2.0], [1.0]]], None, [7, 8], ("non_finite", "b is not finite at token 0")),
        (
            [[[1.0], [INF]], [[2.0], [1.0]]],
            ([[True, True], [True, True]], [[0, 3], [0, 0]]),
            [7, 8],
            ("overflow", "b overflows float32 at token 0; 3 values do in all"),
        ),
        (
            [[[INF], [1.0]], [[2.0], [NAN]]],
            ([[True, True], [True, False]], [[2, 0], [0, 0]]),
            [7, 8],
            ("non_finite", "b is not finite at token 1"),
        ),
        (
            [[[NAN, INF], [1.0, 1.0]], [[2.0, 1.0], [2.0, 1.0]]],
            ([[False, True], [True, True]], [[1, 0], [0, 0]]),
            [7, 8],
            ("non_finite", "a is not finite at token 0"),
        ),
        ([[[1.0], [0.0]], [[2.0], [0.0]]], None, [7, 8], ("all_zero", "b is zero at every token")),
        ([[[1.0], [5.0]], [[2.0], [5.0]]], None, [7, 8], ("constant", "b is the same at every token")),
        ([[[1.0], [5.0]], [[1.0], [5.0]]], None, [7, 7], None),
        ([[[1.0, 2.0], [5.0, 6.0]], [[3.0, 2.0], [6.0, 5.0]]], None, [7, 8], None),
        ([[[1.0], [5.0]]], None, [7], None),
    ],
)
def test_states_are_judged_token_by_token(values, loss, tokens, fault):
    """The shallowest tap and its first token are named; a state that the model got wrong is told before an overflow."""
    found = fault_of(some_states(values, loss), 0, np.array(tokens, np.int32), ("a", "b"))

    assert fault == (found and (found.reason, found.detail))


def test_the_statistics_are_those_of_what_is_stored(poisoned_model, tmp_path):
    """Each tap's figures are those of the stored states alone, also in the ledger: what is left out spoils none."""
    paths = a_planned_run(tmp_path, poisoned_model, with_rare_token(some_rows(), 2))

    _, shard = compute(paths)
    run = stored(paths, shard)

    assert 1 == len(run.quarantined)
    ledger = LedgerReader(paths.ledger)
    (commit,) = ledger.poll()
    told = statistics_from_wire(commit.made_by["statistics"])
    assert set(run.record.identity.taps) == set(told)
    assert told == statistics_from_wire(shard.facts.statistics)
    for tap, found in told.items():
        values = np.concatenate([sample.states_of(tap) for sample in run]).astype(np.float64)
        expected = (values.size, values.mean(), np.square(values - values.mean()).sum(), np.abs(values).max())
        assert expected == pytest.approx((found.count, found.mean, found.m2, found.largest), rel=1e-4, abs=1e-6)
        assert np.sqrt(np.mean(values**2)) == pytest.approx(found.rms, rel=1e-5)


def test_a_shard_without_sound_samples_has_no_statistics(poisoned_model, tmp_path):
    """Where nothing is stored there is no figure, rather than one that is no number."""
    paths = a_planned_run(tmp_path, poisoned_model, with_rare_token(some_rows(), *range(len(LENGTHS))))

    _, shard = compute(paths)

    assert {} == shard.facts.statistics


def test_mates_of_an_unsound_sample_are_run_again_alone(poisoned_model, tmp_path):
    """A batch with a fault is stored from passes of one sample each; only the faulty sample is left out."""
    paths = a_planned_run(tmp_path, poisoned_model, with_rare_token(some_rows(), 2))
    beats = []

    _, shard = compute(paths, beats=beats, job_budget=1000)
    run = stored(paths, shard)

    assert sorted([sum(LENGTHS), *LENGTHS]) == sorted(tokens for tokens, _ in beats)
    assert ["s2"] == list(run.quarantined)
    assert worst_difference(run) <= 1e-5


def test_a_narrow_stored_dtype_that_overflows_is_told_from_nan(tmp_path):
    """A state that float16 cannot hold leaves its sample out as an overflow, with the number of values."""
    folder = save_tiny_model("llama", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][RARE, :3] = 1e6
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    rows = with_rare_token(some_rows(), 5)
    paths = a_planned_run(tmp_path, folder, rows, taps=("embedding", "block.1"), stored_dtype="float16")

    _, shard = compute(paths)
    run = stored(paths, shard)

    (entry,) = run.quarantined.values()
    assert ("s5", "overflow") == (entry.id, entry.reason)
    assert "embedding overflows float16 at token 15; 6 values do in all" == entry.detail
    assert 6 == shard.facts.overflowed_values
    assert len(LENGTHS) - 1 == len(run)


def test_a_nan_beside_an_overflow_is_a_nan(tmp_path):
    """A wider stored dtype would not help such a sample, so it is not told as an overflow, nor counted as one."""
    folder = save_tiny_model("llama", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][RARE, :3] = 1e6
    weights["model.embed_tokens.weight"][RARE - 1, 5] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    rows = [{"id": "s0", "input_ids": [3, RARE, RARE - 1]}, {"id": "s1", "input_ids": [4, 5]}]
    paths = a_planned_run(tmp_path, folder, rows, stored_dtype="float16")

    work, shard = compute(paths)

    assert [("s0", "non_finite", "embedding is not finite at token 2")] == [
        (fault.id, fault.reason, fault.detail) for fault in work.faults.values()
    ]
    assert 0 == shard.facts.overflowed_values


def test_statistics_beyond_float32_are_left_out(tmp_path):
    """States so large that their squares are no float32 are stored, and what is told of them stays JSON."""
    folder = save_tiny_model("llama", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][RARE, 5] = 1e30
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    paths = a_planned_run(tmp_path, folder, with_rare_token(some_rows(), 2), taps=("embedding",))

    _, shard = compute(paths)
    run = stored(paths, shard)

    assert len(LENGTHS) == len(run)
    assert {} == shard.facts.statistics
    assert b"Infinity" not in bytes(shard.pieces[0])


class Leaky:
    """The real forward pass, but where there are mates the last sample has a NaN and the others are a bit off."""

    def __init__(self, real):
        self._real, self.cut = real, real.cut

    @torch.inference_mode()
    def run(self, rows):
        states = self._real.run(rows)
        if len(rows) > 1:
            states.hidden_NKD[: -rows[-1].size] += 1  # wrong, and finite: no check sees it
            states.largest_NK[-1, 0] = torch.nan
        return states


def test_a_sound_looking_mate_of_a_fault_is_not_believed(tiny_model, tmp_path):
    """Where a batch has a fault, samples that look sound in it are computed alone, so they are right."""
    paths = a_planned_run(tmp_path, tiny_model("llama"), some_rows())

    work, shard = compute(paths, wrapped=Leaky)
    run = stored(paths, shard)

    assert {} == work.faults
    assert worst_difference(run) <= 1e-4


def test_a_constant_tap_is_left_out(tmp_path):
    """A model whose embedding is the same for every token stores no sample of two different tokens."""
    folder = save_tiny_model("gpt2", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    for name in ("transformer.wte.weight", "transformer.wpe.weight"):
        weights[name][:] = weights[name][0]
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    paths = a_planned_run(tmp_path, folder, some_rows(), taps=("embedding",))

    _, shard = compute(paths)
    run = stored(paths, shard)

    assert {"constant"} == {entry.reason for entry in run.quarantined.values()}
    assert {1} == {sample.input_ids.size for sample in run}


def test_batches_and_activities_are_told(tiny_model, tmp_path):
    """Each batch is told with its tokens and slots, after a forward pass, a copy and a check."""
    beats, activities = [], []
    paths = a_planned_run(tmp_path, tiny_model("llama"), some_rows())

    work, _ = compute(paths, beats=beats, activities=activities)

    assert ["forward", "copy", "check"] * len(beats) == activities
    assert sum(LENGTHS) == sum(tokens for tokens, _ in beats)
    assert work.token_slots == sum(slots for _, slots in beats)


def test_taps_are_gathered_by_their_real_tokens():
    """Gathering leaves the padding out and keeps the order of taps; without slots nothing is padding."""
    taps_BTD = [torch.arange(24, dtype=torch.float32).view(2, 3, 4) + 100 * tap for tap in range(2)]

    first, second = gathered(taps_BTD, torch.tensor([0, 3, 4]))

    assert [0, 12, 16] == first[:, 0].tolist()
    assert [100, 112, 116] == second[:, 0].tolist()
    assert [0, 4, 8, 12, 16, 20] == gathered(taps_BTD, None)[0][:, 0].tolist()
