"""How far the stored states of real conversations are from plain transformers, through the whole pipeline.

    python -m bench.smollm2 [--conversations 100] [--max-length 512] [--dtype float32] [--folder runs/smollm2]

Runs `hiddenstream run` with SmolLM2-135M over real conversations and compares every stored state with plain
transformers run on that conversation alone, in the same dtype. float32: the largest difference of one value, relative
to the root mean square of its sample's tap; 1e-4 is allowed. bfloat16: the largest relative L2 of a sample's tap; 1e-2
is allowed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import hiddenstream
from demo.prepare import prepare
from gpu_worker.plain import load_plain, plain_states

ALLOWED = {"float32": 1e-4, "bfloat16": 1e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How many samples and tokens were compared, and the largest difference."""

    samples: int
    tokens: int
    difference: float


def run_pipeline(folder: Path, dtype: str, *, conversations: int, max_length: int) -> Path:
    """Run the whole pipeline as a user would; return the run directory."""
    prepare(folder / "inputs", conversations=conversations)
    run = folder / f"run-{dtype}"
    shutil.rmtree(run, ignore_errors=True)
    what = ["--model", f"{folder}/inputs/model", "--data", f"{folder}/inputs/conversations.jsonl", "--dtype", dtype]
    how = ["--max-length", str(max_length), "--over-long", "truncate", "--token-budget", "2048", "--device", "cpu"]
    command = [
        sys.executable,
        "-m",
        "hiddenstream.cli",
        "run",
        str(run),
        *what,
        *how,
        "--layers",
        "dflash:5",
        "--final",
    ]
    subprocess.run([*command, "--status-listen", "127.0.0.1:0"], check=True)
    return run


def compare(run_directory: Path, dtype: str) -> Comparison:
    """Compare every stored state with plain transformers."""
    run = hiddenstream.open(run_directory)
    plain = load_plain(run.record.model, None, dtype)
    worst, tokens = 0.0, 0
    for sample in run:
        tokens += sample.input_ids.size
        for tap, expected in plain_states(plain, sample.input_ids, sample.taps).items():
            difference = np.asarray(sample.states_of(tap)).astype(np.float64) - expected
            if dtype == "float32":
                worst = np.maximum(worst, float(np.abs(difference).max() / np.sqrt(np.square(expected).mean())))
            else:
                worst = np.maximum(worst, float(np.linalg.norm(difference) / np.linalg.norm(expected)))
    return Comparison(samples=len(run), tokens=tokens, difference=worst if np.isfinite(worst) else float("inf"))


def main() -> None:
    """Print the largest difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=100)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--dtype", default="float32", choices=sorted(ALLOWED))
    parser.add_argument("--folder", type=Path, default=Path("runs/smollm2"))
    asked = parser.parse_args()
    run = run_pipeline(asked.folder, asked.dtype, conversations=asked.conversations, max_length=asked.max_length)
    found = compare(run, asked.dtype)
    assert found.samples == asked.conversations, f"{found.samples} of {asked.conversations} conversations are stored"
    print(
        f"{asked.dtype}: {found.samples} conversations, {found.tokens:,} tokens: largest difference"
        f" {found.difference:.1e}, {ALLOWED[asked.dtype]:.0e} is allowed"
    )


if __name__ == "__main__":
    main()
