"""Making what is made once per run, where the sink has none yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gpu_worker.final_norm import final_norm_file
from gpu_worker.heads import heads_file
from gpu_worker.model import LoadedModel
from gpu_worker.sink_client import SinkClient, SinkRefused, SinkUnavailable
from gpu_worker.upload import log_waiting
from hiddenstream.chassis.lifecycle import StopRequest, backoff
from hiddenstream.chassis.logs import log
from hiddenstream.contracts.run import RunRecord

RUN_FILE_SENT = "run_file_sent"
_WRONG_HASH_ATTEMPTS = 3  # damaged on the way, or in our memory: the latter does not mend
_LOGGER = logging.getLogger("gpu_worker.run_files")
Pieces = Sequence[bytes | memoryview]


def save_run_files(loaded: LoadedModel, record: RunRecord, sink: SinkClient, *, model: str, stop: StopRequest) -> None:
    """Send the final norm and the heads, as the run asks for them and unless the sink has them.

    Several workers may do so at the same time; the sink keeps the first of each. Waits for the sink as long as it
    takes; returns without having sent anything where stopping is asked for meanwhile.

    Args:
        model: path or hub id where the worker finds the model.

    Raises:
        ModelError: the model has no final norm that can be saved, or no heads.
        SinkRefused: the sink does not take a file.
    """
    makers: dict[str, Callable[[], Pieces]] = {}
    if record.keeps_final:
        makers["final_norm"] = lambda: final_norm_file(loaded, record)
    if record.keeps_heads:
        makers["heads"] = lambda: heads_file(record, model)
    for name, make in makers.items():
        _save(name, make, sink, stop)


def _save(name: str, make: Callable[[], Pieces], sink: SinkClient, stop: StopRequest) -> None:
    pieces: Pieces = ()
    attempts = 0
    for pause_seconds in backoff():
        try:
            if not pieces and sink.has_file(name):
                return
            pieces = pieces or make()
            attempts += 1
            outcome = sink.put_file(name, pieces)
            facts = {"file": name, "file_bytes": sum(map(len, pieces)), "outcome": outcome, "attempts": attempts}
            log(_LOGGER, RUN_FILE_SENT, facts)
            return
        except SinkUnavailable as error:
            log_waiting(error)
        except SinkRefused as error:
            if error.sink_reason != "wrong_hash" or attempts >= _WRONG_HASH_ATTEMPTS:
                raise
        if stop.wait(pause_seconds):
            return
