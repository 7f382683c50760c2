"""How a local run spreads its workers."""

from __future__ import annotations

import pytest

from hiddenstream.local.pipeline import gpu_of, visible_gpus


@pytest.mark.parametrize(
    ("chosen", "expected"), [("0,2", ["0", "2"]), ("GPU-a, GPU-b", ["GPU-a", "GPU-b"]), ("", []), ("3", ["3"])]
)
def test_the_chosen_gpus_are_used(chosen, expected):
    """CUDA_VISIBLE_DEVICES decides which GPUs a local run has, in its order."""
    assert expected == visible_gpus({"CUDA_VISIBLE_DEVICES": chosen})


def test_each_worker_has_a_gpu_of_its_own():
    """Workers take the GPUs in turn; services that need none get none."""
    given = [gpu_of(f"worker-{number}", ["4", "7"]) for number in range(3)]

    assert [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in ("4", "7", "4")] == given
    assert {} == gpu_of("sink", ["4", "7"])
    assert {} == gpu_of("worker-0", [])
