"""Which way of batching each family of models gets, and how far its states are from plain transformers'.

    python -m bench.zoo [--dtype float32] [--folder runs/zoo] [NAME ...] > float32-cpu.jsonl
    python -m bench.zoo --dtype bfloat16 --folder runs/zoo > bfloat16-cuda.jsonl
    python -m bench.zoo --table float32-cpu.jsonl bfloat16-cuda.jsonl > docs/models.md

Every model of bench/zoo_models.py is saved, loaded and gated as a worker does, and run over samples of mixed lengths in
the way that its canary chose. In float32 its states are compared with plain transformers run on each sample alone, in
float32 on the CPU: 1e-4 is allowed, rounding gives 1e-6 to 2e-5, a leak 0.1 and more. In half precision the error
against that oracle is told as a multiple of the error that the sample has when plain transformers runs it alone in the
same dtype. The oracle's states are kept in the folder, and made where there are none yet; make them in float32 first.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bench.zoo_models import BLOCKS, MODELS, VOCABULARY, WIDTH, save_model
from gpu_worker.exact_float32 import make_float32_exact
from gpu_worker.forward import ForwardPass
from gpu_worker.model import TORCH_DTYPES, choose_device, load_model
from gpu_worker.plain import load_plain, plain_states
from hiddenstream.contracts.errors import ModelError
from tests.factories import a_run

HEAD = """\
# Models, and how their samples are batched

Tiny random models of each family (four blocks, width 64, weights enlarged so that a leak shows), saved, loaded and
gated as a worker does, and run over samples of 1 to 90 tokens in the way that the check at the start chose
([0011](decisions/0011-the-way-of-batching-is-found-out.md)). Made by `python -m bench.zoo`, with

VERSIONS

float32: the way, and the largest difference of one value from plain transformers, each sample alone, float32 on the
CPU; 1e-4 is allowed. Half precision: the way, and the error against that oracle as a multiple of the error that plain
transformers has when it runs each sample alone in the same dtype: the median over tokens of a token's relative error,
the worst of three taps. Where the root mean square is over 1.2 times as large it is told, too, with the tokens that are
wrong by more than ten times the median: in mixtures of experts two experts may tie, then rounding decides, in either
way, and later tokens of the sample follow.

Which way a model gets depends on its configuration, not on its family alone: a worker finds out for the model that it
has loaded, and says so in its log. "not there": that transformers does not know the family, or cannot run it in that
dtype itself (`xlstm`).

"""
TAPS = ("embedding", "block.0", "block.2")
LENGTHS = (40, 9, 1, 33, 7, 64, 65, 2, 17, 17, 90)
TOKEN_BUDGET = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one model.

    Attributes:
        way: of batching; empty where it was refused.
        difference: float32: largest difference of one value from the oracle. Half precision: the largest ratio, over
            taps, of our error against the oracle to the error of plain transformers alone in the same dtype; of a
            token's relative error, the median over tokens.
        rms_ratio: the same of the root mean square over tokens, which a single token decides where an expert's router
            jumps; 0 in float32.
        jumps: how many tokens of some tap are wrong by more than ten times the median, in our way and alone.
        refused: why the model, or each faster way, was not taken.
        versions: of torch and transformers.
    """

    name: str
    device: str
    dtype: str
    way: str
    difference: float
    rms_ratio: float
    jumps: tuple[int, int]
    refused: str
    versions: str


def verdict(name: str, dtype: str, folder: Path) -> Verdict:
    """Run one model as a worker does and compare it; *folder* holds what can be used again."""
    device = choose_device("auto")
    model = folder / name / "model"
    if not model.exists():
        save_model(name, model)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    say = {"name": name, "device": _device_name(device), "dtype": dtype, "versions": versions}
    rows = [np.random.default_rng(n).integers(3, VOCABULARY, n).astype(np.int32) for n in LENGTHS]
    try:
        with tempfile.TemporaryDirectory() as run:
            loaded = load_model(_record(Path(run) / "run", dtype), str(model), device)
    except ModelError as error:
        return Verdict(**say, way="", difference=0.0, rms_ratio=0.0, jumps=(0, 0), refused=_short(str(error)))
    found = _in_its_way(ForwardPass(loaded, TAPS, TORCH_DTYPES[dtype]), rows)
    oracle = _oracle(folder / name, model, rows)
    difference, rms_ratio, jumps = _largest(found, oracle), 0.0, (0, 0)
    if dtype != "float32":
        difference, rms_ratio, jumps = _ratios(found, _alone(model, dtype, rows), oracle)
    refused = "; ".join(f"{way}: {_short(reason)}" for way, reason in loaded.gate.refused.items())
    return Verdict(**say, way=loaded.gate.way, difference=difference, rms_ratio=rms_ratio, jumps=jumps, refused=refused)


def _record(folder: Path, dtype: str) -> Any:
    record = a_run(folder, [[1]]).read_record()
    identity = replace(record.identity, taps=TAPS, hidden_size=WIDTH, compute_dtype=dtype, stored_dtype=dtype)
    settings = replace(record.settings, token_budget=TOKEN_BUDGET)
    return replace(record, num_blocks=BLOCKS, longest_tokens=max(LENGTHS), identity=identity, settings=settings)


