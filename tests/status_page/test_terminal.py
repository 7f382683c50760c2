"""What a terminal shows, on a real one (a pty) and where there is none."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from dataclasses import replace

import pytest

from docs.status_pictures import made_status
from hiddenstream.status_page.client import fetch_status
from hiddenstream.status_page.live import Live
from hiddenstream.status_page.server import StatusServer
from hiddenstream.status_page.terminal import block, columns_of, one_line
from tests.conftest import wait_until
from tests.factories import a_run, store_shard

ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Terminal:
    """A pty of some size; what is written to it is collected."""

    def __init__(self, columns=80, lines=40):
        self._master, self.end = pty.openpty()
        self.resize(columns, lines)
        self.text = ""
        threading.Thread(target=self._read, daemon=True).start()

    def resize(self, columns, lines=40):
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self):
        while True:
            try:
                part = os.read(self._master, 65536)
            except OSError:
                return
            self.text += part.decode()

    def stream(self):
        return open(os.dup(self.end), "w", encoding="utf-8")


@pytest.mark.parametrize("width", [20, 40, 79, 200])
@pytest.mark.parametrize("workers", [1, 64])
def test_no_line_is_wider_than_the_terminal_or_80_columns(width, workers):
    """Whatever the width, each line fits, also with wide and unprintable characters from a log or a host."""
    made = made_status(workers=workers)
    hostile = replace(made.workers[0], message="\x1b[2J\r\n漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字")
    status = replace(made, workers=(hostile, *made.workers[1:]))

    lines = block(status, width, url="http://127.0.0.1:8080/")

    assert max(columns_of(line) for line in lines) <= min(width, 80)
    assert all(line.isprintable() for line in lines)


def test_colour_changes_no_text():
    """Without its escape sequences a coloured block is the plain one."""
    status = made_status()

    coloured = block(status, 80, is_coloured=True)

    assert block(status, 80) == [ESCAPE.sub("", line) for line in coloured]
    assert block(status, 80) != coloured


def test_the_facts_are_all_there():
    """Done, amounts, speed, time left, workers, bottleneck, memory, disk, queue, failures and the page's address."""
    text = "\n".join(block(made_status(), 80, url="http://127.0.0.1:8080/"))

    expected = ["43.0 %", "395M of 918M tokens", "385k of 896k samples", "38.7k tokens/s", "3 h 45 min left"]
    expected += ["4 working", "gpu: The forward", "63.3 of 141 GiB", "41 TB free", "212 waiting", "3 quarantined"]
    expected += ["1,204 rejected", "http://127.0.0.1:8080/"]
    assert [] == [words for words in expected if words not in text]


def test_a_pipe_gets_a_line_at_once_one_a_minute_and_one_at_the_end():
    """Where there is no terminal nothing is redrawn and nothing is coloured."""
    clock, stream = [0.0], io.StringIO()
    live = Live(stream, {"TERM": "xterm"}, clock=lambda: clock[0])

    for second in range(130):
        clock[0] = float(second)
        live.show(made_status())
    live.close(made_status(done=1.0))

    lines = stream.getvalue().splitlines()
    assert 4 == len(lines)
    assert "43.0 % running, 395M of 918M tokens" in lines[0]
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    ("environment", "is_redrawn", "is_coloured"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_a_terminal_is_redrawn_in_place(environment, is_redrawn, is_coloured):
    """The second block goes up over the first; NO_COLOR takes the colours, TERM=dumb all escape sequences."""
    terminal = Terminal()
    with terminal.stream() as stream:
        live = Live(stream, environment)
        live.show(made_status())
        live.show(made_status(done=0.5))
        live.close(made_status(done=0.6))
    wait_until(lambda: "60.0 %" in terminal.text)

    height = len(block(made_status(), 79))
    assert is_redrawn == (f"\x1b[{height}A" in terminal.text)
    assert is_coloured == ("\x1b[1m" in terminal.text)


def test_a_narrower_window_is_cleared_of_what_it_wrapped():
    """After the window shrank, the rows that the old lines now take are all erased, and the new lines fit."""
    terminal = Terminal(columns=81)
    with terminal.stream() as stream:
        live = Live(stream, {"TERM": "xterm", "NO_COLOR": "1"})
        live.show(made_status())
        wait_until(lambda: "failures" in terminal.text)
        rows = sum(-(-columns_of(line) // 40) for line in block(made_status(), 80))
        terminal.resize(40, lines=60)
        begin = len(terminal.text)
        live.show(made_status(done=0.5))
        wait_until(lambda: "failures" in terminal.text[begin:])

    redrawn = terminal.text[begin:]
    assert f"\x1b[{rows}A" in redrawn
    assert max(len(line) for line in ESCAPE.sub("", redrawn).replace("\r", "").split("\n")) < 40


def test_notes_stay_above_the_block():
    """A note is printed where the block was, and the block below it."""
    terminal = Terminal()
    with terminal.stream() as stream:
        live = Live(stream, {"TERM": "xterm", "NO_COLOR": "1"})
        live.show(made_status())
        live.note(lambda: print("worker-0 died", file=stream, flush=True))
    wait_until(lambda: "rejected" in terminal.text.partition("worker-0 died")[2])

    after = terminal.text.partition("worker-0 died")[2]
    assert "conversations-2026: running" in after


def test_the_page_s_status_comes_over_http():
    """A program gets the whole status from a page, and None from what is none."""
    made = made_status()
    server = StatusServer(lambda: made, listen=("127.0.0.1", 0))
    try:
        assert made == fetch_status(server.url)
        assert fetch_status(f"{server.url}nowhere/") is None
    finally:
        server.close()
    assert fetch_status(server.url) is None


def test_status_watch_follows_a_run_to_its_end(tmp_path):
    """`status --watch` in a pipe tells the start and the end, and exits as the run ended."""
    paths = a_run(tmp_path / "run")
    store_shard(paths, 0)
    watching = subprocess.Popen(
        [sys.executable, "-m", "hiddenstream.cli", "status", str(paths.root), "--watch"],
        stdout=subprocess.PIPE,
        text=True,
    )
    first = watching.stdout.readline()

    store_shard(paths, 1)
    rest, _ = watching.communicate(timeout=30)

    assert "66.7 % not complete" in first
    assert "100 % complete" in rest
    assert 0 == watching.returncode


def test_one_line_has_no_line_breaks():
    """A log's line stays one line."""
    status = replace(made_status(), disk=None, queue=None, failures=())

    assert one_line(status).isprintable()


def test_the_bottleneck_is_told_whole():
    """A sentence that is longer than a line goes on in the next one."""
    lines = block(made_status(), 80)
    first = next(number for number, line in enumerate(lines) if line.startswith("limit"))

    assert " ".join(line.strip() for line in lines[first : first + 2]).endswith(made_status().bottleneck_message)
