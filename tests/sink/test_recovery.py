"""Starting after a crash."""

from __future__ import annotations

import errno
import json
import logging

import pytest

from hiddenstream.contracts.errors import RunDirectoryError, UsageError
from sink.disk import DiskSpace
from sink.ledger import append_line
from sink.refusals import ShardRefused
from sink.serve import main
from tests.factories import a_shard, store_shard
from tests.sink.harness import a_sink, committed, files_left, ledger_lines, metric, put


def place(paths, shard: int, data: bytes) -> None:
    """Put a file under a shard's final name, without a ledger line."""
    paths.shard(shard).parent.mkdir(parents=True, exist_ok=True)
    paths.shard(shard).write_bytes(data)


def test_leftovers_are_swept(paths):
    """What a crash left in the sink's own folder is gone after the start; another sink's is not touched."""
    for sink in ("sink", "other"):
        (paths.incoming / sink).mkdir(parents=True)
        (paths.incoming / sink / "000000-0.part").write_bytes(b"half a shard")

    with a_sink(paths):
        assert files_left(paths) == ["incoming/other/000000-0.part"]


def test_a_verified_orphan_is_brought_into_the_ledger(paths):
    """A good file in no ledger gets a line that says how it came there, and who made it."""
    place(paths, 0, a_shard(paths, 0))

    with a_sink(paths) as sink:
        recovered = metric(sink, "shards_recovered_total")

    line = committed(paths)[0]
    assert (line.delivery, line.made_by["worker"], line.samples) == ("recovered", "w1", 2)
    assert recovered == 1


def test_a_shard_that_is_ledgered_is_left_alone(paths):
    """A start adds no second line for a shard that any sink has committed."""
    store_shard(paths, 0, sink="other")

    with a_sink(paths):
        assert ledger_lines(paths) == []


@pytest.mark.parametrize("damage", ["torn", "flipped", "foreign", "empty"])
def test_a_damaged_orphan_is_moved_away(paths, damage, caplog):
    """A file that does not verify is kept in damaged/, reported as an error, and not ledgered."""
    good = a_shard(paths, 0)
    data = {"torn": good[:-1], "flipped": good[:-1] + b"\x99", "foreign": a_shard(paths, 1), "empty": b""}[damage]
    place(paths, 0, data)

    with a_sink(paths) as sink:
        reply = put(sink.port, 0, good)

    assert reply.status == 201
    assert [data] == [file.read_bytes() for file in (paths.root / "damaged").iterdir()]
    assert [line.delivery for line in ledger_lines(paths)] == ["a1"]
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == ["shard_found_damaged"]


def test_an_orphan_of_no_planned_shard_is_moved_away(paths):
    """A file whose number the plan does not know is no part of the run."""
    place(paths, 5, a_shard(paths, 0))

    with a_sink(paths):
        assert not committed(paths)

    assert len(list((paths.root / "damaged").iterdir())) == 1


def test_files_that_are_no_shards_are_left_alone(paths):
    """Only names that a shard would have are looked at."""
    place(paths, 0, a_shard(paths, 0))
    for name in ("notes.safetensors", "000001.safetensors.bak"):
        (paths.shard(0).parent / name).write_bytes(b"mine")

    with a_sink(paths):
        assert list(committed(paths)) == [0]

    assert (paths.shard(0).parent / "notes.safetensors").read_bytes() == b"mine"


def test_a_torn_ledger_line_is_cut_off_before_the_next(paths):
    """A line that a crash tore does not spoil the line that follows it."""
    store_shard(paths, 0)
    with open(paths.ledger / "sink.jsonl", "ab") as ledger:
        ledger.write(b'{"shard":1,"file_by')

    with a_sink(paths) as sink:
        put(sink.port, 1, a_shard(paths, 1))

    assert [line.shard for line in ledger_lines(paths)] == [0, 1]


def test_a_ledger_that_is_only_a_torn_line_is_emptied(tmp_path):
    """A first line that never got its newline, however long, is cut off."""
    (tmp_path / "sink.jsonl").write_bytes(b"x" * 10_000)

    append_line(tmp_path / "sink.jsonl", b"whole\n")

    assert (tmp_path / "sink.jsonl").read_bytes() == b"whole\n"


def test_an_unreadable_ledger_line_is_reported_once(paths, caplog):
    """A line that is whole but altered is an error in the log, once; its shard is recovered from the file."""
    store_shard(paths, 0)
    file = paths.ledger / "sink.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"tokens":4', b'"tokens":5'))

    with a_sink(paths) as sink:
        sink.tick()

    assert ledger_lines_after(file)["delivery"] == "recovered"
    assert [record.getMessage() for record in caplog.records].count("ledger_line_unreadable") == 1


def ledger_lines_after(file) -> dict:
    """Return the second line of a ledger."""
    return json.loads(file.read_bytes().splitlines()[1])


def test_a_disk_that_fills_up_meanwhile_is_a_refusal(tmp_path):
    """Running out of space or quota in mid-upload is told as disk_full, and the claim is given back."""
    disk = DiskSpace(tmp_path, reserve_bytes=0)
    size = disk.free_bytes() // 2 + 1

    for code in (errno.ENOSPC, errno.EDQUOT):
        with pytest.raises(ShardRefused, match="filled up"), disk.claim(size):
            raise OSError(code, "full")


def test_uploads_under_way_claim_their_space(tmp_path):
    """Two uploads that fit alone but not together are not both let in."""
    disk = DiskSpace(tmp_path, reserve_bytes=0)
    size = disk.free_bytes() // 2 + (1 << 30)

    with disk.claim(size), pytest.raises(ShardRefused, match="unclaimed"), disk.claim(size):
        pass


def test_a_name_is_taken_by_one_sink_at_a_time(paths):
    """A second sink of the same name is refused, and the name is free again after the first has closed."""
    with a_sink(paths), pytest.raises(RunDirectoryError, match="another --name"), a_sink(paths):
        pass

    with a_sink(paths):
        pass


def test_a_taken_port_is_a_usage_error(paths):
    """The error names the address and the way out."""
    with (
        a_sink(paths) as sink,
        pytest.raises(UsageError, match="choose another port"),
        a_sink(paths, name="second", listen=("127.0.0.1", sink.port)),
    ):
        pass


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--no-such"], 2),
        ([], 2),
        (["RUN", "--name", "../up"], 2),
        (["RUN", "--listen", "8760"], 2),
        (["/dev/null/x"], 1),
    ],
)
def test_a_sink_that_cannot_start_exits_with_the_causes_code(arguments, code, tmp_path, monkeypatch, capsys):
    """A wrong setting exits with 2 and a bad directory with 1, and each says why in one line of the log."""
    monkeypatch.chdir(tmp_path)

    assert code == main(arguments)

    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["event"] == "sink_failed"
