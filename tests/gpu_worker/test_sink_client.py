"""Talking to a real sink, and to servers that are none."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager

import pytest

from gpu_worker.sink_client import SinkClient, SinkRefused, SinkUnavailable
from hiddenstream.contracts.errors import UsageError
from tests.factories import a_shard
from tests.sink.harness import LOCALHOST, a_sink, files_left

STORED = ["ledger/sink.jsonl", "shards/000/000000.safetensors"]


def client_of(sink, *, run="test", token=None):
    return SinkClient(f"http://{LOCALHOST}:{sink.port}", run, token)


@contextmanager
def a_server_that_says(answer, *, family=socket.AF_INET, host=LOCALHOST):
    """A bare server that reads one request's head, says *answer* and closes."""
    with socket.create_server((host, 0), family=family) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_the_run_is_told_as_it_is_planned(paths):
    """The run's record comes over the wire equal to run.json, with whether it is complete."""
    with a_sink(paths) as sink:
        before = client_of(sink).fetch_run()
        for shard in (0, 1):
            client_of(sink).put_shard(shard, [a_shard(paths, shard)])
        after = client_of(sink).fetch_run()

    assert paths.read_record() == before.record
    assert (False, True) == (before.is_complete, after.is_complete)


def test_a_shard_is_sent_in_pieces_once(paths):
    """A shard is committed by the first delivery; the next one is told that it is there."""
    data = a_shard(paths, 0)
    pieces = [data[:100], memoryview(data)[100:101], b"", memoryview(data)[101:]]

    with a_sink(paths) as sink:
        client = client_of(sink)
        told = [client.has_shard(0), client.put_shard(0, pieces), client.has_shard(0), client.put_shard(0, pieces)]

    assert [False, "committed", True, "duplicate"] == told
    assert data == paths.shard(0).read_bytes()
    assert STORED == files_left(paths)


def test_nobody_listening_is_unavailable():
    """A refused connection may succeed later; the error names the sink."""
    with socket.socket() as taken:
        taken.bind((LOCALHOST, 0))  # bound, not listening
        address = f"{LOCALHOST}:{taken.getsockname()[1]}"

        with pytest.raises(SinkUnavailable, match=address):
            SinkClient(f"http://{address}", "test", None).fetch_run()


@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_wrong_token_is_refused(paths, token):
    """Each call of a client without the right token ends as unauthorized, and stores nothing."""
    with a_sink(paths, token="right") as sink:
        client = client_of(sink, token=token)
        calls = (client.fetch_run, lambda: client.has_shard(0), lambda: client.put_shard(0, [a_shard(paths, 0)]))
        for call in calls:
            with pytest.raises(SinkRefused) as refused:
                call()
            assert 401 == refused.value.status

        assert "committed" == client_of(sink, token="right").put_shard(1, [a_shard(paths, 1)])
    assert not paths.shard(0).exists()


def test_a_shard_whose_bytes_changed_is_refused(paths):
    """A flipped bit is found by the sink and comes back as wrong_hash."""
    data = bytearray(a_shard(paths, 0))
    data[-1] ^= 1

    with a_sink(paths) as sink, pytest.raises(SinkRefused) as refused:
        client_of(sink).put_shard(0, [bytes(data)])

    assert (422, "wrong_hash") == (refused.value.status, refused.value.sink_reason)


def test_another_run_is_refused(paths):
    """A sink of another run says so, and is not asked for ever."""
    with a_sink(paths) as sink, pytest.raises(SinkRefused, match="wrong_run"):
        client_of(sink, run="another").fetch_run()


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b"\x00" * 100, b"HTTP/1.1 500 No\r\n\r\n"],
    ids=["nothing", "half a line", "another protocol", "zeros", "500"],
)
def test_what_is_no_whole_answer_is_unavailable(answer):
    """A server that closes in mid-answer or speaks another language may be a sink on its way up: later."""
    with a_server_that_says(answer) as port:
        client = SinkClient(f"http://{LOCALHOST}:{port}", "test", None)

        for call in (client.fetch_run, lambda: client.has_shard(0), lambda: client.put_shard(0, [b"x"])):
            with pytest.raises(SinkUnavailable):
                call()


def test_a_torn_body_is_unavailable():
    """An answer that is cut off counts for nothing, whatever its status was."""
    with a_server_that_says(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"status": ') as port:
        client = SinkClient(f"http://{LOCALHOST}:{port}", "test", None)

        for call in (client.fetch_run, lambda: client.put_shard(0, [b"x"])):
            with pytest.raises(SinkUnavailable):
                call()


@pytest.mark.parametrize("body", [b"[]", b"{}", b"null", b"\xff", b'{"record": {}}', b'{"record": 1}'])
def test_what_describes_no_run_is_refused(body):
    """A whole answer that holds no run comes from something that is no sink of ours."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    with a_server_that_says(answer) as port, pytest.raises(SinkRefused, match="description of the run"):
        SinkClient(f"http://{LOCALHOST}:{port}", "test", None).fetch_run()


@pytest.mark.parametrize("status", [202, 204, 302])
def test_only_what_the_sink_promises_counts_as_stored(status):
    """A proxy's redirect or any other success is not taken for a stored shard."""
    with a_server_that_says(b"HTTP/1.1 %d Hm\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n" % status) as port:
        client = SinkClient(f"http://{LOCALHOST}:{port}", "test", None)

        for call in (lambda: client.has_shard(0), lambda: client.put_shard(0, [b"x"])):
            with pytest.raises(SinkRefused, match=str(status)):
                call()


@pytest.mark.parametrize(
    "url",
    [
        *("", "sink:9100", "https://sink:9100", "http://", "http://sink:9100/path", "unix:///sock"),
        *("http://sink:port", "http://sink:99999", "http://[::1"),
    ],
)
def test_a_url_that_cannot_be_meant_is_a_usage_error(url):
    """The error names the flag and what is expected."""
    with pytest.raises(UsageError, match=r"--sink .*http://HOST:PORT"):
        SinkClient(url, "test", None)


def test_a_literal_ipv6_address_is_reached():
    """An address in brackets is taken apart rightly."""
    try:
        with a_server_that_says(b"HTTP/1.1 404 No\r\n\r\n", family=socket.AF_INET6, host="::1") as port:
            assert not SinkClient(f"http://[::1]:{port}/", "test", None).has_shard(0)
    except OSError:
        pytest.skip("this machine has no IPv6")
