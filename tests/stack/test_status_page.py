"""The status page in a real browser."""

from __future__ import annotations

import html
import re
import socket
import threading
from dataclasses import replace

import pytest

from docs.status_pictures import made_failures, made_status
from hiddenstream.status_page import server as server_module
from hiddenstream.status_page.parts import Example, FailureGroup, LogLine
from hiddenstream.status_page.server import StatusServer
from tests.stack.browser import browse

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture
def browser(tmp_path):
    """Return what loads a page in Chromium, and gives its DOM after its scripts have run."""

    def dumped(url, *flags, **options):
        return browse(tmp_path / "profile", url, *flags, "--dump-dom", **options)

    return dumped


def shown(dom):
    """Return the text of a DOM without its style and script."""
    body = re.sub(r"<(style|script)>.*?</\1>", "", dom, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", body))


def loaded(browser, status, **options):
    server = StatusServer(lambda: status, listen=("127.0.0.1", 0))
    try:
        return browser(server.url, **options)
    finally:
        server.close()


def test_the_page_shows_a_run(browser):
    """Progress, speed, workers, disk, queue, failures, log and the bottleneck are there in words."""
    dom = loaded(browser, made_status())
    text = re.sub(r"\s+", " ", shown(dom))

    expected = ["conversations-2026", "Qwen/Qwen3-8B", "Running", "43.0 %", "395M of 918M", "6,020 of 14,000"]
    expected += ["3 h 45 min left", "worker-3", "63.3 of 141 GiB", "97 %", "650 W", "The forward passes are the limit"]
    expected += ["212 shards", "enough for the rest", "1,204 rejected", "conversation-4012", "engine died", "live ·"]
    assert [] == [words for words in expected if words not in text]
    assert 'aria-valuenow="43.0"' in dom
    assert "<polyline" in dom


def test_hostile_text_is_shown_and_never_run(browser):
    """An id, a log line or a message that is markup is text: no element of it exists, and no code of it runs."""
    made = made_status()
    group = FailureGroup(kind="quarantined", reason=HOSTILE, count=1, examples=(Example(name=HOSTILE, detail=HOSTILE),))
    line = LogLine(time="2026-01-01T00:00:00Z", level="error", source=HOSTILE, event=HOSTILE, text=HOSTILE)
    worker = replace(made.workers[0], worker=HOSTILE, message=HOSTILE, device=HOSTILE)
    status = replace(
        made, run=HOSTILE, model=HOSTILE, message=HOSTILE, bottleneck_message=HOSTILE, failures=(group,), log=(line,),
        workers=(worker,),
    )  # fmt: skip

    dom = loaded(browser, status)

    assert shown(dom).count("<img src=x onerror=") >= 8
    assert "<img" not in dom
    assert 1 == dom.count("<script>")
    assert "<title>owned" not in dom


def test_nothing_but_this_server_is_asked(browser):
    """The browser resolves no name and connects nowhere else: with a proxy for all the rest, the proxy is idle."""
    asked = []
    proxy = socket.create_server(("127.0.0.1", 0))

    def listen():
        while True:
            try:
                connection, _ = proxy.accept()
            except OSError:
                return
            asked.append(connection.recv(200))
            connection.close()

    threading.Thread(target=listen, daemon=True).start()
    server = StatusServer(made_status, listen=("127.0.0.1", 0))
    try:
        flags = [f"--proxy-server=127.0.0.1:{proxy.getsockname()[1]}", "--proxy-bypass-list=127.0.0.1"]
        dom = browser(server.url, *flags)
    finally:
        server.close()
        proxy.shutdown(socket.SHUT_RDWR)
        proxy.close()

    of_chromium = (b"google", b"gstatic", b"gvt1")  # the browser's own housekeeping, whatever page is open
    assert "Running" in shown(dom)
    assert [] == [request for request in asked if not any(name in request for name in of_chromium)]


@pytest.mark.parametrize("workers", [1, 4, 64])
def test_the_page_fits_a_phone_of_360_pixels(browser, workers):
    """Framed at 360 pixels, nothing reaches past the right edge, also with long names and messages."""
    made = made_status(workers=workers)
    long = "x" * 300
    crew = tuple(replace(worker, worker=f"worker{long}"[:64], message=long) for worker in made.workers)
    failures = (*made_failures(), FailureGroup(kind="rejected", reason="r", count=1, examples=(Example(name=long),)))
    line = LogLine(time="2026-01-01T00:00:00Z", level="info", source=long[:64], event="e", text=long)
    status = replace(made, run=long[:64], workers=crew, failures=failures, log=(line,))
    server = StatusServer(lambda: status, listen=("127.0.0.1", 0))
    frame = _Frame(server.url)
    try:
        dom = browser(frame.url, size=(800, 900))
    finally:
        frame.close()
        server.close()

    assert "<title>360 360</title>" in dom


def test_64_workers_are_all_there_and_those_in_trouble_come_first(browser):
    """Every worker has its row; the ones that do not work are not below the fold."""
    dom = loaded(browser, made_status(workers=64))
    rows = re.findall(r'<td class="name">([^<]*)</td>', dom)

    assert 64 == len(set(rows))
    assert {"node2-gpu1", "node5-gpu2"} == set(rows[:2])


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("waiting_for_redis", "Waiting for Redis"),
        ("stuck", "Stuck"),
        ("complete", "Complete"),
        ("planning", "Planning"),
    ],
)
def test_each_state_is_said_in_words(browser, state, words):
    """The state does not hang on a colour."""
    status = replace(made_status(workers=1), state=state, rows_read=1234)

    text = shown(loaded(browser, status))

    assert words in text
    assert ("1,234" in text) == (state == "planning")


