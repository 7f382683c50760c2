"""Connections: bodies that stop, clients that wait, and clients that mean harm."""

from __future__ import annotations

import http.client
import logging
import socket
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.sink_api import run_path, shard_path
from tests.factories import a_shard
from tests.sink.harness import (
    DEADLINE_SECONDS,
    LOCALHOST,
    a_head,
    a_sink,
    ask,
    ask_on,
    committed,
    connect,
    files_left,
    metric,
    put,
    reply_on,
    wait_for,
)

EXPECT = "Expect: 100-continue"


def test_a_client_that_goes_away_leaves_nothing(paths):
    """An upload that breaks off is counted, and neither its file nor a ledger line remains."""
    data = a_shard(paths, 0)

    with a_sink(paths) as sink:
        with connect(sink.port) as client:
            client.sendall(a_head(0, len(data)) + data[:-5])
            wait_for(lambda: any("incoming" in name for name in files_left(paths)))
        wait_for(lambda: metric(sink, "uploads_aborted_total") == 1)

        assert files_left(paths) == []
        assert put(sink.port, 0, data).status == 201


@pytest.mark.parametrize("sent_bytes", [0, 4, 100, -1])
def test_a_client_that_falls_silent_is_let_go(paths, sent_bytes):
    """After the idle time without a byte of the body, the upload ends wherever it was."""
    data = a_shard(paths, 0)

    with a_sink(paths, idle_seconds=0.1) as sink, connect(sink.port) as client:
        client.sendall(a_head(0, len(data)) + data[:sent_bytes])

        assert client.recv(100) == b""
        wait_for(lambda: metric(sink, "uploads_aborted_total") == 1)
        assert files_left(paths) == []


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost:"])
def test_a_client_that_never_asks_is_let_go(paths, sent):
    """A connection on which no whole request arrives within the idle time is closed."""
    with a_sink(paths, idle_seconds=0.1) as sink, connect(sink.port) as client:
        client.sendall(sent)

        assert client.recv(100) == b""
        wait_for(lambda: metric(sink, "connections") == 0)


def test_a_client_that_waits_for_leave_gets_it(paths):
    """A good upload that announces itself with Expect is told to continue, then stored."""
    data = a_shard(paths, 0)

    with a_sink(paths) as sink, connect(sink.port) as client:
        client.sendall(a_head(0, len(data), EXPECT))
        leave = client.recv(100)
        client.sendall(data)
        reply = reply_on(client)

    assert leave.startswith(b"HTTP/1.1 100")
    assert reply.status == 201


@pytest.mark.parametrize(
    ("shard", "length", "changed", "reason"),
    [
        (0, 10**12, {}, "too_large"),
        (7, 1000, {}, "no_such_shard"),
        (0, 1000, {"token": "secret"}, "unauthorized"),
        (0, 1000, {"reserve_bytes": 1 << 62}, "disk_full"),
    ],
)
def test_a_client_that_waits_is_refused_before_it_sends(paths, shard, length, changed, reason):
    """What the head alone shows to be in vain is refused without a byte of the body on the wire."""
    with a_sink(paths, **changed) as sink, connect(sink.port) as client:
        client.sendall(a_head(shard, length, EXPECT))

        assert reason == reply_on(client).content["reason"]


def test_a_client_that_waits_learns_that_its_shard_is_there(paths):
    """A shard that is committed is not sent again by a client that asks first."""
    data = a_shard(paths, 0)

    with a_sink(paths) as sink, connect(sink.port) as client:
        put(sink.port, 0, data)
        client.sendall(a_head(0, len(data), EXPECT))
        reply = reply_on(client)

    assert (reply.status, reply.content) == (200, {"status": "duplicate"})


def test_one_connection_carries_many_uploads(paths):
    """Uploads, refusals for what they hold, and questions follow one another on one connection."""
    with a_sink(paths) as sink:
        connection = http.client.HTTPConnection(LOCALHOST, sink.port, timeout=DEADLINE_SECONDS)
        statuses = [
            ask_on(connection, method, path, body).status
            for method, path, body in (
                ("HEAD", shard_path("test", 0), None),
                ("PUT", shard_path("test", 0), a_shard(paths, 0, xxh3="0" * 32)),
                ("PUT", shard_path("test", 0), a_shard(paths, 0)),
                ("PUT", shard_path("test", 1), a_shard(paths, 1)),
                ("PUT", shard_path("test", 1), a_shard(paths, 1)),
                ("GET", run_path("test"), None),
            )
        ]
        socket_used = connection.sock
        connection.close()

    assert statuses == [404, 422, 201, 201, 200, 200]
    assert socket_used is not None


