"""Progress, from the record and the ledger alone."""

from __future__ import annotations

import pytest

from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.errors import RunDirectoryError
from hiddenstream.contracts.statistics import TapStatistics
from hiddenstream.progress import progress_of, read_progress
from tests.factories import a_run, a_shard, store_shard
from tests.run_helpers import commit_shard, described, line_of, with_record

BAD = Quarantined(id="s1", reason="non_finite", detail="")


@pytest.fixture
def paths(tmp_path):
    return a_run(tmp_path / "run", ((3, 1), (2,), (5, 4)))


def a_commit(paths, number, **changed):
    return line_of(a_shard(paths, number), **changed)


def test_counts_add_up_at_every_moment(paths):
    """Planned is committed + quarantined + to do; tokens, shards and bytes are those of the ledger."""
    line = commit_shard(paths, a_shard(paths, 0, quarantined=[BAD]))

    progress = read_progress(paths)

    assert (
        progress.planned_samples,
        progress.committed_samples,
        progress.quarantined_samples,
        progress.to_do_samples,
    ) == (5, 1, 1, 3)
    assert (
        progress.planned_tokens,
        progress.committed_tokens,
        progress.planned_shards,
        progress.committed_shards,
    ) == (15, 3, 3, 1)
    assert (progress.quarantined, progress.committed_samples_by_worker) == ({"non_finite": 1}, {"w1": 1})
    assert line.file_bytes == progress.committed_bytes
    assert (progress.exit_code, progress.eta_seconds) == (4, None)


def test_a_complete_run_has_nothing_left(paths):
    """When the last shard is in, the run is complete and no time is left."""
    for shard in range(3):
        store_shard(paths, shard)

    progress = read_progress(paths)

    assert (
        progress.is_complete,
        progress.to_do_samples,
        progress.eta_seconds,
        progress.exit_code,
    ) == (True, 0, 0.0, 0)


def test_speed_counts_from_the_first_recent_commit(paths):
    """The first commit's tokens were made before it: 2 tokens in 4 seconds, 9 to go."""
    record = paths.read_record()
    commits = [
        a_commit(paths, 1, time="2026-01-01T00:00:04.000Z"),
        a_commit(paths, 0, time="2026-01-01T00:00:00.000Z"),
    ]

    progress = progress_of(record, commits)

    assert (progress.tokens_per_second, progress.eta_seconds) == (0.5, 18.0)
    assert progress.last_commit_time == "2026-01-01T00:00:04.000Z"


def test_speed_forgets_a_pause(paths):
    """A commit from before the last five minutes does not slow down what a resumed run tells."""
    record = paths.read_record()
    times = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-02T00:00:03Z")

    progress = progress_of(record, [a_commit(paths, shard, time=time) for shard, time in enumerate(times)])

    assert progress.tokens_per_second == 9 / 3


def test_commits_at_one_moment_give_no_speed(paths):
    """No time between commits means no speed, not a division by zero."""
    progress = progress_of(paths.read_record(), [a_commit(paths, 0), a_commit(paths, 1)])

    assert (progress.tokens_per_second, progress.eta_seconds) == (None, None)


def test_stages_are_summed_and_model_loads_counted_once_per_worker(paths):
    """Every shard repeats its worker's load time; the other stages add up; nonsense counts as nothing."""
    made_by = [
        {"worker": "a", "model_load_seconds": 30, "forward_seconds": 1.5, "copy_seconds": "fast"},
        {"worker": "a", "model_load_seconds": 30, "forward_seconds": 2.5, "check_seconds": 0.25},
        {"worker": "b", "model_load_seconds": 20.0, "forward_seconds": float("nan"), "copy_seconds": True},
    ]
    commits = [a_commit(paths, shard, made_by=facts) for shard, facts in enumerate(made_by)]

    stages = progress_of(paths.read_record(), commits).stages

    assert (
        stages.model_load_seconds,
        stages.forward_seconds,
        stages.copy_seconds,
        stages.check_seconds,
    ) == (50.0, 4.0, 0.0, 0.25)
    assert (pytest.approx(stages.receive_seconds), pytest.approx(stages.fsync_seconds)) == (0.3, 0.3)


def test_statistics_of_shards_are_merged_by_tap_in_the_run_s_order(paths):
    """Values 1 and 3, then 5 and 7: the mean is 4; taps that the run does not keep, and nonsense, count for nothing."""
    commits = [
        a_commit(paths, 0, made_by=described({"block.2": 0.0, "block.1": 2.0, "block.9": 1.0})),
        a_commit(paths, 1, made_by=described({"block.1": 6.0})),
        a_commit(paths, 2, made_by={"worker": "w1", "statistics": {"block.1": {"count": -1}}}),
    ]

    statistics = progress_of(paths.read_record(), commits).statistics

    assert ["block.1", "block.2"] == list(statistics)
    assert TapStatistics(count=4, mean=4.0, m2=20.0, largest=7.0) == statistics["block.1"]
    assert TapStatistics(count=2, mean=0.0, m2=2.0, largest=1.0) == statistics["block.2"]


@pytest.mark.parametrize(
    "changed", [{"samples": 9}, {"shard": 7}, {"quarantined": (BAD,) * 4}], ids=["samples", "shard", "quarantined"]
)
def test_counts_that_do_not_add_up_are_a_bug(paths, changed):
    """More done than planned, or a shard that is not planned, is never shown as progress."""
    with pytest.raises(RunDirectoryError, match="this is a bug"):
        progress_of(paths.read_record(), [a_commit(paths, 0, **changed)])


def test_all_shards_with_a_sample_missing_are_a_bug(paths):
    """Every shard committed and yet samples to do: the silent loss that a count must show."""
    commits = [a_commit(paths, 0, samples=1), a_commit(paths, 1), a_commit(paths, 2)]

    with pytest.raises(RunDirectoryError, match="1 of 5 samples are to do; this is a bug"):
        progress_of(paths.read_record(), commits)


def test_input_rows_that_vanished_are_a_bug(paths):
    """A plan with other rows than planned + rejected + merged is refused."""
    with_record(paths, rejected={"no_tokens": 1})

    with pytest.raises(RunDirectoryError, match="this is a bug"):
        read_progress(paths)