def test_a_lost_connection_is_said(browser, monkeypatch):
    """When the server answers no more after the first time, the page says so, since when, and keeps what it knows."""
    monkeypatch.setattr(server_module, "_FRESH_SECONDS", 0.0)
    made = made_status()
    answers = []

    def status():
        answers.append(1)
        if len(answers) > 1:
            raise ConnectionAbortedError
        return made

    server = StatusServer(status, listen=("127.0.0.1", 0))
    try:
        text = shown(browser(server.url, milliseconds=9000))
    finally:
        server.close()

    assert "conversations-2026" in text
    assert re.search(r"No connection since \d\d:\d\d:\d\d; shown is", text)


class _Frame:
    """A page on a port of its own that frames the status page at 360 pixels and puts its width in the title.

    The status page may not be framed, so it is fetched here and given back without its headers.
    """

    def __init__(self, target):
        import urllib.request
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/frame":
                    body = _MEASURE
                else:
                    with urllib.request.urlopen(target.rstrip("/") + self.path) as answer:
                        body = answer.read()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                """No news."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/frame"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


_MEASURE = b"""<!doctype html><title>?</title><iframe src="/" style="width:360px;height:800px;border:0"></iframe>
<script>setTimeout(() => { const d = frames[0].document;
d.querySelectorAll("details").forEach((one) => one.open = true);
const isDrawn = d.querySelector(".big").textContent;
document.title = isDrawn ? frames[0].innerWidth + " " + d.documentElement.scrollWidth : "empty";
}, 1500);</script>"""


class Undrawable:
    """A status of another shape than the page knows."""

    def to_wire(self):
        return made_status().to_wire() | {"workers": None}


def test_what_cannot_be_drawn_is_said_for_as_long_as_it_lasts(browser):
    """The page says so at each poll, and never that it is live, though nothing has changed since the last one."""
    server = StatusServer(Undrawable, listen=("127.0.0.1", 0))
    try:
        text = shown(browser(server.url, milliseconds=7000))
    finally:
        server.close()

    assert "cannot show that" in text
    assert "live ·" not in text
