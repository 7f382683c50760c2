"""Which GPUs there are, and how they do, as NVIDIA's driver says. Starts no CUDA, so it is safe in the supervisor.

A call of a sick driver may never return: whoever must not wait for ever calls this from a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from hiddenstream.contracts.worker_report import GpuReport

_LIST_SECONDS = 20.0  # the driver wakes sleeping GPUs one after the other


class GpusNotListed(Exception):
    """The driver does not say which GPUs there are.

    Attributes:
        has_driver: False where there is no driver at all, as on a machine without a GPU.
    """

    def __init__(self, message: str, *, has_driver: bool) -> None:
        super().__init__(message)
        self.has_driver = has_driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one slice of a partitioned one.

    Attributes:
        uuid: as CUDA_VISIBLE_DEVICES takes it: GPU-... or MIG-...
    """

    uuid: str
    name: str


def list_gpus() -> list[Gpu]:
    """Return every GPU of this machine in the driver's order, that of the PCI bus.

    Raises:
        GpusNotListed: there is no driver, it refuses, or it does not answer in time.
    """
    found: list[Gpu] = []
    failures: list[pynvml.NVMLError] = []

    def ask() -> None:
        try:
            found.extend(_list())
        except pynvml.NVMLError as error:
            failures.append(error)

    asking = threading.Thread(target=ask, name="nvml-list", daemon=True)
    asking.start()
    asking.join(_LIST_SECONDS)
    if asking.is_alive():
        raise GpusNotListed(f"the driver has not answered in {_LIST_SECONDS:.0f} s", has_driver=True)
    if failures:
        is_missing = isinstance(failures[0], (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded))
        raise GpusNotListed(str(failures[0]), has_driver=not is_missing)
    return found


def _list() -> list[Gpu]:
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return [Gpu(uuid=pynvml.nvmlDeviceGetUUID(one), name=pynvml.nvmlDeviceGetName(one)) for one in handles]
    finally:
        pynvml.nvmlShutdown()


def measure(gpu: Gpu) -> GpuReport:
    """Return how a GPU does now; what the driver does not tell of it is None. NVML must be started."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    except pynvml.NVMLError:
        return GpuReport(uuid=gpu.uuid, name=gpu.name)
    memory = _told(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    utilization = _told(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
    power = _told(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)
    celsius = _told(lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)))
    return GpuReport(
        uuid=gpu.uuid,
        name=gpu.name,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        utilization=utilization,
        power_watts=power,
        temperature_celsius=celsius,
    )


def _told(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except pynvml.NVMLError:  # not supported by this GPU, or it has fallen off the bus
        return None


class GpuPoll:
    """Asks the driver about a worker's GPUs once a second, from a thread that may hang without harm."""

    def __init__(self, gpus: tuple[Gpu, ...], *, every_seconds: float = 1.0) -> None:
        self._gpus = gpus
        self._every_seconds = every_seconds
        self._stopped = threading.Event()
        self._reports = tuple(GpuReport(uuid=gpu.uuid, name=gpu.name) for gpu in gpus)
        if gpus:
            threading.Thread(target=self._poll, name="gpus", daemon=True).start()

    @property
    def reports(self) -> tuple[GpuReport, ...]:
        """The latest answers; a driver that has stopped answering leaves the last ones."""
        return self._reports

    def close(self) -> None:
        """Stop asking; does not wait for a call under way."""
        self._stopped.set()

    def _poll(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        while not self._stopped.is_set():
            self._reports = tuple(measure(gpu) for gpu in self._gpus)
            self._stopped.wait(self._every_seconds)
        pynvml.nvmlShutdown()
