"""Host memory that is used again, and bounds what is in flight."""

from __future__ import annotations

import threading

import pytest
import torch

from gpu_worker.buffers import HostBuffer, HostBuffers
from tests.conftest import wait_until


def test_a_buffer_is_used_again():
    """A smaller shard lies in the memory of a larger one, whatever its dtype."""
    buffer = HostBuffer(is_pinned=False)

    first = buffer.shaped((8, 2, 4), torch.float32)
    second = buffer.shaped((3, 2, 4), torch.bfloat16)

    assert first.data_ptr() == second.data_ptr()
    assert ((3, 2, 4), torch.bfloat16) == (tuple(second.shape), second.dtype)


def test_a_buffer_grows():
    """A larger shard gets all the memory it needs."""
    buffer = HostBuffer(is_pinned=False)
    buffer.shaped((1, 1, 1), torch.float32)

    states = buffer.shaped((100, 2, 8), torch.float32).fill_(1.5)

    assert states.numpy().tobytes() == bytes(buffer.bytes(states.numel() * 4))


def test_the_bytes_are_not_copied():
    """What is written to the tensor later is seen in the bytes: they are one memory."""
    buffer = HostBuffer(is_pinned=False)
    states = buffer.shaped((2, 1, 2), torch.float32).zero_()

    seen = buffer.bytes(16)
    states.fill_(1.0)

    assert [1.0] * 4 == list(seen.cast("B").cast("f"))


@pytest.mark.parametrize("shape", [(0, 3, 64), (1, 1, 1)])
def test_an_empty_shard_has_a_shape_too(shape):
    """A shard without rows is a tensor of no bytes."""
    buffer = HostBuffer(is_pinned=False)

    states = buffer.shaped(shape, torch.float32)

    assert shape == tuple(states.shape)
    assert states.numel() * 4 == len(buffer.bytes(states.numel() * 4))


def test_taking_waits_for_a_free_buffer():
    """Where all buffers are in use, the next taker waits until one is given back, and gets that one."""
    buffers = HostBuffers(2, is_pinned=False)
    held = [buffers.take(), buffers.take()]
    got = []
    taker = threading.Thread(target=lambda: got.append(buffers.take()), daemon=True)
    taker.start()
    taker.join(timeout=0.05)
    assert [] == got

    buffers.give_back(held[1])

    wait_until(lambda: got)
    assert got[0] is held[1]


def test_all_are_free_once_the_last_is_given_back():
    """Waiting for all ends with the last buffer's return, and takes none away."""
    buffers = HostBuffers(2, is_pinned=False)
    held = buffers.take()
    waiting = threading.Thread(target=buffers.wait_until_all_are_free, daemon=True)
    waiting.start()
    waiting.join(timeout=0.05)
    assert waiting.is_alive()

    buffers.give_back(held)

    wait_until(lambda: not waiting.is_alive())
    assert buffers.take() is not buffers.take()
