"""Looking after an engine that speaks when it should not any more."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gpu_worker.leases import LeaseKeeper
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.orders import EngineOrders
from gpu_worker.settings import WorkerSettings
from gpu_worker.standing import Standing
from gpu_worker.watch import EngineWatch
from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.redis_connection import make_client

LOADED_LATE = """
import json, os, sys, time

engine = os.getpid()
if os.fork() == 0:
    while os.getppid() == engine:
        time.sleep(0.01)
    time.sleep(1)  # five looks of the supervisor
    os.write(int(sys.argv[1]), json.dumps({"kind": "loaded", "facts": FACTS}).encode() + b"\\n")
"""


def test_a_dead_engine_is_not_ready_though_its_message_is_read_late(tmp_path, monkeypatch, redis_server):
    """That the model is loaded, read after the engine's death, leaves the worker not ready."""
    package = tmp_path / "gpu_worker"
    package.mkdir()
    (package / "__init__.py").touch()
    facts = {"device": "cpu", "torch": "2", "load_seconds": 1.0, "warm_seconds": 1.0, "gate": "passed"}
    (package / "engine.py").write_text(LOADED_LATE.replace("FACTS", repr(facts)))
    monkeypatch.chdir(tmp_path)  # so that this engine is started
    registry = CollectorRegistry()
    metrics = WorkerMetrics.in_registry(registry)
    settings = WorkerSettings(redis=redis_server.url, sink="http://127.0.0.1:1", run="run", name="w")
    leases = LeaseKeeper(make_client(redis_server.url), "hiddenstream-test-0")
    watch = EngineWatch(settings, StopRequest(), leases, Standing("w", metrics), metrics, ask_is_complete=lambda: False)
    orders = EngineOrders(
        worker="w", redis="", sink="", token=None, device="cpu", gpus=1, claimed=(), token_budget=None, model="",
        record="",
    )  # fmt: skip

    code = watch.run(orders)
    leases.close()

    assert (0, True) == (code, watch.is_loaded)
    assert 0 == registry.get_sample_value("hiddenstream_worker_is_ready")
