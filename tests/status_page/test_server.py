"""The status page over real sockets, also against clients that mean it no good."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from docs.status_pictures import made_status
from hiddenstream.contracts.errors import UsageError
from hiddenstream.status_page import server as server_module
from hiddenstream.status_page.server import MOST_CONNECTIONS, TERMINAL_AGENT, StatusServer
from hiddenstream.status_page.status import RunStatus
from tests.conftest import wait_until


@contextmanager
def serving(status=made_status, host="127.0.0.1"):
    server = StatusServer(status, listen=(host, 0))
    try:
        yield server
    finally:
        server.close()


def asked(server, path="/", method="GET", headers=None):
    """Return status, headers and body of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    told = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return told


def sent(server, data):
    """Send raw bytes; return all that comes back."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        received = b""
        while part := client.recv(65536):
            received += part
        return received


def test_the_page_is_one_file_that_may_load_nothing_else():
    """The page comes with a policy that forbids foreign sources and inline code other than its own."""
    with serving() as server:
        status, headers, body = asked(server)

    policy = headers["Content-Security-Policy"]
    assert 200 == status
    assert body.startswith(b"<!doctype html>")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert b"://" not in body.replace(b"http://www.w3.org/2000/svg", b"")


def test_the_facts_are_json_that_can_be_read_back():
    """/status.json holds the whole status, and programs get the same status out of it."""
    made = made_status(workers=64)
    with serving(lambda: made) as server:
        status, headers, body = asked(server, "/status.json")

    assert (200, "application/json") == (status, headers["Content-Type"])
    assert made == RunStatus.from_wire(json.loads(body))


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [("GET", "/healthz", 200), ("GET", "/../etc/passwd", 404), ("POST", "/", 405), ("DELETE", "/status.json", 405)],
)
def test_only_three_paths_are_read_and_nothing_is_written(method, path, expected):
    """Other paths are not found, other methods not allowed."""
    with serving() as server:
        assert expected == asked(server, path, method)[0]


def test_head_has_headers_alone():
    """HEAD tells the length and sends no body."""
    with serving() as server:
        status, headers, body = asked(server, "/", "HEAD")

    assert (200, b"") == (status, body)
    assert int(headers["Content-Length"]) > 1000


def test_a_foreign_site_cannot_read_the_page_through_a_rebound_name():
    """A request that names another host is refused, on every address; addresses, and names that are known, are not."""
    for listen in ("127.0.0.1", "0.0.0.0"):
        server = StatusServer(made_status, listen=(listen, 0), hosts=("Runs.example",))
        try:
            answers = {
                name: asked(server, "/status.json", headers={"Host": name})[0]
                for name in ("evil.example:8080", "", "localhost:8080", "10.0.0.7:8080", "[::1]:80", "runs.example")
            }
        finally:
            server.close()
        assert [403, 403, 200, 200, 200, 200] == list(answers.values())


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\r\n\r\n",
        b"A" * 100_000,
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"",
    ],
)
def test_nonsense_is_refused_and_the_next_is_served(data):
    """A malformed request gets 4xx or nothing, never the page, and harms nobody."""
    with serving() as server:
        try:
            answer = sent(server, data)
        except ConnectionError:
            answer = b""

        assert not answer or answer.split(b" ")[1].startswith(b"4")
        assert 200 == asked(server)[0]


def test_slow_clients_are_cut_off_and_cannot_keep_others_out(monkeypatch):
    """Clients that send nothing hold all connections for a bounded time; then others are served again."""
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.5)
    with serving() as server:
        slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MOST_CONNECTIONS)]

        def is_served():
            try:
                return 200 == asked(server, "/healthz")[0]
            except (OSError, http.client.HTTPException):
                return False

        wait_until(is_served, 10)
        for client in slow:
            client.close()


def test_the_status_is_made_at_most_once_a_second():
    """However many ask at once, the status is made once, and all of them get it."""
    made = []

    def status():
        made.append(threading.get_ident())
        time.sleep(0.05)  # a status takes a while
        return made_status(workers=1)

    with serving(status) as server:
        askers = [threading.Thread(target=asked, args=(server, "/status.json")) for _ in range(8)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()

    assert 1 == len(made)


def test_a_status_that_fails_ends_no_server(caplog):
    """An error while the status is made is logged, and the page is served on."""

    def status():
        raise ZeroDivisionError

    with serving(status) as server:
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            asked(server, "/status.json")

        assert 200 == asked(server)[0]
    assert ["status_page_failed"] == caplog.messages


def test_only_browsers_count_as_watching():
    """Whoever looks through our own terminal needs no page after the end."""
    with serving() as server:
        asked(server, "/status.json", headers={"User-Agent": TERMINAL_AGENT})
        is_watched_by_terminal = server.is_watched()
        asked(server, "/status.json")

        assert (False, True) == (is_watched_by_terminal, server.is_watched())


def test_a_taken_port_is_a_usage_error():
    """The message names the setting."""
    with serving() as server, pytest.raises(UsageError, match="--status-listen"):
        StatusServer(made_status, listen=("127.0.0.1", server.port))


def test_nothing_listens_after_close():
    """A closed server refuses connections."""
    with serving() as server:
        port = server.port

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
