"""Logs are JSON lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pytest

from hiddenstream.chassis.logs import as_fields, log, now, start_logging


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchExtracted:
    """Facts of one batch."""

    tokens: int
    sample_id: str


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A log that ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    start_logging("tester", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_facts(stream):
    """Event, service, level and time are always there; the facts are fields, newlines and all."""
    log(logging.getLogger("sink"), "batch_extracted", BatchExtracted(tokens=3, sample_id="a\nb"))

    (line,) = lines(stream)
    assert line | {"time": ""} == {
        "time": "",
        "level": "info",
        "service": "tester",
        "event": "batch_extracted",
        "tokens": 3,
        "sample_id": "a\nb",
    }


def test_libraries_speak_from_warnings_on(stream):
    """A library's chatter is left out; its warnings name their logger; its tracebacks stay in one line."""
    library = logging.getLogger("library")
    library.info("chatter")
    try:
        raise KeyError("x")
    except KeyError:
        library.exception("it %s", "broke")

    (line,) = lines(stream)
    assert (line["event"], line["logger"], line["level"]) == ("it broke", "library", "error")
    assert "KeyError: 'x'" in str(line["traceback"])


def test_facts_are_mappings_or_dataclasses():
    """Anything else has no fields, and is a bug of the caller."""
    assert [as_fields(None), as_fields({"a": 1})] == [{}, {"a": 1}]
    for bad in (3, BatchExtracted):
        with pytest.raises(TypeError):
            as_fields(bad)


def test_times_are_utc_with_milliseconds():
    """Times sort as text and carry their zone."""
    time = now()

    assert time.endswith("Z")
    assert datetime.fromisoformat(time).utcoffset().total_seconds() == 0
    assert len(time) == len("2026-01-01T00:00:00.000Z")
