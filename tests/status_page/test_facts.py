"""From ledger lines and workers to the facts that are shown."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from docs.status_pictures import made_status, made_worker
from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.errors import WireError
from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.status_page.bottleneck import bottleneck_of
from hiddenstream.status_page.compose import Seen, compose
from hiddenstream.status_page.failures import rejected_groups, stuck_group
from hiddenstream.status_page.log_lines import newest, parsed, tails
from hiddenstream.status_page.parts import DiskStatus, QueueStatus
from hiddenstream.status_page.status import RunStatus
from hiddenstream.status_page.totals import MOST_EXAMPLES, MOST_POINTS, LedgerTotals, RateHistory, Recent
from tests.factories import a_run, a_shard
from tests.run_helpers import append_line, line_of, with_column, with_record

NOON = 1_767_268_800.0  # 2026-01-01T12:00:00Z


@pytest.fixture
def paths(tmp_path):
    return a_run(tmp_path / "run", ((3, 1), (2,), (5, 4)))


def at(seconds):
    return time.strftime("2026-01-01T%H:%M:%S.000Z", time.gmtime(NOON + seconds))


def a_commit(paths, shard, seconds, **changed):
    return line_of(a_shard(paths, shard), time=at(seconds), **changed)


def status_of(paths, commits, *, now=NOON + 10, phase="delivering", **seen):
    totals = LedgerTotals()
    for commit in commits:
        totals.add(commit)
    return compose(paths.read_record(), totals.snapshot(now), Seen(phase=phase, run="run", **seen), now=now)


def test_a_newer_line_of_a_shard_replaces_the_older_one(paths):
    """Sums, quarantine and history count each shard once, by its newest line, in whatever order they are read."""
    bad = Quarantined(id="s1", reason="all_zero", detail="")
    totals = LedgerTotals()
    ledger = LedgerReader(paths.ledger, on_commit=totals.add)
    append_line(paths, a_commit(paths, 0, 0, tokens=3, samples=1, quarantined=(bad,)).to_line())
    append_line(paths, a_commit(paths, 1, 1).to_line())
    ledger.poll()
    before = totals.counts()

    append_line(paths, a_commit(paths, 0, 2).to_line())
    append_line(paths, a_commit(paths, 0, -5, tokens=99).to_line())
    ledger.poll()

    committed, quarantined, last = totals.counts()
    assert (5, {"all_zero": 1}) == (before[0].tokens, before[1])
    assert (6, 3, 2, 0, NOON + 2) == (
        committed.tokens,
        committed.samples,
        committed.shards,
        quarantined["all_zero"],
        last,
    )
    assert sum(commit.file_bytes for commit in ledger.commits.values()) == committed.bytes
    assert () == totals.snapshot(NOON + 3).quarantined


def test_the_history_is_bounded_and_loses_no_token():
    """A run of days and one of seconds give at most 120 points, whose tokens add up."""
    for step in (1.0, 977.0):
        history = RateHistory()
        for number in range(2_000):
            history.add(NOON + number * step, 10)

        width, points = history.points(NOON + 3_000 * step, commits=2_000)

        assert 60 <= len(points) <= MOST_POINTS
        assert 20_000 == pytest.approx(sum(point.tokens_per_second for point in points) * width)


def test_a_made_ledger_of_20_000_lines_is_cheap_to_show():
    """A status over 20,000 shards is made in less than a quarter of the second that it is kept for."""
    totals = LedgerTotals()
    line = None
    for number in range(20_000):
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(NOON + number * 3))
        line = _light_line(number, stamp)
        totals.add(line)
    started = time.process_time()
    for _ in range(10):
        totals.snapshot(NOON + 60_000)
    seconds = (time.process_time() - started) / 10

    assert 20_000 == totals.counts()[0].shards
    assert seconds < 0.25


def _light_line(number, stamp):
    from hiddenstream.contracts.commit import CommitLine

    return CommitLine(
        shard=number, file_bytes=10, xxh3="", header_xxh3="", tokens=7, samples=1, quarantined=(), delivery="a",
        made_by={}, receive_seconds=0.1, fsync_seconds=0.1, time=stamp,
    )  # fmt: skip


def test_the_rate_sinks_when_nothing_arrives(paths):
    """After a silence the rate counts the silence, too; the rest takes longer, not shorter."""
    commits = [a_commit(paths, 0, 0), a_commit(paths, 1, 1)]

    at_once = status_of(paths, commits, now=NOON + 1).speed
    later = status_of(paths, commits, now=NOON + 101).speed

    assert (2.0, 4.5) == (at_once.tokens_per_second, at_once.eta_seconds)
    assert later.tokens_per_second < 0.1
    assert later.eta_seconds > 90


@pytest.mark.parametrize(
    ("phase", "seen", "expected"),
    [
        ("delivering", {"queue": QueueStatus(is_reachable=False)}, "waiting_for_redis"),
        ("delivering", {"disk": DiskStatus(free_bytes=1, total_bytes=9, reserve_bytes=2, to_come_bytes=0)}, "waiting_for_disk"),  # noqa: E501
        ("delivering", {}, "waiting_for_workers"),
        ("delivering", {"workers": (made_worker(0, workers=1),)}, "running"),
        ("delivering", {"workers": (made_worker(0, workers=1, state="waiting_for_sink"),)}, "waiting_for_sink"),
        ("stopping", {}, "stopping"),
        ("ended", {"stuck_shards": 1}, "stuck"),
        ("ended", {}, "not_complete"),
    ],
)  # fmt: skip
def test_the_state_is_what_the_run_waits_for(paths, phase, seen, expected):
    """Each thing that a run can wait for or end with has its state."""
    assert expected == status_of(paths, [a_commit(paths, 0, 0)], phase=phase, **seen).state


def test_a_complete_run_is_complete_with_or_without_quarantine(paths):
    """All shards stored is complete, and says when samples were left out."""
    whole = [a_commit(paths, shard, shard) for shard in range(3)]
    bad = Quarantined(id="s0", reason="all_zero", detail="")

    assert ("complete", 0) == _ending(status_of(paths, whole, phase="ended"))
    assert ("complete_with_quarantined", 3) == _ending(
        status_of(paths, [replace(whole[0], quarantined=(bad,)), *whole[1:]], phase="ended")
    )


def _ending(status):
    return status.state, status.exit_code


def test_a_small_disk_says_when_it_is_full(paths):
    """Where the rest does not fit above the reserve, the time until then is told at the present rate."""
    commits = [a_commit(paths, 0, 0, file_bytes=100), a_commit(paths, 1, 10, file_bytes=100)]
    disk = DiskStatus(free_bytes=150, total_bytes=1000, reserve_bytes=50, to_come_bytes=0)

    shown = status_of(paths, commits, disk=disk).disk

    assert (False, 10.0) == (shown.is_enough, shown.full_in_seconds)
    assert status_of(paths, commits, disk=replace(disk, free_bytes=1 << 40)).disk.is_enough


@pytest.mark.parametrize(
    ("word", "queue", "recent", "expected"),
    [
        ("gpu", QueueStatus(waiting=3), Recent(), "gpu"),
        ("queue", QueueStatus(waiting=3), Recent(), "queue"),
        ("queue", QueueStatus(waiting=0, in_work=2), Recent(), "producer"),
        ("queue", QueueStatus(waiting=0, in_work=10), Recent(), "none"),
        ("sink", QueueStatus(), Recent(receive_seconds=3.0, fsync_seconds=1.0), "sink"),
        ("sink", QueueStatus(), Recent(receive_seconds=1.0, fsync_seconds=3.0), "disk"),
    ],
)
def test_the_bottleneck_is_told_apart(word, queue, recent, expected):
    """What workers cannot tell apart, the queue's depth and the sink's times do."""
    workers = [replace(made_worker(number, workers=2), bottleneck=word) for number in range(2)]

    found, sentence = bottleneck_of(workers, to_do_shards=10, queue=queue, disk=None, recent=recent)

    assert expected == found
    assert sentence.endswith(".")


def test_rejected_rows_are_told_with_their_place_and_are_bounded(tmp_path):
    """The first twenty of each reason are named by id and row, and all are counted."""
    paths = a_run(tmp_path / "run", ((1,) * 30,))
    with_column(paths, "status", ["rejected"] * 25 + ["planned"] * 5, keep_plan_id=True)
    with_column(paths, "reason", ["over_long"] * 25 + [None] * 5, keep_plan_id=True)
    with_column(paths, "detail", ["too long"] * 25 + [None] * 5, keep_plan_id=True)

    (group,) = rejected_groups(paths, {"over_long": 25})

    assert (25, MOST_EXAMPLES) == (group.count, len(group.examples))
    assert ("s3", 3, "too long") == (group.examples[3].name, group.examples[3].row, group.examples[3].detail)


def test_stuck_shards_are_bounded():
    """Of a thousand stuck shards twenty are named and all are counted."""
    (group,) = stuck_group(set(range(1000)), 5)

    assert (1000, MOST_EXAMPLES, "shard 0") == (group.count, len(group.examples), group.examples[0].name)


def test_log_lines_are_the_newest_of_all_each_once(tmp_path):
    """Lines of memory and files are merged by time; a line that stands in both is shown once, nonsense never."""
    lines = [json.dumps({"time": f"2026-01-01T00:00:{n:02d}Z", "level": "info", "event": f"e{n}"}) for n in range(40)]
    (tmp_path / "sink.jsonl").write_text("\n".join(["no json", "[1]", *lines]) + "\n")

    shown = newest([*parsed([*lines, "{", '{"time": 3}'], source="sink"), *tails(tmp_path)])

    assert [f"e{n}" for n in range(39, 9, -1)] == [line.event for line in shown]


def test_a_log_line_is_told_in_short():
    """What is empty is left out, and a time has three digits."""
    (line,) = parsed([json.dumps({"time": "t", "event": "e", "message": "", "shard": 7, "seconds": 0.123456789})])

    assert line.text == "shard 7, seconds 0.123"


def test_a_malformed_status_is_refused():
    """A page of another version or a foreign server gives no status."""
    wire = made_status().to_wire()
    for change in ({"state": "fine"}, {"workers": 3}, {"planned": {}}, {"done": 1}, {"speed": None}):
        with pytest.raises(WireError):
            RunStatus.from_wire({**wire, **change})
    with pytest.raises(WireError):
        RunStatus.from_wire([])


def test_a_run_while_it_is_planned_has_no_numbers_yet():
    """Planning shows the rows read, and nothing that needs a plan."""
    status = compose(None, LedgerTotals().snapshot(NOON), Seen(phase="planning", run="r", rows_read=7), now=NOON)

    assert ("planning", 7, 0.0) == (status.state, status.rows_read, status.done_share)
    assert status == RunStatus.from_wire(json.loads(json.dumps(status.to_wire())))


def test_more_rejections_than_the_plan_counts_do_not_matter(paths):
    """A run without rejected rows reads no table."""
    with_record(paths, rejected={})

    assert () == rejected_groups(paths, {})
