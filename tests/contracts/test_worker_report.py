"""The report that a worker gives of itself."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.worker_report import ACTIVITIES, BOTTLENECKS, REPORT_BYTES, GpuReport, WorkerReport

REPORT = WorkerReport(
    worker="worker-0",
    state="working",
    device="NVIDIA H200",
    gpus=(GpuReport(uuid="GPU-1", name="NVIDIA H200", memory_total_bytes=150 * 10**9, utilization=0.5),),
    shards_in_hand=(3, 4),
    shards=7,
    samples=100,
    tokens=12345,
    tokens_per_second=13_000.5,
    activity_shares={"forward": 0.9, "copy": 0.1},
    bottleneck="gpu",
    log_lines=('{"event": "model_loaded"}',),
)


def test_a_report_survives_the_wire():
    """What is decoded equals what was encoded."""
    assert WorkerReport.decode(REPORT.encode()) == REPORT


@pytest.mark.parametrize(
    "change",
    [
        {"state": "asleep"},
        {"bottleneck": "luck"},
        {"worker": 7},
        {"shards": "many"},
        {"gpus": [{"uuid": 1, "name": ""}]},
        {"activity_shares": {"copy": -1}},
    ],
    ids=str,
)
def test_a_malformed_report_is_refused(change):
    """A word on no list, or a value of another type."""
    wire = dataclasses.asdict(REPORT) | change

    with pytest.raises(WireError):
        WorkerReport.decode(msgpack.packb(wire))


def test_an_endless_report_is_refused():
    """Its size is judged before it is read."""
    with pytest.raises(WireError, match="are the most"):
        WorkerReport.decode(b"\0" * (REPORT_BYTES + 1))


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data):
    """Anything in Redis ends in a report or a WireError."""
    try:
        WorkerReport.decode(data)
    except WireError:
        return


def test_the_lists_name_each_word_once():
    """Labels of metrics come from them."""
    assert len(set(ACTIVITIES)) == len(ACTIVITIES)
    assert len(set(BOTTLENECKS)) == len(BOTTLENECKS)
