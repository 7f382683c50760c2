"""A real small model with a real tokenizer, and plan requests for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaModel, PreTrainedTokenizerFast

from hiddenstream.contracts.run import RunRecord
from hiddenstream.model_reference import ModelReference, resolve_model
from hiddenstream.run_directory.paths import RunPaths
from producer.plan import make_plan
from producer.plan_request import PlanRequest
from tests.conftest import RedisServer
from tests.pipeline.services import Services

PLAIN_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY_ROWS = 300


def save_tokenizer(folder: Path, template: str | None = PLAIN_TEMPLATE) -> None:
    """Write a byte-level tokenizer, whose tokens are single bytes and two control tokens, beside a model."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "h"), ("h", "e")]  # so tokens are more than characters
    vocabulary = {piece: i for i, piece in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", additional_special_tokens=["<|im_start|>", "<|im_end|>"]
    )
    fast.chat_template = template
    fast.save_pretrained(folder)


@pytest.fixture(scope="session")
def bare_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama of 6 blocks without a tokenizer."""
    folder = tmp_path_factory.mktemp("bare-model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY_ROWS,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    LlamaModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def model_with(bare_model_folder: Path, tmp_path: Path) -> Callable[[str | None], Path]:
    """Return a maker of model folders with a tokenizer of the given chat template."""

    def make(template: str | None) -> Path:
        folder = tmp_path / "model-with-tokenizer"
        folder.mkdir()
        for file in bare_model_folder.iterdir():
            (folder / file.name).symlink_to(file)
        save_tokenizer(folder, template)
        return folder

    return make


@pytest.fixture
def model_folder(model_with: Callable[[str | None], Path]) -> Path:
    """The tiny model with a tokenizer and a plain chat template."""
    return model_with(PLAIN_TEMPLATE)


@pytest.fixture(scope="session")
def bare_model(bare_model_folder: Path) -> ModelReference:
    """The tiny model, found."""
    return resolve_model(str(bare_model_folder))


@pytest.fixture
def request_of(tmp_path: Path, bare_model: ModelReference) -> Callable[..., PlanRequest]:
    """Return a maker of plan requests over rows, written as JSON Lines; named fields replace the usual ones."""

    def make(rows: Iterable[Any] = (), **changed: Any) -> PlanRequest:
        data = tmp_path / "data.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        request = PlanRequest(
            run_directory=tmp_path / "run",
            run_name="run",
            model=bare_model,
            taps=("block.1", "block.3"),
            keeps_final=False,
            compute_dtype="float32",
            stored_dtype="float32",
            data=(data,),
            max_length=None,
            over_long="reject",
            token_budget=64,
            shard_bytes=1 << 20,
            is_strict=False,
        )
        return replace(request, **changed)

    return make


@pytest.fixture
def plan_of(request_of: Callable[..., PlanRequest]) -> Callable[..., tuple[RunPaths, RunRecord]]:
    """Return what plans rows at once."""

    def make(rows: Iterable[Any] = (), **changed: Any) -> tuple[RunPaths, RunRecord]:
        request = request_of(rows, **changed)
        record = make_plan(request)
        return RunPaths(request.run_directory), record

    return make


@pytest.fixture
def services(tmp_path: Path, redis_server: RedisServer) -> Iterator[Services]:
    """Real services of one run, started by the test, and ended after it."""
    made = Services(tmp_path, redis_server.url)
    yield made
    made.end()
