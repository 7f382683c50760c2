"""Hooks that take what was asked for, and leave nothing behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpu_worker.taps import captured_taps, hidden_of
from hiddenstream.contracts.errors import ModelError

TAPS = ("embedding", "block.0", "block.2")
STATE = torch.arange(12.0).reshape(1, 3, 4)


class Block(nn.Module):
    """A block that adds one, and returns it as its kind does."""

    def __init__(self, wrap=lambda hidden: hidden) -> None:
        super().__init__()
        self._wrap = wrap

    def forward(self, hidden_states):
        return self._wrap(hidden_states + 1)


def refuse_nan(hidden):
    if hidden.isnan().any():
        raise FloatingPointError
    return hidden


def run(blocks, hidden):
    for block in blocks:
        output = block(hidden_states=hidden)
        hidden = output[0] if isinstance(output, tuple) else output
    return hidden


def hooks_of(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("wrap", [lambda hidden: hidden, lambda hidden: (hidden, None)])
def test_taps_are_what_enters_block_0_and_what_blocks_return(wrap):
    """Every requested tap is captured, and no other, whether blocks return a tensor or a tuple."""
    blocks = nn.ModuleList(Block(wrap) for _ in range(4))

    with captured_taps(blocks, TAPS) as captured:
        run(blocks, STATE)

    assert set(TAPS) == set(captured)
    assert [0, 1, 3] == [int((captured[tap] - STATE).mean()) for tap in TAPS]


@pytest.mark.parametrize(
    "output",
    [None, {"hidden_states": STATE}, [STATE], STATE[0], STATE[None], (), (None, STATE), (STATE[None],)],
    ids=["None", "dict", "list", "2-D", "4-D", "empty tuple", "tuple of None", "tuple of 4-D"],
)
def test_a_foreign_output_is_refused(output):
    """What is neither [rows, tokens, width] nor a tuple that begins with it raises an error that names the tap."""
    with pytest.raises(ModelError, match=r"block\.2 of this model"):
        hidden_of(output, "block.2")


def test_a_refusal_inside_the_forward_reaches_the_caller():
    """A block of a foreign kind ends the forward pass with the tap's name, and its hooks are gone."""
    blocks = nn.ModuleList([Block(), Block(lambda hidden: {"hidden": hidden})])

    with pytest.raises(ModelError, match=r"block\.1"), captured_taps(blocks, ("block.1",)):
        run(blocks, STATE)

    assert 0 == hooks_of(blocks)


def test_no_hook_outlives_a_forward_pass():
    """After five jobs, of which one fails, there are as many hooks as before, those of others included."""
    blocks = nn.ModuleList([Block(), Block(), Block(), Block(refuse_nan)])
    blocks[1].register_forward_hook(lambda *_: None)

    for number in range(5):
        try:
            with captured_taps(blocks, TAPS):
                assert 1 + len(TAPS) == hooks_of(blocks)
                run(blocks, STATE if number != 2 else STATE * torch.nan)
        except FloatingPointError:
            assert 2 == number

    assert 1 == hooks_of(blocks)


def test_hooks_that_cannot_all_be_placed_are_taken_back():
    """A tap beyond the last block raises, and leaves no hook on the blocks before it."""
    blocks = nn.ModuleList(Block() for _ in range(2))

    with pytest.raises(IndexError), captured_taps(blocks, TAPS):
        pass

    assert 0 == hooks_of(blocks)


def test_capturing_does_not_change_the_output():
    """A model gives the same with and without capture."""
    blocks = nn.ModuleList(Block() for _ in range(4))

    plain = run(blocks, STATE)
    with captured_taps(blocks, TAPS):
        watched = run(blocks, STATE)

    assert torch.equal(plain, watched)


def test_a_capture_holds_nothing_of_the_one_before():
    """Each capture begins empty."""
    blocks = nn.ModuleList(Block() for _ in range(4))
    with captured_taps(blocks, TAPS) as first:
        run(blocks, STATE)

    with captured_taps(blocks, TAPS) as second:
        pass

    assert {} == second
    assert first.keys() == set(TAPS)


def test_a_block_that_runs_twice_is_refused():
    """A model that runs its blocks in a loop has two outputs of block 0; neither may be stored as block.0."""
    blocks = nn.ModuleList([Block()])

    with pytest.raises(ModelError, match=r"block\.0 is reached more than once"), captured_taps(blocks, ("block.0",)):
        run([*blocks, *blocks], STATE)
