"""Every model of the zoo gives what plain transformers gives, or is refused with a reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.zoo_models import BLOCKS, MODELS, WIDTH, save_model
from gpu_worker.batching import padded_batch
from gpu_worker.model import _load
from gpu_worker.plain import load_plain, plain_states
from gpu_worker.taps import captured_taps
from hiddenstream.contracts.errors import ModelError
from tests.factories import a_run
from tests.gpu_worker.made import CPU, token_rows

TAPS = ("embedding", "block.0", "block.2")
ROWS = token_rows([9, 1, 40])  # past every window, and past the zoo's original lengths of 32
REFUSED = {
    "gemma3n_text": "embedding of this model is a tensor of shape",  # four streams instead of one
    "longcat_flash": "0 lists of 4 blocks",  # its blocks are halves of what its configuration counts
    "dory": "is reached more than once",  # runs its blocks in a loop
}
SEE_THE_LONGEST = {"llama+dynamic-rope", "phi3+longrope"}  # so they are right alone, not in company


def states_of(folder, tmp_path):
    """Load a model as a worker does and return each row's states, computed as one padded batch without a mask."""
    record = a_run(tmp_path / "run", [[1]]).read_record()
    record = replace(record, num_blocks=BLOCKS, identity=replace(record.identity, taps=TAPS, hidden_size=WIDTH))
    backbone, blocks = _load(record, str(folder), {"device_map": {"": CPU}}, keep=3)
    assert 3 == len(blocks)

    @torch.inference_mode()
    def run(rows):
        with captured_taps(blocks, TAPS) as captured:
            backbone(input_ids=padded_batch(rows, CPU), use_cache=False)
        return [{tap: captured[tap][n, : row.size].double().numpy() for tap in TAPS} for n, row in enumerate(rows)]

    return run


def worst_difference(found, expected):
    return max(np.abs(one[tap] - other[tap]).max() for one, other in zip(found, expected, strict=True) for tap in TAPS)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in REFUSED])
def test_states_equal_plain_transformers(name, tmp_path):
    """Padded, in company, cut behind the last tap: each sample is as it is alone in the whole model."""
    folder = save_model(name, tmp_path / "model")
    plain = load_plain(str(folder), None, "float32")
    expected = [plain_states(plain, row, TAPS) for row in ROWS]
    run = states_of(folder, tmp_path)

    alone, together = [run([row])[0] for row in ROWS], run(ROWS)

    assert worst_difference(alone, expected) <= 1e-4
    assert (name in SEE_THE_LONGEST) == (worst_difference(together, expected) > 1e-2)
    assert name in SEE_THE_LONGEST or worst_difference(together, expected) <= 1e-4


@pytest.mark.parametrize("name", [name for name in REFUSED if name in MODELS])
def test_what_cannot_be_stored_is_refused(name, tmp_path):
    """The reason is said at the first forward pass at the latest."""
    folder = save_model(name, tmp_path / "model")

    with pytest.raises(ModelError, match=REFUSED[name]):
        states_of(folder, tmp_path)(ROWS)


def test_the_zoo_is_large():
    """It has 64 families at the least, and every one is known to the installed transformers."""
    assert 64 <= len({name.split("+")[0] for name in MODELS})
