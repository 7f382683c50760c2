"""How a local run spreads its workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.gpu_worker.stub_gpus import build_stub

REFUSING = """
import sys
from hiddenstream.contracts.errors import UsageError
from hiddenstream.local.pipeline import LocalPlan, refuse_more_workers_than_gpus
plan = LocalPlan(workers=int(sys.argv[1]), model="m", device=sys.argv[2], queue_url=None, token_budget=None)
try:
    refuse_more_workers_than_gpus(plan)
except UsageError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("workers", "device", "gpus", "is_refused"),
    [
        (2, "auto", 2, False),
        (3, "auto", 2, True),
        (3, "cuda", 2, True),
        (2, "cuda:1", 2, True),
        (1, "cuda:1", 2, False),
        (3, "cpu", 2, False),
        (3, "auto", 0, False),  # all on the CPU
    ],
)
def test_more_workers_than_gpus_are_refused(workers, device, gpus, is_refused, tmp_path):
    """A worker that could never have a GPU of its own is refused at the start, with the way out."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(build_stub(tmp_path)), "STUB_NVML_GPUS": str(gpus)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)

    told = subprocess.run(
        [sys.executable, "-c", REFUSING, json.dumps(workers), device],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert is_refused == (f"--workers {workers}" in told.stdout)
