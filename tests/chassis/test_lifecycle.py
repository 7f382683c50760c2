"""Stopping on signals, dying with the parent, waiting longer and longer."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest

from hiddenstream.chassis.lifecycle import StopRequest, backoff
from tests.conftest import wait_until

WAITER = """
import sys
from hiddenstream.chassis.lifecycle import StopRequest
stop = StopRequest().install()
print("ready", flush=True)
sys.exit(7 if stop.wait(60) else 1)
"""
PARENT = """
import subprocess, sys
from hiddenstream.chassis.lifecycle import dies_with_parent
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], preexec_fn=dies_with_parent())
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_wakes_who_waits(number):
    """SIGTERM and SIGINT ask to stop; a wait ends at once, and the process ends in its own way."""
    process = subprocess.Popen([sys.executable, "-c", WAITER], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"

    process.send_signal(number)

    assert process.wait(timeout=20) == 7
    process.stdout.close()


def test_stopping_can_be_asked_for_from_a_thread():
    """A request set anywhere is seen everywhere."""
    stop = StopRequest()
    before = stop.is_set()

    threading.Thread(target=stop.set).start()

    assert (before, stop.wait(20), stop.is_set()) == (False, True, True)


def test_a_wait_ends_without_a_request_too():
    """Waiting is sleeping as long as nobody asks to stop."""
    assert StopRequest().wait(0.001) is False


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(") ")[2][0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_child_dies_with_its_parent():
    """A parent that is killed outright leaves no child behind."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    child = int(parent.stdout.readline())
    was_running = is_running(child)

    parent.kill()
    parent.wait()

    assert was_running
    wait_until(lambda: not is_running(child))
    parent.stdout.close()


def test_waits_double_up_to_a_limit():
    """Each wait is the doubled one, shortened by up to a quarter, so that many do not come at once."""
    waits = list(itertools.islice(backoff(first_seconds=1, most_seconds=5), 6))

    for wait, whole in zip(waits, (1, 2, 4, 5, 5, 5), strict=True):
        assert 0.75 * whole <= wait <= whole
