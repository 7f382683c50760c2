"""The sink as a process: start, serve until asked to stop, finish what is under way."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.logs import add_log_file, log, start_logging
from hiddenstream.chassis.metrics import MetricsServer
from hiddenstream.chassis.settings import from_process, secret
from hiddenstream.contracts.errors import HiddenstreamError, RunDirectoryError
from hiddenstream.run_directory.paths import RunPaths
from sink.disk import DiskSpace
from sink.files import IncomingFolder, make_folder
from sink.metrics import SinkMetrics
from sink.recover import recover_orphans
from sink.routes import Service
from sink.served_run import load_run
from sink.server import Server
from sink.settings import SinkSettings
from sink.store import Store

SINK_LISTENING = "sink_listening"
RUN_LOADED = "run_loaded"
LEDGER_UNREADABLE = "ledger_unreadable"
LEDGER_LINE_UNREADABLE = "ledger_line_unreadable"
SINK_STOPPED = "sink_stopped"
SINK_FAILED = "sink_failed"
GRACE_SECONDS = 30.0  # for uploads under way when the sink is asked to stop
_TICK_SECONDS = 0.5
_LOGGER = logging.getLogger("sink")


class Sink:
    """A sink that serves from the moment it exists.

    Attributes:
        port, metrics_port: where it listens, also where port 0 was asked for.
    """

    def __init__(self, settings: SinkSettings) -> None:
        """Take the sink's folder, recover from a crash, and listen.

        Raises:
            UsageError: an address or the token file is unusable.
            RunDirectoryError: another sink has this name, or the plan is damaged.
        """
        self._paths = RunPaths(settings.run_directory)
        self._name = settings.name
        self._incoming = _take_folders(self._paths, settings.name)
        self._disk = DiskSpace(self._paths.root, reserve_bytes=settings.reserve_bytes)
        self._told_problems = 0
        registry = CollectorRegistry()
        self._metrics = SinkMetrics.in_registry(registry)
        self._metrics.watch_disk(self._disk, settings.reserve_bytes)
        self._service = Service(
            name=settings.name, token=secret(settings.token, settings.token_file), metrics=self._metrics
        )
        self.tick()
        self._metrics_server = MetricsServer(registry, listen=settings.metrics_listen)
        self._server = Server(
            self._service,
            listen=settings.listen,
            max_connections=settings.max_connections,
            idle_seconds=settings.idle_seconds,
        )
        self.port, self.metrics_port = self._server.port, self._metrics_server.port
        log(
            _LOGGER,
            SINK_LISTENING,
            {
                "host": self._server.host,
                "port": self.port,
                "metrics_port": self.metrics_port,
                "name": settings.name,
                "swept_files": self._incoming.swept_files,
            },
        )

    def tick(self) -> None:
        """Load the run once it is planned, and show how far it is. To be called about twice a second.

        Raises:
            RunDirectoryError: the plan is damaged.
        """
        if self._service.store is None:
            if not self._paths.is_planned():
                return
            self._service.store = self._load()
        run = self._service.store.run
        try:
            self._metrics.show_progress(run.progress())
        except OSError as error:  # uploads will tell, should it last
            log(_LOGGER, LEDGER_UNREADABLE, {"message": str(error)}, level=logging.WARNING)
        problems = run.ledger.problems()
        for problem in problems[self._told_problems :]:
            log(_LOGGER, LEDGER_LINE_UNREADABLE, problem, level=logging.ERROR)
        self._told_problems = len(problems)

    def _load(self) -> Store:
        run = load_run(self._paths, self._name)
        recovered = recover_orphans(run)
        self._metrics.shards_recovered.inc(recovered)
        log(
            _LOGGER,
            RUN_LOADED,
            {"run": run.record.run, "fingerprint": run.record.identity.fingerprint, "recovered_shards": recovered}
            | dataclasses.asdict(run.progress()),
        )
        return Store(run=run, incoming=self._incoming, disk=self._disk)

    def close(self) -> None:
        """Stop accepting, let uploads under way finish, and let go of everything."""
        self._server.close(grace_seconds=GRACE_SECONDS)
        self._metrics_server.close()
        self._incoming.close()


def _take_folders(paths: RunPaths, sink: str) -> IncomingFolder:
    try:
        for folder in (paths.shards, paths.ledger):
            make_folder(folder)
        return IncomingFolder(paths, sink)
    except OSError as error:
        raise RunDirectoryError(f"{paths.root} cannot be written: {error}") from error


def serve(settings: SinkSettings, stop: StopRequest) -> int:
    """Serve until *stop*; return the exit code."""
    sink = Sink(settings)
    try:
        while not stop.wait(_TICK_SECONDS):
            sink.tick()
    finally:
        sink.close()
    log(_LOGGER, SINK_STOPPED, {"name": settings.name})
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``sink``; return its exit code."""
    start_logging("sink")
    try:
        settings = from_process(SinkSettings, command="hiddenstream sink", arguments=arguments)
        if settings.log_file is not None:
            add_log_file("sink", settings.log_file)
        return serve(settings, StopRequest().install())
    except HiddenstreamError as error:
        log(_LOGGER, SINK_FAILED, {"reason": error.reason, "message": str(error)}, level=logging.ERROR)
        return error.exit_code
