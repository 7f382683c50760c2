"""A real Redis without memory for the whole queue."""

from __future__ import annotations

import threading
from dataclasses import replace

from gpu_worker.leases import set_lease
from gpu_worker.queue_loop import work_on
from hiddenstream.chassis.lifecycle import StopRequest
from hiddenstream.chassis.logs import RecentLines
from hiddenstream.chassis.redis_connection import make_client
from hiddenstream.contracts.job import ExtractionJob
from hiddenstream.contracts.queue import lease_key, shard_of_job
from producer.dispatch import QUEUE_SHRUNK, queue_of
from producer.produce import ProduceSettings, produce
from producer.watched import Watched
from tests.conftest import wait_until
from tests.factories import a_run, store_shard
from tests.run_helpers import append_line

SHARDS = 100
SHARD_TOKENS = 30_000  # 50 kB a job, as RQ compresses it
SPARE_BYTES = 2_000_000


class StoringWorker:
    """A worker without a model: RQ's real loop, leases and all, whose jobs are stored at once."""

    def __init__(self, paths, client):
        self.delivered, self._paths, self._client = [], paths, client
        self._line = store_shard(paths, 0)
        self._queue = queue_of(paths.read_record())
        self.stop = StopRequest()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self):
        work_on(self._client, self._queue, "w", self.stop, on_take=self._on_take, do_task=self.deliver)

    def _on_take(self, identifier):
        set_lease(self._client, self._queue, shard_of_job(identifier), "w:1")

    def deliver(self, payload):
        shard = ExtractionJob.decode(payload).shard
        append_line(self._paths, replace(self._line, shard=shard).to_line())
        self.delivered.append(shard)
        self._client.delete(lease_key(self._queue, shard))


def test_a_run_larger_than_redis_completes(tmp_path, redis_server, caplog):
    """The producer keeps on the queue what fits, so workers can take jobs, and every shard is delivered once."""
    paths = a_run(tmp_path / "run", [[SHARD_TOKENS]] * SHARDS)
    client = make_client(redis_server.url)
    client.config_set("maxmemory", client.info("memory")["used_memory"] + SPARE_BYTES)
    settings = ProduceSettings(run_directory=paths.root, redis=redis_server.url, reserve_bytes=0)
    codes, stop = [], StopRequest()
    watched = Watched(
        paths, RecentLines("producer"), reserve_bytes=0, metrics_listen=("127.0.0.1", 0), status_listen=("127.0.0.1", 0)
    )
    arguments = (paths, paths.read_record(), settings, stop, watched)
    producing = threading.Thread(target=lambda: codes.append(produce(*arguments)), daemon=True)
    worker = StoringWorker(paths, make_client(redis_server.url))

    producing.start()
    wait_until(lambda: QUEUE_SHRUNK in caplog.messages)
    worker.thread.start()
    producing.join(timeout=30)
    stop.set()
    worker.stop.set()
    worker.thread.join(timeout=20)
    watched.__exit__(None, None, None)

    assert [0] == codes
    assert list(range(1, SHARDS)) == sorted(worker.delivered)
