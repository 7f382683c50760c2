"""Packing keeps samples apart: attention, windows, sinks, convolutions, delta rules; here without a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from gpu_worker.fresh_state import FreshState
from gpu_worker.packed_attention import packed_attention
from gpu_worker.packing import PackingUnsupported, Segments, current_segments, packed
from gpu_worker.taps import captured_taps
from gpu_worker.ways import BatchRunner
from tests.gpu_worker.made import CPU, token_rows
from tests.tiny import save_tiny_model

LENGTHS = [9, 1, 30, 2, 17, 9, 1]
TAPS = ("embedding", "block.0", "block.4")


def a_backbone(family: str, folder):
    """Return a tiny backbone in eval mode."""
    return AutoModelForCausalLM.from_pretrained(save_tiny_model(family, folder)).base_model.eval()


def states(backbone, way: str, rows):
    """Return each row's taps, [S, K, D], from one batch in *way*."""
    runner = BatchRunner(backbone, CPU, way, FreshState(backbone))
    with torch.inference_mode(), captured_taps(backbone.layers, TAPS) as captured:
        runner.run(rows)
    places = runner.slices_of([row.size for row in rows])
    return [torch.stack([captured[tap][place][0] for tap in TAPS], dim=1) for place in places]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "qwen3_5_text"])
def test_a_pack_gives_what_each_sample_gives_alone(family, tmp_path):
    """Full and windowed attention, capped scores, a short convolution and the delta rule: none sees a neighbour."""
    backbone = a_backbone(family, tmp_path)
    rows = token_rows(LENGTHS)

    together = states(backbone, "packed", rows)

    for row, found in zip(rows, together, strict=True):
        (alone,) = states(backbone, "one_at_a_time", [row])
        assert torch.allclose(alone, found, atol=2e-5, rtol=1e-5), row.size


def plain_attention(query, key, value, *, window, sinks):
    """Return what the definition says for one sample: [S, H, E], a loop over heads and tokens."""
    heads, tokens, size = query.shape
    output = torch.zeros(tokens, heads, size)
    for head in range(heads):
        for token in range(tokens):
            seen = range(max(0, token - window + 1), token + 1)
            scores = torch.stack([query[head, token] @ key[head // 2, other] * 0.25 for other in seen])
            weights = torch.softmax(torch.cat([scores, sinks[head][None]]), dim=0)[:-1]
            output[token, head] = sum(w * value[head // 2, other] for w, other in zip(weights, seen, strict=True))
    return output


def test_windows_sinks_and_grouped_heads_are_kept():
    """Each sample attends as the formula says: a window of 4 that counts the token itself, a sink logit per head."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 12, 8), torch.randn(1, 2, 12, 8), torch.randn(1, 2, 12, 8)
    sinks = torch.randn(4)

    with packed(Segments.of([7, 5], CPU)):
        found, _ = packed_attention(
            nn.Module(), query, key, value, attention_mask=None, scaling=0.25, sliding_window=4, s_aux=sinks
        )

    for begin, end in ((0, 7), (7, 12)):
        pieces = (x[0, :, begin:end] for x in (query, key, value))
        assert torch.allclose(plain_attention(*pieces, window=4, sinks=sinks), found[0, begin:end], atol=1e-6)


def test_attention_that_looks_ahead_cannot_be_packed():
    """An encoder's attention is refused by what it says of itself."""
    layer = nn.Module()
    layer.is_causal = False
    tensors = [torch.randn(1, 2, 4, 8) for _ in range(3)]

    with packed(Segments.of([4], CPU)), pytest.raises(PackingUnsupported, match="looks ahead"):
        packed_attention(layer, *tensors, None)


def test_packed_attention_outside_of_a_pack_is_an_error():
    """Without boundaries it would attend over everything."""
    tensors = [torch.randn(1, 2, 4, 8) for _ in range(3)]

    with pytest.raises(PackingUnsupported, match="something else than the pack's tokens"):
        packed_attention(nn.Module(), *tensors, None)


def test_a_family_with_attention_of_its_own_cannot_be_packed(tmp_path):
    """Falcon does not ask transformers' interface, and says so before anything is computed."""
    backbone = AutoModelForCausalLM.from_pretrained(save_tiny_model("falcon", tmp_path)).base_model
    runner = BatchRunner(backbone, CPU, "packed", FreshState(backbone))

    with pytest.raises(PackingUnsupported, match="computes attention by itself"):
        runner.run(token_rows([3, 4]))


def test_a_failed_pass_leaves_nothing_behind(tmp_path):
    """After an error inside a pack there are no boundaries, and the model has its own attention again."""
    backbone = a_backbone("qwen3_5_text", tmp_path)
    own = backbone.config._attn_implementation
    rows = token_rows([5, 6])
    before = states(backbone, "padded", rows)
    rows[1][2] = 10**6  # no such token

    with pytest.raises(IndexError):
        BatchRunner(backbone, CPU, "packed", FreshState(backbone)).run(rows)

    assert current_segments() is None
    assert own == backbone.config._attn_implementation
    assert all(map(torch.equal, before, states(backbone, "padded", token_rows([5, 6]))))


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("packed", [(0, 3), (3, 4), (4, 5)]),
        ("padded", [(0, 2), (2, 4), (4, 5)]),
        ("equal_lengths", [(0, 2), (2, 3), (3, 4), (4, 5)]),
        ("one_at_a_time", [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
    ],
)
def test_batches_are_cut_by_what_a_way_costs(way, expected, tmp_path):
    """Packed batches count tokens, padded ones rows times longest, and every sample is in one of them."""
    backbone = a_backbone("llama", tmp_path)
    runner = BatchRunner(backbone, CPU, way, FreshState(backbone))

    batches = [(batch.start, batch.stop) for batch in runner.cut([4, 4, 2, 5, 99], max_token_slots=10)]

    assert expected == batches
