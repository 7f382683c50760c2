"""Upload speed into the sink, against a bare socket that only receives the same bytes.

Run: ``python -m bench.sink_speed [MEGABYTES] [REPEATS]``. Both sides share this machine. The sink also checks,
hashes, writes, fsyncs and ledgers; the last ratio leaves
fsync and commit out, by the sink's own ledger.
"""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from hiddenstream.run_directory.ledger import LedgerReader
from hiddenstream.run_directory.paths import RunPaths
from tests import factories
from tests.sink.harness import a_head, a_sink_process, connect, reply_on

factories.HIDDEN_SIZE = 6400  # with two float32 taps, 51 KB for each token, as in a real run
BYTES_PER_TOKEN = 51_205


def bare_seconds(data: bytes) -> float:
    """Receive *data* in a process that does nothing with it."""
    program = (
        "import socket,sys\n"
        "s=socket.create_server(('127.0.0.1',0));print(s.getsockname()[1],flush=True)\n"
        "c,_=s.accept();b=memoryview(bytearray(1<<20));left=int(sys.argv[1])\n"
        "while left: left-=c.recv_into(b)\n"
        "c.sendall(b'!')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(len(data))], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    with process, socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as client:
        started = time.perf_counter()
        client.sendall(data)
        client.recv(1)
        return time.perf_counter() - started


def sink_seconds(template: RunPaths, folder: Path, data: bytes) -> tuple[float, float]:
    """Upload *data* into a new sink; return seconds, and seconds until its last byte was checked and written."""
    shutil.copytree(template.root, folder)
    paths = RunPaths(folder)
    with a_sink_process(paths) as (_, port), connect(port) as client:
        client.settimeout(300)
        started = time.perf_counter()
        client.sendall(a_head(0, len(data)))
        client.sendall(data)
        status = reply_on(client).status
        seconds = time.perf_counter() - started
    assert status == 201, status
    ledger = LedgerReader(paths.ledger)
    (line,) = ledger.poll()
    shutil.rmtree(folder)
    return seconds, line.receive_seconds


def show(name: str, values: list[float], unit: str) -> None:
    """Print a median with its spread."""
    print(f"{name:34} median {statistics.median(values):8.2f} {unit}   from {min(values):.2f} to {max(values):.2f}")


def main(megabytes: int, repeats: int) -> None:
    """Measure in turn, so that a slow minute of the machine hits both."""
    with tempfile.TemporaryDirectory() as name:
        template = factories.a_run(Path(name) / "template", shards=((megabytes * 1_000_000 // BYTES_PER_TOKEN,),))
        data = factories.a_shard(template, 0)
        bare, whole, receive = [], [], []
        for repeat in range(repeats):
            bare.append(len(data) / 1e6 / bare_seconds(data))
            seconds, receiving = sink_seconds(template, Path(name) / f"run{repeat}", data)
            whole.append(len(data) / 1e6 / seconds)
            receive.append(len(data) / 1e6 / receiving)
    print(f"{len(data) / 1e6:.0f} MB for each upload, {repeats} repeats, {threading.active_count()} client thread")
    show("bare socket", bare, "MB/s")
    show("sink, durable answer", whole, "MB/s")
    show("sink, receiving, hashing, writing", receive, "MB/s")
    show("sink / bare socket", [a / b for a, b in zip(whole, bare, strict=True)], "x")
    show("receiving / bare socket", [a / b for a, b in zip(receive, bare, strict=True)], "x")


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:] + ["256", "7"][len(sys.argv) - 1 :]))
