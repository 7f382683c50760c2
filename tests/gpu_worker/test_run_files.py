"""What is made once per run is made by whoever comes first, and never twice."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import pytest

import hiddenstream
from gpu_worker.run_files import save_run_files
from gpu_worker.sink_client import SinkClient, SinkRefused
from hiddenstream.chassis.lifecycle import StopRequest
from tests.gpu_worker.made import a_planned_run, loaded
from tests.sink.harness import LOCALHOST, a_sink


@pytest.fixture
def planned(tmp_path, tiny_model):
    """A run that keeps `final` and the heads, and its loaded model."""
    paths = a_planned_run(tmp_path, tiny_model("llama"), taps=("block.4",), keeps_final=True, keeps_heads=True)
    return paths, loaded(paths.read_record())


def save(paths, model, port, *, stop=None, record=None):
    record = record or paths.read_record()
    client = SinkClient(f"http://{LOCALHOST}:{port}", record.run, None)
    save_run_files(model, record, client, model=record.model, stop=stop or StopRequest())


def stored(paths):
    return {file.stem: file.stat().st_ino for file in paths.root.glob("*.safetensors")}


def test_final_norm_and_heads_are_stored_once(planned):
    """The first worker stores both, the reader gets them, and a second worker changes nothing."""
    paths, model = planned
    with a_sink(paths) as sink:
        save(paths, model, sink.port)
        first = stored(paths)
        del model.blocks[:]  # so that nothing could be made of it again
        save(paths, model, sink.port, record=replace(paths.read_record(), model="nowhere"))

    run = hiddenstream.open(paths.root)
    assert {"final_norm", "heads"} == set(first)
    assert first == stored(paths)
    assert ("rms_norm", (128, 64)) == (run.final_norm().kind, run.heads().lm_head.shape)


@pytest.mark.parametrize(("final", "heads"), [(False, False), (True, False), (False, True)])
def test_what_was_not_asked_for_is_not_made(planned, final, heads):
    """Each file has its flag."""
    paths, model = planned
    record = replace(paths.read_record(), keeps_final=final, keeps_heads=heads)
    with a_sink(paths) as sink:
        save(paths, model, sink.port, record=record)

    assert {name for name, is_kept in (("final_norm", final), ("heads", heads)) if is_kept} == set(stored(paths))


def test_a_sink_that_is_away_is_waited_for(planned):
    """A worker that is ready before its sink stores the files once that is there."""
    paths, model = planned
    with socket.socket() as taken:
        taken.bind((LOCALHOST, 0))
        port = taken.getsockname()[1]
    waiting = threading.Thread(target=save, args=(paths, model, port))
    waiting.start()

    with a_sink(paths, listen=(LOCALHOST, port)):
        waiting.join(20)

    assert not waiting.is_alive()
    assert {"final_norm", "heads"} == set(stored(paths))


def test_waiting_ends_when_stopping_is_asked_for(planned):
    """A worker that is told to stop does not wait for its sink."""
    paths, model = planned
    stop = StopRequest()
    stop.set()

    save(paths, model, 9, stop=stop)  # nobody listens on the discard port

    assert {} == stored(paths)


def test_a_refusal_ends_it(planned):
    """A sink of another run is not asked again."""
    paths, model = planned
    with a_sink(paths) as sink, pytest.raises(SinkRefused, match="409"):
        save(paths, model, sink.port, record=replace(paths.read_record(), run="another"))
