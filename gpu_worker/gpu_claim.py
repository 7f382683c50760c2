"""Choosing and claiming a worker's GPUs before its engine, and so CUDA, starts."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from itertools import chain, repeat

from gpu_worker.gpu_locks import GpuClaim, GpuLocks, default_lock_folder
from gpu_worker.nvml import Gpu, GpusNotListed, list_gpus
from gpu_worker.settings import WorkerSettings
from hiddenstream.chassis.logs import log
from hiddenstream.contracts.errors import UsageError

GPUS_CLAIMED = "gpus_claimed"
GPUS_NOT_LISTED = "gpus_not_listed"
GPU_WAITED_FOR = "gpu_waited_for"
_RETRY_SECONDS = 1.0
# A wait that lasts is said again soon, so that `run` tells of it, and then now and then.
_SAY_AGAIN_SECONDS = (6.0, 30.0)
_LOGGER = logging.getLogger("gpu_worker.gpus")


def claim_gpus(
    settings: WorkerSettings, *, wait: Callable[[float], bool], on_wait: Callable[[str], None]
) -> GpuClaim | None:
    """Claim the GPUs that the settings ask for, waiting while they are in others' hands.

    Args:
        wait: sleeps that long and returns whether to give up.
        on_wait: told why, each time none is free.

    Returns:
        The claim, an empty one where no GPU is to be claimed, or None where *wait* said to give up.

    Raises:
        UsageError: there can never be so many GPUs here, or the locks cannot be used.
    """
    candidates = wanted_gpus(settings.device, settings.gpus, os.environ)
    if not candidates:
        return GpuClaim()
    locks = GpuLocks(settings.gpu_locks or default_lock_folder())
    holder = f"worker {settings.name}, host {socket.gethostname()}, pid {os.getpid()}"
    said_at, pauses = float("-inf"), chain((0.0,), _SAY_AGAIN_SECONDS, repeat(_SAY_AGAIN_SECONDS[-1]))
    pause_seconds = next(pauses)
    try:
        while (claim := locks.try_claim(candidates, settings.gpus, holder)) is None:
            holders = [f"{gpu.uuid}: {locks.holder_of(gpu)}" for gpu in candidates]
            message = (
                f"{settings.gpus} of {len(candidates)} GPUs wanted, too few are free; held by: {'; '.join(holders)}"
            )
            if time.monotonic() - said_at > pause_seconds:
                said_at, pause_seconds = time.monotonic(), next(pauses)
                log(_LOGGER, GPU_WAITED_FOR, {"message": message}, level=logging.WARNING)
            on_wait(message)
            if wait(_RETRY_SECONDS):
                return None
    finally:
        locks.close()
    log(_LOGGER, GPUS_CLAIMED, {"gpus": [gpu.uuid for gpu in claim.gpus], "names": [gpu.name for gpu in claim.gpus]})
    return claim


def wanted_gpus(device: str, count: int, environment: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs of which *count* are to be claimed for *device*; none where nothing is to be claimed.

    Raises:
        UsageError: there are fewer than *count*, or the one asked for is not there.
    """
    if device == "cpu":
        return []
    try:
        found = visible_gpus(list_gpus(), environment.get("CUDA_VISIBLE_DEVICES"))
    except GpusNotListed as error:
        if device != "auto" or error.has_driver:
            facts = {"message": f"no GPU is claimed, since NVML does not list them: {error}"}
            log(_LOGGER, GPUS_NOT_LISTED, facts, level=logging.WARNING)
        return []
    if device.startswith("cuda:"):
        number = int(device.removeprefix("cuda:"))
        if count != 1 or number >= len(found):
            raise UsageError(f"--device {device} with --gpus {count}: that is one GPU, and {len(found)} are visible")
        return [found[number]]
    if found and len(found) < count:
        raise UsageError(f"--gpus {count}: only {len(found)} are visible here")
    return found


def visible_gpus(gpus: list[Gpu], chosen: str | None) -> list[Gpu]:
    """Return those of *gpus* that CUDA_VISIBLE_DEVICES leaves visible, in its order; all where it is not set.

    As CUDA does, an entry that names none hides all after it, and a UUID may be cut where it stays unique.
    """
    if chosen is None:
        return gpus
    visible: list[Gpu] = []
    for entry in (part.strip() for part in chosen.split(",")):
        if re.fullmatch(r"[0-9]{1,3}", entry):
            found = gpus[int(entry) : int(entry) + 1]
        elif entry.startswith("MIG-"):
            found = [Gpu(uuid=entry, name="MIG")]
        else:
            found = [gpu for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        if len(found) != 1 or found[0] in visible:
            break
        visible += found
    return visible
