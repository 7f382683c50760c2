"""From a request to an answer: who may ask, and what for. Paths and reasons: hiddenstream/contracts/sink_api.py."""

from __future__ import annotations

import hmac
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hiddenstream.chassis.logs import log
from hiddenstream.contracts.errors import HiddenstreamError
from hiddenstream.contracts.sink_api import RUN_FILES
from sink.body import Body
from sink.metrics import SinkMetrics
from sink.refusals import RETRY_AFTER_SECONDS, ShardRefused, UploadAborted
from sink.run_files import store_run_file
from sink.store import Store, store_shard

SHARD_COMMITTED = "shard_committed"
SHARD_ALREADY_THERE = "shard_already_there"
RUN_FILE_COMMITTED = "run_file_committed"
RUN_FILE_ALREADY_THERE = "run_file_already_there"
SHARD_REFUSED = "shard_refused"
UPLOAD_ABORTED = "upload_aborted"
REQUEST_FAILED = "request_failed"
_LOGGER = logging.getLogger("sink")
_ROUTE = re.compile(
    r"/v1/runs/(?P<run>[A-Za-z0-9_-]{1,64})(/shards/(?P<shard>[0-9]{6,18})|/files/(?P<file>[a-z_]{1,32}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; *body* is None where no length was announced."""

    method: str
    target: str
    authorization: bytes
    body: Body | None
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the client gets.

    Attributes:
        content: the body, as JSON.
        file: what is sent instead of *content*.
    """

    status: int
    content: Mapping[str, Any]
    file: Path | None = None
    retry_after_seconds: int | None = None


@dataclass(slots=True, kw_only=True)
class Service:
    """What every connection shares.

    Attributes:
        store: set once the run is planned and loaded.
    """

    name: str
    token: str | None
    metrics: SinkMetrics
    store: Store | None = None


def answer_request(service: Service, request: Request) -> Answer:
    """Answer one request, counting and logging what became of it.

    Raises:
        UploadAborted: there is nobody to answer any more.
    """
    try:
        return _route(service, request)
    except ShardRefused as refusal:
        return _refused(service, request, refusal)
    except UploadAborted as aborted:
        service.metrics.uploads_aborted.inc()
        facts = {"target": request.target, "peer": request.peer, "message": str(aborted)}
        log(_LOGGER, UPLOAD_ABORTED, facts, level=logging.WARNING)
        raise
    except (OSError, HiddenstreamError) as error:  # the disk or the plan fails: a human must look, the worker waits
        facts = {"target": request.target, "message": f"{type(error).__name__}: {error}"}
        log(_LOGGER, REQUEST_FAILED, facts, level=logging.ERROR)
        service.metrics.refusals.labels(reason="not_ready").inc()
        content = {"reason": "not_ready", "message": "the sink cannot read or write its run directory; see its log"}
        return Answer(status=503, content=content, retry_after_seconds=RETRY_AFTER_SECONDS)


def _refused(service: Service, request: Request, refusal: ShardRefused) -> Answer:
    service.metrics.refusals.labels(reason=refusal.reason).inc()
    facts = {"target": request.target, "peer": request.peer, "reason": refusal.reason, "message": str(refusal)}
    if refusal.reason != "not_ready":  # workers may well start first, and ask every few seconds until the plan is there
        log(_LOGGER, SHARD_REFUSED, facts, level=logging.WARNING)
    return Answer(
        status=refusal.status,
        content={"reason": refusal.reason, "message": str(refusal)},
        retry_after_seconds=refusal.retry_after_seconds,
    )


def _route(service: Service, request: Request) -> Answer:
    if (request.method, request.target) == ("GET", "/healthz"):
        return Answer(status=200, content={"status": "ok"})
    _check_token(service, request)
    route = _ROUTE.fullmatch(request.target)
    if route is None or request.method not in _methods(route):
        raise ShardRefused("not_found", f"nothing is at {request.method} {request.target:.100}")
    store = _store_of(service, route["run"])
    if route["shard"] is not None:
        return _answer_shard(service, store, int(route["shard"]), request)
    if route["file"] is not None:
        return _answer_run_file(store, route["file"], request)
    return _answer_run(service, store)


def _methods(route: re.Match[str]) -> tuple[str, ...]:
    if route["shard"] is not None:
        return ("PUT", "HEAD")
    if route["file"] is not None:
        return ("PUT", "GET", "HEAD") if route["file"] in RUN_FILES else ()
    return ("GET",)


def _check_token(service: Service, request: Request) -> None:
    if service.token is None:
        return
    expected = b"Bearer " + service.token.encode()
    if not hmac.compare_digest(expected, request.authorization):
        raise ShardRefused("unauthorized", "the sink wants its token: Authorization: Bearer TOKEN")


def _store_of(service: Service, run: str) -> Store:
    if service.store is None:
        raise ShardRefused("not_ready", "the run is not planned yet")
    served = service.store.run.record.run
    if run != served:
        raise ShardRefused("wrong_run", f"this sink serves run {served!r}, not {run!r}")
    return service.store


def _answer_run(service: Service, store: Store) -> Answer:
    record, progress = store.run.record, store.run.progress()
    return Answer(
        status=200,
        content={
            "run": record.run,
            "record": {**json.loads(record.to_json()), "sources": []},  # a worker needs none, and there may be many
            "fingerprint": record.identity.fingerprint,
            "progress": progress.to_json(),
            "is_complete": progress.is_complete,
            "sink": service.name,
        },
    )


def _answer_shard(service: Service, store: Store, shard: int, request: Request) -> Answer:
    if request.method == "HEAD":
        return Answer(status=200 if store.run.is_committed(shard) else 404, content={})
    facts = store_shard(store, shard, _body_of(request))
    if facts is None:
        service.metrics.shards_duplicate.inc()
        log(_LOGGER, SHARD_ALREADY_THERE, {"shard": shard, "peer": request.peer})
        return Answer(status=200, content={"status": "duplicate"})
    service.metrics.count_commit(facts)
    log(_LOGGER, SHARD_COMMITTED, facts)
    return Answer(status=201, content={"status": "committed"})


def _answer_run_file(store: Store, name: str, request: Request) -> Answer:
    file = store.run.paths.run_file(name)
    if request.method == "PUT":
        body = _body_of(request)
        is_new = store_run_file(store, name, body)
        facts = {"file": name, "file_bytes": body.length_bytes, "peer": request.peer}
        if not is_new:
            log(_LOGGER, RUN_FILE_ALREADY_THERE, facts)
            return Answer(status=200, content={"status": "duplicate"})
        log(_LOGGER, RUN_FILE_COMMITTED, facts)
        return Answer(status=201, content={"status": "committed"})
    if not file.exists():
        return Answer(status=404, content={"reason": "not_found", "message": f"the run has no {name} yet"})
    return Answer(status=200, content={}, file=file if request.method == "GET" else None)


def _body_of(request: Request) -> Body:
    if request.body is None:
        raise ShardRefused("length_required", "a file is sent with Content-Length, not in chunks")
    return request.body
