"""The engine process: loads the model once, then works on the queue until asked to stop.

Started by the supervisor with the number of a pipe as its only argument and :class:`gpu_worker.orders.EngineOrders` on
standard input.
It holds no lease and no GPU claim of its own; when it dies, the supervisor gives both up and starts another.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers

from gpu_worker.buffers import HostBuffers
from gpu_worker.compute import ShardComputer
from gpu_worker.exact_float32 import make_float32_exact
from gpu_worker.extract import Extraction
from gpu_worker.facts import BatchDone, ModelReady
from gpu_worker.forward import ForwardPass
from gpu_worker.leases import set_lease
from gpu_worker.log_lines import LogLines
from gpu_worker.messages import Reporter
from gpu_worker.model import TORCH_DTYPES, LoadedModel, choose_device, load_model
from gpu_worker.orders import EngineOrders
from gpu_worker.queue_loop import work_on
from gpu_worker.reference_guard import ReferenceGuard
from gpu_worker.run_files import save_run_files
from gpu_worker.sink_client import SinkClient, SinkUnavailable
from gpu_worker.upload import UPLOAD_THREADS
from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.logs import log, start_logging
from hiddenstream.chassis.redis_connection import make_client
from hiddenstream.contracts.errors import GateRefused, HiddenstreamError, RunMismatch
from hiddenstream.contracts.queue import queue_name, shard_of_job
from hiddenstream.contracts.run import RunRecord
from hiddenstream.model_reference import ModelReference, resolve_model

ENGINE_REFUSED = "engine_refused"
ENGINE_STOPPED = "engine_stopped"
CUDA_NOT_FOUND = "cuda_not_found"
_LOOK_AT_MEMORY_SECONDS = 1.0  # asking torch's allocator costs a tenth of a millisecond
_LOGGER = logging.getLogger("gpu_worker.engine")


def main() -> int:
    """Run an engine; return its exit code."""
    start_logging("gpu_worker")
    orders = EngineOrders.from_json(sys.stdin.read())
    reporter = Reporter(int(sys.argv[1]))
    LogLines(reporter.logged).install()
    stop = _request_to_stop()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    record = RunRecord.from_json(orders.record)
    try:
        if not orders.is_model_checked:
            refuse_other_model(resolve_model(orders.model, record.revision), record)
        device = choose_device(orders.device)
        if orders.claimed and device.type == "cpu":
            message = (
                f"torch finds no CUDA, though {', '.join(orders.claimed)} was claimed; this worker runs on the CPU"
            )
            log(_LOGGER, CUDA_NOT_FOUND, {"message": message, "torch": torch.__version__}, level=logging.WARNING)
        make_float32_exact(record.identity.compute_dtype)
        model = load_model(record, orders.model, device, gpus=orders.gpus, token_budget=orders.token_budget)
        forward = ForwardPass(model, record.identity.taps, TORCH_DTYPES[record.identity.stored_dtype])
        sink = SinkClient(orders.sink, record.run, orders.token)
        guard = ReferenceGuard(record, model, forward)
        guard.match(sink, stop, _made_by(orders, model))
        save_run_files(model, record, sink, model=orders.model, stop=stop)
    except SinkUnavailable:  # only when asked to stop
        return 0
    except HiddenstreamError as error:
        log(_LOGGER, ENGINE_REFUSED, {"reason": error.reason, "message": str(error)}, level=logging.ERROR)
        reporter.refused(str(error), gate="failed" if isinstance(error, GateRefused) else "not_run")
        return error.exit_code
    extraction = _prepare(orders, record, _Equipment(model, forward, sink, guard), reporter, stop)
    reporter.loaded(_ready(model, guard))
    reporter.is_at("wait_for_job")
    client = make_client(orders.redis)
    queue = queue_name(record.run, record.identity.fingerprint)

    def on_take(job_id: str) -> None:
        shard, delivery = shard_of_job(job_id), job_id.rpartition("-")[2]
        set_lease(client, queue, shard, f"{orders.worker}:{delivery}")
        extraction.take(shard, delivery)

    work_on(client, queue, orders.worker, stop, on_take=on_take, do_task=extraction.deliver)
    extraction.wait_until_idle()
    log(_LOGGER, ENGINE_STOPPED)
    return 0


def refuse_other_model(found: ModelReference, record: RunRecord) -> None:
    """Refuse a model that is not the run's.

    Raises:
        RunMismatch: its content is another.
    """
    if found.digest != record.identity.model_digest:
        wanted = record.identity.model_digest
        raise RunMismatch(f"model {found.name}", [f"content: the run's is {wanted}, this one's is {found.digest}"])


@dataclass(frozen=True, slots=True)
class _Equipment:
    """What has been loaded and found right."""

    model: LoadedModel
    forward: ForwardPass
    sink: SinkClient
    guard: ReferenceGuard


def _prepare(
    orders: EngineOrders, record: RunRecord, equipment: _Equipment, reporter: Reporter, stop: StopRequest
) -> Extraction:
    is_cuda = equipment.model.device.type == "cuda"
    computer = ShardComputer(
        record.identity,
        equipment.forward,
        token_budget=orders.token_budget,
        on_batch=_on_batch(reporter, is_cuda=is_cuda),
        on_activity=reporter.is_at,
    )
    return Extraction(
        record,
        computer,
        equipment.sink,
        buffers=HostBuffers(1 + UPLOAD_THREADS, is_pinned=is_cuda),
        reporter=reporter,
        made_by=_made_by(orders, equipment.model),
        after_shard=equipment.guard.after_shard,
        stop=stop,
    )


def _on_batch(reporter: Reporter, *, is_cuda: bool) -> Callable[[int, int], None]:
    """Return what tells the supervisor of each batch, and now and then of the memory that torch holds."""
    looked_at, held_bytes = float("-inf"), (0, 0)

    def on_batch(tokens: int, token_slots: int) -> None:
        nonlocal looked_at, held_bytes
        if is_cuda and time.monotonic() - looked_at > _LOOK_AT_MEMORY_SECONDS:
            looked_at = time.monotonic()
            gpus = range(torch.cuda.device_count())
            held_bytes = (sum(map(torch.cuda.memory_allocated, gpus)), sum(map(torch.cuda.memory_reserved, gpus)))
        reporter.beat(
            BatchDone(
                tokens=tokens,
                token_slots=token_slots,
                allocated_bytes=held_bytes[0],
                reserved_bytes=held_bytes[1],
            )
        )

    return on_batch


def _ready(model: LoadedModel, guard: ReferenceGuard) -> ModelReady:
    return ModelReady(
        device=_device_name(model),
        torch=torch.__version__,
        load_seconds=model.load_seconds,
        warm_seconds=model.warm_seconds,
        gate=model.gate.verdict,
        way=model.gate.way,
        gate_differences={**model.gate.differences, "reference": guard.difference},
    )


def _device_name(model: LoadedModel) -> str:
    if model.device.type != "cuda":
        return "cpu"
    used = {parameter.device for parameter in model.backbone.parameters()}
    name = torch.cuda.get_device_name(model.device)
    return name if len(used) == 1 else f"{len(used)} x {name}"


def _made_by(orders: EngineOrders, model: LoadedModel) -> dict[str, object]:
    return {
        "worker": orders.worker,
        "device": _device_name(model),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "attention": str(getattr(model.backbone.config, "_attn_implementation", "unknown")),
        "way": model.gate.way,
        "gate": {test: float(f"{difference:.2e}") for test, difference in model.gate.differences.items()},
        "model_load_seconds": round(model.load_seconds, 3),
        "model_warm_seconds": round(model.warm_seconds, 3),
    }


def _request_to_stop() -> StopRequest:
    """First SIGTERM: finish the job in hand. Second: leave at once. The supervisor alone handles SIGINT."""
    stop = StopRequest()

    def on_signal(_number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return stop


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    os._exit(exit_code)  # tearing torch and CUDA down takes a second and gains nothing
