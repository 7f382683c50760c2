"""Which log lines people see in a report, and how long they are."""

from __future__ import annotations

import json
import logging

import pytest

from gpu_worker.log_lines import LINE_CHARACTERS, LogLines, shortened
from hiddenstream.chassis.logs import log, start_logging

LOGGER = logging.getLogger("gpu_worker.test")


@pytest.fixture
def lines():
    """What is passed on of this process's log, which goes nowhere else."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    passed: list[str] = []
    with open("/dev/null", "w") as nowhere:
        start_logging("gpu_worker", stream=nowhere)
        LogLines(passed.append).install()
        yield passed
    root.handlers[:] = before
    root.setLevel(level)


def test_warnings_and_progress_are_seen(lines):
    """Warnings, errors and the events that tell of progress are passed on as JSON; other news is not."""
    log(LOGGER, "worker_started")
    log(LOGGER, "model_loaded", {"device": "cpu"})
    log(LOGGER, "gpu_waited_for", {"message": "none is free"}, level=logging.WARNING)
    log(LOGGER, "shard_extracted", {"shard": 3})
    LOGGER.error("engine_died", extra={"facts": {"exit_code": -9}})

    events = ["model_loaded", "gpu_waited_for", "shard_extracted", "engine_died"]
    assert events == [json.loads(line)["event"] for line in lines]


def test_a_traceback_is_cut_to_its_end(lines):
    """A long line stays JSON of the allowed length, and the end of a traceback, which names the error, is kept."""
    try:
        raise ValueError("the cause " + "x" * 50)
    except ValueError:
        LOGGER.exception("extraction_failed", extra={"facts": {"message": "y" * 5000, "more": ["z" * 5000]}})

    (line,) = lines
    fields = json.loads(line)
    assert len(line) <= LINE_CHARACTERS
    assert "extraction_failed" == fields["event"]
    assert fields["message"].startswith("yyy")


@pytest.mark.parametrize("line", ["x" * 5000, json.dumps({f"field{n}": "é" * 100 for n in range(50)})])
def test_no_line_is_too_long(line):
    """Neither many fields nor text that is no JSON makes a line longer than allowed."""
    assert len(shortened(line)) <= LINE_CHARACTERS
