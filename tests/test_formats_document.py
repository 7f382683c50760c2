"""docs/formats.md names what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import msgpack
import pytest

from hiddenstream.contracts.commit import CommitLine
from hiddenstream.contracts.run import DataSource, PlanSettings, RunIdentity, RunRecord
from hiddenstream.contracts.run_file import MAX_RUN_FILE_HEADER_BYTES
from hiddenstream.contracts.shard import MAX_HEADER_BYTES, ShardMetadata
from hiddenstream.contracts.sink_api import RUN_FILES, SHARD_REFUSALS
from hiddenstream.run_directory.plan import SAMPLES_SCHEMA
from tests.contracts.golden import COMMIT_BYTES, HEADER_BYTES, JOB_BYTES, RUN_FILE_BYTES, TENSOR_BYTES

TEXT = (Path(__file__).parent.parent / "docs" / "formats.md").read_text()


def names_of(*kinds: type) -> list[str]:
    return [field.name for kind in kinds for field in fields(kind)]


@pytest.mark.parametrize(
    "name",
    [
        *names_of(RunRecord, RunIdentity, PlanSettings, DataSource, ShardMetadata, CommitLine),
        *SAMPLES_SCHEMA.names,
        *msgpack.unpackb(JOB_BYTES),
    ],
)
def test_every_field_is_described(name):
    """A field of any format that the document does not name fails here."""
    assert f"`{name}`" in TEXT


def test_the_refusals_are_those_of_the_code():
    """Reasons and statuses of the table are exactly those that a sink answers with."""
    table = TEXT[TEXT.index("| reason | status |") :]

    assert {reason: int(status) for reason, status in re.findall(r"\| `(\w+)` \| (\d{3}) \|", table)} == SHARD_REFUSALS


def test_the_worked_example_is_the_golden_shard():
    """The bytes in the document are the bytes that the tests pin."""
    example = TEXT[TEXT.index("Worked example") : TEXT.index("## Ledger line")]
    shown = re.findall(r"^0[23][0-9a-f]{2}  ((?:[0-9a-f]{2} +)+)", example, re.MULTILINE)
    header = "".join(line.strip() for line in example[example.index("{") : example.index("   (one line")].splitlines())

    assert bytes.fromhex("".join(shown)) == TENSOR_BYTES
    assert header.encode() == HEADER_BYTES[8:].rstrip()
    assert f"then {len(HEADER_BYTES[8:]) - len(header)} spaces" in example
    assert f"{MAX_HEADER_BYTES:,}" in TEXT
    assert COMMIT_BYTES.decode() in TEXT


def test_the_worked_run_file_is_the_golden_one():
    """The bytes in the document are the bytes that the tests pin."""
    example = TEXT[TEXT.index("Worked example: `final_norm`") : TEXT.index("## Ledger line")]
    shown = re.search(r"^0140  ((?:[0-9a-f]{2} *)+)$", example, re.MULTILINE)
    header = "".join(line.strip() for line in example[example.index("{") : example.index("   (one line")].splitlines())

    assert RUN_FILE_BYTES[320:] == bytes.fromhex(shown[1])
    assert RUN_FILE_BYTES[8:320].rstrip() == header.encode()
    assert f"{MAX_RUN_FILE_HEADER_BYTES:,}" in TEXT
    assert [] == [name for name in RUN_FILES if f"{name}.safetensors" not in TEXT]
