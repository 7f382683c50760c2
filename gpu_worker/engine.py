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

import torch
import transformers

from gpu_worker.buffers import HostBuffers
from gpu_worker.compute import ShardComputer
from gpu_worker.extract import Extraction
from gpu_worker.forward import ForwardPass
from gpu_worker.leases import set_lease
from gpu_worker.messages import Reporter
from gpu_worker.model import TORCH_DTYPES, LoadedModel, choose_device, load_model
from gpu_worker.orders import EngineOrders
from gpu_worker.queue_loop import work_on
from gpu_worker.sink_client import SinkClient
from gpu_worker.upload import UPLOAD_THREADS
from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.logs import log, start_logging
from hiddenstream.chassis.redis_connection import make_client
from hiddenstream.contracts.errors import HiddenstreamError, RunMismatch
from hiddenstream.contracts.queue import queue_name, shard_of_job
from hiddenstream.contracts.run import RunRecord
from hiddenstream.model_reference import ModelReference, resolve_model

ENGINE_REFUSED = "engine_refused"
ENGINE_STOPPED = "engine_stopped"
_LOGGER = logging.getLogger("gpu_worker.engine")


def main() -> int:
    """Run an engine; return its exit code."""
    start_logging("gpu_worker")
    orders = EngineOrders.from_json(sys.stdin.read())
    reporter = Reporter(int(sys.argv[1]))
    stop = _request_to_stop()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    record = RunRecord.from_json(orders.record)
    try:
        if not orders.is_model_checked:
            refuse_other_model(resolve_model(orders.model, record.revision), record)
        device = choose_device(orders.device)
        model = load_model(record, orders.model, device)
        extraction = _prepare(orders, record, model, reporter, stop)
    except HiddenstreamError as error:
        log(_LOGGER, ENGINE_REFUSED, {"reason": error.reason, "message": str(error)}, level=logging.ERROR)
        return error.exit_code
    reporter.loaded()
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


def _prepare(
    orders: EngineOrders, record: RunRecord, model: LoadedModel, reporter: Reporter, stop: StopRequest
) -> Extraction:
    identity = record.identity
    stored_dtype = TORCH_DTYPES[identity.stored_dtype]
    computer = ShardComputer(
        identity,
        ForwardPass(model, identity.taps, stored_dtype),
        token_budget=orders.token_budget,
        on_batch=reporter.beat,
    )
    return Extraction(
        record,
        computer,
        SinkClient(orders.sink, record.run, orders.token),
        buffers=HostBuffers(1 + UPLOAD_THREADS, is_pinned=model.device.type == "cuda"),
        reporter=reporter,
        made_by=_made_by(orders, model),
        stop=stop,
    )


def _made_by(orders: EngineOrders, model: LoadedModel) -> dict[str, object]:
    is_cuda = model.device.type == "cuda"
    return {
        "worker": orders.worker,
        "device": torch.cuda.get_device_name(model.device) if is_cuda else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "attention": str(getattr(model.backbone.config, "_attn_implementation", "unknown")),
        "way": "padded",
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