def _in_its_way(forward: ForwardPass, rows: list[Any]) -> list[Any]:
    states: list[Any] = []
    for batch in forward.cut([row.size for row in rows], max_token_slots=TOKEN_BUDGET):
        part = [rows[place] for place in batch]
        hidden = forward.run(part).hidden_NKD.double().cpu().numpy()
        states += np.split(hidden, np.cumsum([row.size for row in part])[:-1])
    return states


def _alone(model: Path, dtype: str, rows: list[Any]) -> list[Any]:
    return _plain(load_plain(str(model), None, dtype), rows)


def _plain(plain: Any, rows: list[Any]) -> list[Any]:
    """Return each sample's states, float64 [S, K, D], run alone."""
    by_tap = [plain_states(plain, row, TAPS) for row in rows]
    return [np.stack([states[tap] for tap in TAPS], axis=1) for states in by_tap]


def _oracle(folder: Path, model: Path, rows: list[Any]) -> list[Any]:
    file = folder / "oracle.npz"
    if not file.exists():
        np.savez(file, *_plain(load_plain(str(model), None, "float32", device="cpu"), rows))
    with np.load(file) as kept:
        return [kept[name] for name in kept.files]


def _largest(found: list[Any], oracle: list[Any]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(found, oracle, strict=True))


def _ratios(found: list[Any], alone: list[Any], oracle: list[Any]) -> tuple[float, float, tuple[int, int]]:
    """Compare the tokens' relative errors, [tokens, taps], with those that they have alone."""
    exact = np.concatenate(oracle)
    norms = np.linalg.norm(exact, axis=2)
    ours, theirs = (np.linalg.norm(np.concatenate(states) - exact, axis=2) / norms for states in (found, alone))
    medians = _ratio(np.median(ours, axis=0), np.median(theirs, axis=0))
    means = _ratio(np.sqrt(np.square(ours).mean(axis=0)), np.sqrt(np.square(theirs).mean(axis=0)))
    is_jump = [(errors > 10 * np.median(theirs, axis=0)).any(axis=1) for errors in (ours, theirs)]
    return medians, means, (int(is_jump[0].sum()), int(is_jump[1].sum()))


def _ratio(ours: Any, theirs: Any) -> float:
    """Return the largest ratio over taps; what is exact alone must be exact."""
    return float(np.where(theirs > 0, ours / np.maximum(theirs, 1e-30), np.where(ours > 0, np.inf, 1.0)).max())


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _short(reason: str) -> str:
    first, _, rest = reason.partition(": ")
    return (rest if first.startswith("--model") else reason).split("; its files")[0][:200]


def table(files: list[Path]) -> str:
    """Return docs/models.md: a row for each model, a column for each file of verdicts."""
    columns = [[Verdict(**json.loads(line)) for line in file.read_text().splitlines()] for file in files]
    heads = [f"{column[0].dtype}, {column[0].device}" for column in columns]
    made_with = [f"- {head}: {column[0].versions}" for head, column in zip(heads, columns, strict=True)]
    by_name = [{verdict.name: verdict for verdict in column} for column in columns]
    lines = ["| model | " + " | ".join(heads) + " | why not, or why no faster way |", "| --- " * (len(heads) + 2) + "|"]
    for name in sorted({name for column in by_name for name in column}):
        told = [column.get(name) for column in by_name]
        reasons = {verdict.refused for verdict in told if verdict is not None and verdict.refused}
        lines.append(f"| `{name}` | {' | '.join(map(_cell, told))} | {'<br>'.join(sorted(reasons))} |")
    return HEAD.replace("VERSIONS", "\n".join(made_with)) + "\n".join(lines) + "\n"


def _cell(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not there"
    if not verdict.way:
        return "refused"
    if verdict.dtype == "float32":
        return f"{verdict.way}, {verdict.difference:.0e}"
    told = f"{verdict.way}, x {verdict.difference:.2f}"
    if verdict.rms_ratio <= 1.2:
        return told
    ours, theirs = verdict.jumps
    return f"{told} (root mean square x {verdict.rms_ratio:.1f}: {ours} tokens jump, {theirs} do alone)"


def main() -> None:
    """Print a line of JSON for each model, or the table of what was printed before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=sorted(TORCH_DTYPES))
    parser.add_argument("--folder", type=Path, default=Path("runs/zoo"), help="where models and oracle are kept")
    parser.add_argument("--part", default="0/1", help="I/N: every Nth model, from the Ith on, to share the work")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE", help="print docs/models.md of these")
    parser.add_argument("names", nargs="*", metavar="NAME")
    settings = parser.parse_args()
    if settings.table:
        print(table(settings.table), end="")
        return
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    make_float32_exact(settings.dtype)
    place, parts = map(int, settings.part.split("/"))
    for name in (settings.names or MODELS)[place::parts]:
        try:
            found = verdict(name, settings.dtype, settings.folder)
        except Exception as error:  # noqa: BLE001 - one model must not end the table
            print(f"{name}: {error!r}", file=sys.stderr)
            continue
        print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
