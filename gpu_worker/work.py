"""The `work` command: one worker, from its settings to its exit code."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gpu_worker.settings import WorkerSettings
from gpu_worker.supervisor import WORKER_REFUSED, Supervisor
from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.logs import log, start_logging
from hiddenstream.chassis.settings import from_process
from hiddenstream.contracts.errors import HiddenstreamError

_LOGGER = logging.getLogger("gpu_worker")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker until its run is complete or it is asked to stop; return its exit code."""
    settings = from_process(WorkerSettings, command="hiddenstream work", arguments=arguments)
    start_logging("gpu_worker")
    stop = StopRequest().install()
    try:
        supervisor = Supervisor(settings, stop)
    except HiddenstreamError as error:  # before there is anything to stay for
        log(_LOGGER, WORKER_REFUSED, {"reason": error.reason, "message": str(error)}, level=logging.ERROR)
        return error.exit_code
    return supervisor.run()
