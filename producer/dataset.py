"""Reading the input: JSON Lines, Parquet, and directories that ``datasets`` saved, as one stream of rows.

A line that cannot be read is a row with a problem, and the next ones go on. A file that cannot be read at all
stops planning, because nobody can say how many rows were lost with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from hiddenstream.contracts.errors import UsageError
from hiddenstream.contracts.run import DataSource
from hiddenstream.model_reference import file_digest
from producer.arrow_rows import read_arrow, read_parquet
from producer.json_rows import first_bytes, read_json_lines
from producer.raw_row import RawRow, shown

_JSON_SUFFIXES = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz")
_BEGINNINGS_OF_DATA = (b"P", b"{", b"\x1f", b"\xef")  # Parquet, JSON Lines, the same gzipped, with a byte order mark
_ACCEPTED = (
    "JSON Lines (.jsonl, .ndjson, .json, each also .gz), Parquet (.parquet),"
    " a directory written by datasets' save_to_disk, or a folder of such files"
)


def read_rows(paths: Sequence[Path]) -> Iterator[RawRow]:
    """Stream every row of *paths*, in order.

    Raises:
        UsageError: a path that is missing, of an unknown kind, or cannot be read at all.
    """
    for file in data_files(paths):
        try:
            if file.suffix == ".arrow":
                yield from read_arrow(file)
            elif _is_parquet(file):
                yield from read_parquet(file)
            else:
                yield from read_json_lines(file)
        except OSError as error:
            raise UsageError(f"--data {file}: {error.strerror or error}") from error


def describe_sources(paths: Sequence[Path]) -> tuple[DataSource, ...]:
    """Name every file of *paths* by size and content, in the order in which they are read.

    Raises:
        UsageError: as :func:`read_rows`.
    """
    sources = []
    for file in data_files(paths):
        try:
            size_bytes, digest = file.stat().st_size, file_digest(file)
        except OSError as error:
            raise UsageError(f"--data {file}: {error.strerror or error}") from error
        sources.append(DataSource(name=shown(file), size_bytes=size_bytes, xxh3=digest))
    return tuple(sources)


def data_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that *paths* stand for, in order.

    Raises:
        UsageError: no files, or a path that is missing or of an unknown kind.
    """
    files = [file for path in paths for file in _files_of(path)]
    if not files:
        raise UsageError(f"--data names no file; accepted are {_ACCEPTED}")
    return files


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        return _files_of_folder(path)
    if not path.exists():
        raise UsageError(f"--data {path}: there is no such file or folder")
    if not _is_data_file(path) and (path.suffix or first_bytes(path, 1) not in _BEGINNINGS_OF_DATA):
        raise UsageError(f"--data {path}: unknown kind of file; accepted are {_ACCEPTED}")
    return [path]


def _files_of_folder(folder: Path) -> list[Path]:
    try:
        if (folder / "dataset_dict.json").exists():
            splits = json.loads((folder / "dataset_dict.json").read_bytes())["splits"]
            choices = ", ".join(str(folder / split) for split in splits)
            raise UsageError(f"--data {folder} holds several splits; choose from {choices}")
        if (folder / "state.json").exists():
            return _saved_files(folder)
        entries = sorted(folder.iterdir())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--data {folder} cannot be read: {error!r}") from error
    files = [entry for entry in entries if not entry.name.startswith((".", "_")) and entry.suffix != ".md"]
    for entry in files:
        if not entry.is_file() or not _is_data_file(entry):
            raise UsageError(f"--data {folder}: {entry.name} in it is no data file; accepted are {_ACCEPTED}")
    if not files:
        raise UsageError(f"--data {folder} holds no data files; accepted are {_ACCEPTED}")
    return files


def _saved_files(folder: Path) -> list[Path]:
    state = json.loads((folder / "state.json").read_bytes())
    if state.get("_indices_data_files"):  # written by datasets before 2.0: rows in another order than the files'
        raise UsageError(f"--data {folder} was saved with an index; load and save it again with a newer datasets")
    return [folder / entry["filename"] for entry in state["_data_files"]]


def _is_parquet(file: Path) -> bool:
    return file.suffix == ".parquet" or (not file.suffix and first_bytes(file, 4) == b"PAR1")


def _is_data_file(path: Path) -> bool:
    return path.suffix == ".parquet" or path.name.endswith(_JSON_SUFFIXES)
