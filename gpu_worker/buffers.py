"""Host memory for the states of shards in flight: a few buffers, reused, and no more.

Taking a buffer blocks while all are in use, which is how a slow sink holds the GPU back.
"""

from __future__ import annotations

import queue

import torch
from torch import Tensor


class HostBuffer:
    """One reusable piece of host memory, page-locked where the device is CUDA."""

    def __init__(self, *, is_pinned: bool) -> None:
        self._is_pinned = is_pinned
        self._memory = torch.empty(0, dtype=torch.uint8)

    def shaped(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the buffer's beginning as a tensor; grows the memory if it must. Old contents are not kept."""
        size = dtype.itemsize
        for length in shape:
            size *= length
        if self._memory.numel() < size:
            self._memory = torch.empty(0, dtype=torch.uint8)  # let go before taking more
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=self._is_pinned)
        return self._memory[:size].view(dtype).view(shape)

    def bytes(self, size: int) -> memoryview:
        """Return the first *size* bytes, not copied."""
        return self._memory[:size].numpy().data


class HostBuffers:
    """A fixed number of buffers."""

    def __init__(self, count: int, *, is_pinned: bool) -> None:
        self._free: queue.LifoQueue[HostBuffer] = queue.LifoQueue()
        self.count = count
        for _ in range(count):
            self._free.put(HostBuffer(is_pinned=is_pinned))

    def take(self) -> HostBuffer:
        """Return a free buffer; waits for one."""
        return self._free.get()

    def give_back(self, buffer: HostBuffer) -> None:
        """Return *buffer* for reuse."""
        self._free.put(buffer)

    def wait_until_all_are_free(self) -> None:
        """Wait until nothing is in flight."""
        for buffer in [self.take() for _ in range(self.count)]:
            self.give_back(buffer)
