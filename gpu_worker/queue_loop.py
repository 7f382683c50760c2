"""RQ in the engine's main thread, with everything of it off that would redeliver, time out or outlive a run.

Theory: RQ moves a job to its intermediate list, this worker sets the lease, then RQ takes the id off that list. So the
producer, which reads queue, intermediate list, leases and ledger in that order, always finds a living delivery in one
of them. RQ's own calling of functions, retries, maintenance, time-outs and results are off: see docs/decisions/0002.
Pinned to rq 3.0.0; every override here is exercised by tests/gpu_worker/test_queue_loop.py and tests/pipeline.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

import redis
from rq import Queue, SimpleWorker
from rq.exceptions import DequeueTimeout, DeserializationError, InvalidJobOperation, NoSuchJobError
from rq.executions import Execution
from rq.job import Job
from rq.worker import WorkerStatus

from hiddenstream.chassis.lifecycle import StopRequest, backoff
from hiddenstream.chassis.logs import log
from hiddenstream.contracts.job import TASK
from hiddenstream.contracts.queue import MsgpackSerializer

QUEUE_LEFT = "queue_left"
JOB_REFUSED = "job_refused"
QUEUE_BOOKS_LOST = "queue_books_lost"
_LOGGER = logging.getLogger("gpu_worker.queue")
_LOST_BOOKS = (redis.RedisError, OSError, InvalidJobOperation, NoSuchJobError)  # Redis is away, or was emptied
_DEQUEUE_SECONDS = 1  # how soon an idle worker sees a request to stop


class _QueueWorker(SimpleWorker):  # type: ignore[misc]
    def configure(self, stop: StopRequest, on_take: Callable[[str], None], do_task: Callable[[bytes], None]) -> None:
        self._stop = stop
        self._on_take = on_take
        self._do_task = do_task

    def execute_job(self, job: Job, queue: Queue) -> None:
        try:
            payload = _payload_of(job)
            self._on_take(job.id)
        except ValueError as error:
            log(_LOGGER, JOB_REFUSED, {"job": job.id, "message": str(error)}, level=logging.ERROR)
            self.connection.lrem(queue.intermediate_queue_key, 0, job.id)
            job.delete(remove_from_queue=False)
            return
        execution = self._note_start(job)
        self._do_task(payload)  # come what may: the delivery is in hand now, and only its end gives the lease up
        self._note_end(job, execution)

    def _note_start(self, job: Job) -> Execution | None:
        try:
            execution = self.prepare_execution(job)
            self.prepare_job_execution(job, remove_from_intermediate_queue=True)
        except _LOST_BOOKS as error:
            log(_LOGGER, QUEUE_BOOKS_LOST, {"job": job.id, "message": str(error)}, level=logging.WARNING)
            return None
        return execution

    def _note_end(self, job: Job, execution: Execution | None) -> None:
        try:
            with self.connection.pipeline() as pipeline:
                self.cleanup_execution(job, pipeline=pipeline, execution=execution)
                job.delete(pipeline=pipeline, remove_from_queue=False)
                pipeline.execute()
        except _LOST_BOOKS as error:
            log(_LOGGER, QUEUE_BOOKS_LOST, {"job": job.id, "message": str(error)}, level=logging.WARNING)

    def dequeue_job_and_maintain_ttl(
        self, _timeout: int | None, _max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """Wait for a job in short turns; unlike RQ's, a signal can never fall between the move and the lease."""
        self.set_state(WorkerStatus.IDLE)
        while not self._stop.is_set():
            self.heartbeat()
            try:
                taken: tuple[Job, Queue] | None = self.queue_class.dequeue_any(
                    self._ordered_queues,
                    _DEQUEUE_SECONDS,
                    connection=self.connection,
                    job_class=self.job_class,
                    serializer=self.serializer,
                    death_penalty_class=self.death_penalty_class,
                )
            except DequeueTimeout:
                continue
            if taken is not None:
                return taken
        return None

    @property
    def should_run_maintenance_tasks(self) -> bool:
        return False  # RQ's clean-up would redeliver; the producer alone does that

    def check_for_suspension(self, _burst: bool) -> None:
        """Suspending all of RQ's workers is no business of whoever shares this Redis."""

    def subscribe(self) -> None:
        """Take no commands from Redis: whoever can write there must not be able to stop a worker."""

    def unsubscribe(self) -> None:
        """Nothing was subscribed."""

    def _install_signal_handlers(self) -> None:
        """The engine has its own."""


def _payload_of(job: Job) -> bytes:
    """Return the payload of a job of our one task.

    RQ's own way is to import and call whatever function, callback or webhook a job names; then whoever can write to
    Redis could run code here.

    Raises:
        ValueError: the job is not ours.
    """
    try:
        name, arguments = job.func_name, job.args
    except DeserializationError as error:
        raise ValueError("it was not written by hiddenstream's serializer") from error
    if name != TASK or len(arguments) != 1 or not isinstance(arguments[0], bytes):
        raise ValueError(f"it asks for {name!r}; only {TASK!r} is done here")
    return arguments[0]


def work_on(
    client: redis.Redis,
    queue: str,
    worker_name: str,
    stop: StopRequest,
    *,
    on_take: Callable[[str], None],
    do_task: Callable[[bytes], None],
) -> None:
    """Work on *queue* until asked to stop; an outage of Redis costs waiting, never the loaded model.

    Args:
        on_take: called with the id of each job before RQ lets go of it; must set the lease. Raises ValueError on an id
            that names no shard.
        do_task: called with the payload of each job; does not raise.
    """
    waits = backoff(most_seconds=2.0)
    while not stop.is_set():
        try:
            worker = _QueueWorker(
                [Queue(queue, connection=client, serializer=MsgpackSerializer)],
                name=f"{queue}-{worker_name}-{secrets.token_hex(4)}",  # RQ refuses a name that a dead worker left
                connection=client,
                serializer=MsgpackSerializer,
                worker_ttl=60,
                log_job_description=False,
            )
            worker.configure(stop, on_take, do_task)
            try:
                worker.work(logging_level="WARNING")
            finally:
                client.delete(worker.key)  # RQ leaves it for a minute
        except (redis.RedisError, OSError) as error:
            log(_LOGGER, QUEUE_LEFT, {"message": str(error)}, level=logging.WARNING)
        stop.wait(0.0 if stop.is_set() else next(waits))