def test_requests_sent_in_one_go_are_answered_in_order(paths):
    """What arrives beyond one upload is the beginning of the next request."""
    first, second = a_shard(paths, 0), a_shard(paths, 1)

    with a_sink(paths) as sink, connect(sink.port) as client:
        client.sendall(a_head(0, len(first)) + first + a_head(1, len(second), "Connection: close") + second)
        answers = read_to_end(client)

    assert answers.count(b"HTTP/1.1 201") == 2
    assert sorted(committed(paths)) == [0, 1]


def test_connections_over_the_limit_are_turned_away(paths):
    """A client that is one too many is told to come again, and is served once another has left."""
    with a_sink(paths, max_connections=1) as sink:
        with connect(sink.port) as first:
            first.sendall(b"GET /healthz HTTP/1.1\r\nHost: sink\r\n\r\n")
            assert reply_on(first).status == 200
            refused = ask(sink.port, "GET", "/healthz")
        wait_for(lambda: metric(sink, "connections") == 0)
        served = ask(sink.port, "GET", "/healthz")

    assert (refused.status, refused.content["reason"], refused.headers["Retry-After"]) == (503, "not_ready", "5")
    assert served.status == 200


def test_clients_that_leave_at_once_cost_nothing(paths):
    """Connections that are reset before or while they are accepted leave the sink serving."""
    with a_sink(paths) as sink:
        for _ in range(50):
            client = connect(sink.port)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()

        assert ask(sink.port, "GET", "/healthz").status == 200
        wait_for(lambda: metric(sink, "connections") == 0)


def test_a_head_without_end_is_refused(paths):
    """A request head over 16 KiB is refused instead of kept in memory."""
    with a_sink(paths) as sink, connect(sink.port) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000)

        assert reply_on(client).status == 400


HEADS = st.sampled_from(
    [
        b"",
        b"PUT /v1/runs/test/shards/000000 HTTP/1.1\r\nHost: sink\r\nContent-Length: 40\r\n\r\n",
        b"PUT /v1/runs/test/shards/000000 HTTP/1.1\r\nHost: sink\r\nContent-Length: 1184\r\n\r\n\xf8\x03\0\0\0\0\0\0",
        b"PUT /v1/runs/test/shards/000000 HTTP/1.1\r\nHost: sink\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /v1/runs/other HTTP/1.1\r\nHost: sink\r\n",  # an empty line makes it whole
        b"GET /",
    ]
)


def test_hostile_bytes_never_break_the_sink(paths, caplog):
    """Whatever bytes arrive, the sink answers with 4xx or hangs up, logs no traceback, and goes on serving."""
    caplog.set_level(logging.INFO)

    with a_sink(paths, idle_seconds=2.0) as sink:

        @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(HEADS, st.binary(max_size=200))
        def attack(head, body):
            with connect(sink.port) as client:
                client.sendall(head + body)
                client.shutdown(1)
                answer = read_to_end(client)
            assert answer[:12] in (b"", b"HTTP/1.1 400", *(b"HTTP/1.1 %d" % status for status in (404, 409, 411, 422)))

        attack()
        assert ask(sink.port, "GET", "/healthz").status == 200

    assert files_left(paths) == []
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_shard_with_one_byte_changed_is_never_a_bug(paths, sink_for_module, place, value):
    """A shard with any one byte changed is stored, found there or refused; the sink never fails on it."""
    data = bytearray(a_shard(paths, 0, quarantined=[Quarantined(id="s0", reason="all_zero", detail="é")]))
    data[place % len(data)] = value

    status = put(sink_for_module.port, 0, bytes(data)).status

    assert status in (200, 201, 400, 409, 422)


@pytest.fixture
def sink_for_module(paths):
    """One sink for all examples of a test."""
    with a_sink(paths) as sink:
        yield sink


def read_to_end(client) -> bytes:
    """Return what the sink sends until it hangs up."""
    answer = b""
    try:
        while part := client.recv(65536):
            answer += part
    except ConnectionResetError:
        pass
    return answer
