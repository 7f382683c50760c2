"""The sink as a process that is killed, stopped and starved."""

from __future__ import annotations

import signal
import subprocess

import pytest

from hiddenstream.contracts.sink_api import shard_path
from tests.factories import a_run, a_shard
from tests.sink.harness import (
    DEADLINE_SECONDS,
    a_head,
    a_sink_process,
    ask,
    committed,
    connect,
    event_of,
    files_left,
    put,
    reply_on,
    wait_for,
)


def is_receiving(paths) -> bool:
    return any(name.startswith("incoming/") for name in files_left(paths))


def test_a_killed_sink_loses_only_what_it_had_not_answered_for(paths):
    """After SIGKILL in mid-upload, a restart keeps the committed shard, sweeps the rest and takes the shard again."""
    data = a_shard(paths, 1)
    with a_sink_process(paths) as (process, port), connect(port) as client:
        put(port, 0, a_shard(paths, 0))
        client.sendall(a_head(1, len(data)) + data[:-10])
        wait_for(lambda: is_receiving(paths))
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_SECONDS)
    assert is_receiving(paths)

    with a_sink_process(paths) as (_, port):
        swept = not is_receiving(paths)
        statuses = [ask(port, "HEAD", shard_path("test", shard)).status for shard in (0, 1)]
        again = put(port, 1, data).status

    assert swept
    assert statuses == [200, 404]
    assert again == 201
    assert sorted(committed(paths)) == [0, 1]


def test_a_stopped_sink_finishes_the_upload_under_way(paths):
    """After SIGTERM no connection is accepted, the upload under way gets its answer, and the exit code is 0."""
    data = a_shard(paths, 0)

    with a_sink_process(paths) as (process, port), connect(port) as client, connect(port) as idle:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: sink\r\n\r\n")
        assert reply_on(idle).status == 200
        client.sendall(a_head(0, len(data)) + data[:-1])
        wait_for(lambda: is_receiving(paths))
        process.send_signal(signal.SIGTERM)
        assert idle.recv(1) == b""  # closed at once, so stopping has begun
        wait_for(lambda: is_closed(port))
        client.sendall(data[-1:])
        reply = reply_on(client)
        code = process.wait(DEADLINE_SECONDS)

    assert (reply.status, reply.headers["Connection"]) == (201, "close")
    assert code == 0
    assert list(committed(paths)) == [0]


def is_closed(port: int) -> bool:
    try:
        connect(port).close()
    except ConnectionRefusedError:
        return True
    return False


def test_two_processes_cannot_have_one_name(paths):
    """The second process of a name exits with 1 and says so; the first goes on."""
    with a_sink_process(paths) as (_, port):
        with pytest.raises(AssertionError, match="ended"), a_sink_process(paths):
            pass

        assert put(port, 0, a_shard(paths, 0)).status == 201


def test_a_sink_finds_the_plan_that_is_written_later(tmp_path):
    """A process that was started first takes shards soon after the run is planned."""
    planned = a_run(tmp_path / "planned")
    paths = type(planned)(tmp_path / "run")

    with a_sink_process(paths) as (process, port):
        assert put(port, 0, a_shard(planned, 0)).status == 503
        a_run(paths.root)
        assert event_of(process, "run_loaded")["run"] == "test"
        wait_for(lambda: put(port, 0, a_shard(paths, 0)).status == 201)


def test_a_full_disk_puts_uploads_off_and_loses_nothing(tmp_path):
    """On a disk that is really full an upload gets 507, leaves nothing, and is stored once there is space."""
    disk = tmp_path / "disk"
    disk.mkdir()
    paths = a_run(tmp_path / "run", shards=((20_000,),))
    mount = f'mount -t tmpfs -o size=1536k none {disk} && cp -r {paths.root} {disk} && exec "$@"'
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no right to mount a small disk")

    small = type(paths)(disk / "run")
    with a_sink_process(small, before=["unshare", "-rm", "sh", "-c", mount, "sh"]) as (process, port):
        inside = type(paths)(type(disk)(f"/proc/{process.pid}/root{small.root}"))
        ballast = inside.root / "ballast"
        data = a_shard(paths, 0)
        with connect(port) as client:
            client.sendall(a_head(0, len(data)) + data[:1000])
            client.settimeout(DEADLINE_SECONDS)
            wait_for(lambda: is_receiving(inside) or None)
            with open(ballast, "wb", buffering=0) as file:
                fill(file)
            client.sendall(data[1000:])
            full = reply_on(client)
        left = files_left(inside)
        ballast.unlink()
        stored = put(port, 0, data)

        assert (full.status, full.content["reason"]) == (507, "disk_full")
        assert left == []
        assert stored.status == 201


def fill(file) -> None:
    """Write until the disk is full."""
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
