"""Which model a run means: found, measured by its configuration, and named by its content. No torch here."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from hiddenstream.contracts.errors import ModelError

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SNAPSHOT = re.compile(r"/models--[^/]+/snapshots/([0-9a-f]{40})(?:/|$)")
_READ_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReference:
    """A model, found.

    Attributes:
        name: path or hub id, as given.
        revision: resolved revision of a hub model; None for a local one.
        digest: the revision as ``hub:...``, or the digest of a local model's configuration and weights.
        num_blocks: decoder blocks of its text backbone.
        hidden_size: width of a block's output.
        vocabulary_rows: rows of its embedding; token ids are below it.
        max_positions: longest sample it was made for, or None where its configuration names none.
    """

    name: str
    revision: str | None
    digest: str
    num_blocks: int
    hidden_size: int
    vocabulary_rows: int
    max_positions: int | None


def resolve_model(name: str, revision: str | None = None) -> ModelReference:
    """Find a model and name its content; reads a local model's weights once.

    Args:
        name: a folder with ``config.json`` and weights, or an id on the hub.
        revision: branch, tag or commit of a hub model.

    Raises:
        ModelError: no such model, or a configuration that names no blocks, width or vocabulary.
    """
    from transformers import AutoConfig  # takes a second to import

    if Path(name).is_dir():
        name = str(Path(name).absolute())  # workers and later commands start elsewhere
    elif name.startswith(("/", "./", "../", "~")) or name.count("/") > 1:
        raise ModelError(f"--model {name}: there is no such folder")
    try:
        config = AutoConfig.from_pretrained(name, revision=revision)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"--model {name}: {_first_line(error)}") from error
    text = config.get_text_config()
    try:
        numbers = {
            "num_blocks": int(text.num_hidden_layers),
            "hidden_size": int(text.hidden_size),
            "vocabulary_rows": int(text.vocab_size),
        }
    except (AttributeError, TypeError) as error:
        raise ModelError(f"--model {name}: its configuration is no causal language model's: {error}") from error
    positions = getattr(text, "max_position_embeddings", None)
    folder = Path(name)
    commit = None if folder.is_dir() else getattr(config, "_commit_hash", None)
    return ModelReference(
        name=name,
        revision=commit,
        digest=f"hub:{commit}" if commit else content_digest(folder),
        max_positions=int(positions) if positions else None,
        **numbers,
    )


def content_digest(folder: Path) -> str:
    """Name the content of a local model: every byte of its configuration and weights.

    A folder of the hub's cache is named by its revision instead, so a worker that finds the model there and one
    that downloads it agree.

    Raises:
        ModelError: the folder holds no weights, or a file cannot be read.
    """
    snapshot = _SNAPSHOT.search(str(folder.absolute()))
    if snapshot:
        return f"hub:{snapshot[1]}"
    try:
        files = sorted(f for f in folder.iterdir() if f.suffix in _WEIGHT_SUFFIXES or f.name == "config.json")
        if not any(f.suffix in _WEIGHT_SUFFIXES for f in files):
            raise ModelError(f"--model {folder}: there are no weights ({', '.join(_WEIGHT_SUFFIXES)}) in it")
        with ThreadPoolExecutor(max_workers=4) as pool:
            digests = list(pool.map(file_digest, files))
    except OSError as error:
        raise ModelError(f"--model {folder}: {error}") from error
    named = "".join(f"{file.name}\0{digest}\n" for file, digest in zip(files, digests, strict=True))
    return f"xxh3:{xxhash.xxh3_128_hexdigest(named.encode())}"


def file_digest(file: Path) -> str:
    """Return the xxh3-128 of a file's bytes, hex. Raises OSError."""
    state = xxhash.xxh3_128()
    with open(file, "rb", buffering=0) as stream:
        buffer = bytearray(_READ_BYTES)
        view = memoryview(buffer)
        while count := stream.readinto(buffer):
            state.update(view[:count])
    return state.hexdigest()


def _first_line(error: BaseException) -> Any:
    return next(iter(str(error).strip().splitlines()), repr(error))
