"""Locks on GPUs: who has one, who does not get one, and what is refused in a folder that everybody may write to."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_worker.gpu_locks import GpuLocks
from gpu_worker.nvml import Gpu
from hiddenstream.contracts.errors import UsageError
from tests.conftest import wait_until

GPUS = [Gpu(uuid=f"GPU-{letter}", name="a GPU") for letter in "abc"]
# Claims one GPU, says so, and starts a child that lives on, as an engine may for a moment.
HOLD = """
import subprocess, sys, time
from pathlib import Path
from gpu_worker.gpu_locks import GpuLocks
from gpu_worker.nvml import Gpu
claim = GpuLocks(Path(sys.argv[1])).try_claim([Gpu(uuid="GPU-a", name="")], 1, "the holder")
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_gpu_has_one_holder(tmp_path):
    """Each claim gets GPUs that are free; what is let go can be claimed again."""
    first, second = GpuLocks(tmp_path / "locks"), GpuLocks(tmp_path / "locks")

    one = first.try_claim(GPUS, 1, "one")
    two = second.try_claim(GPUS, 2, "two")
    none = second.try_claim(GPUS, 1, "three")

    assert (GPUS[0],) == one.gpus
    assert (GPUS[1], GPUS[2]) == two.gpus
    assert none is None
    assert ["one", "two", "two"] == [first.holder_of(gpu) for gpu in GPUS]
    one.release()
    assert (GPUS[0],) == first.try_claim(GPUS, 1, "again").gpus


def test_too_few_are_not_taken_at_all(tmp_path):
    """A claim of several GPUs that cannot be had whole leaves those that are free to others."""
    locks = GpuLocks(tmp_path / "locks")
    held = locks.try_claim(GPUS[:1], 1, "one")

    refused = locks.try_claim(GPUS, 3, "greedy")
    rest = locks.try_claim(GPUS, 2, "modest")

    assert refused is None
    assert GPUS[1:] == list(rest.gpus)
    assert "one" == locks.holder_of(GPUS[0])
    held.release()


def test_a_killed_holder_holds_nothing(tmp_path):
    """The kernel lifts the lock of a killed process, also while a child that it had started lives on."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    locks = GpuLocks(tmp_path)
    try:
        while_it_lived = locks.try_claim(GPUS[:1], 1, "us")
        holder.kill()
        holder.wait()

        after = locks.try_claim(GPUS[:1], 1, "us")

        assert while_it_lived is None
        assert after is not None
        assert os.path.exists(f"/proc/{child}")
    finally:
        os.kill(child, signal.SIGKILL)
        holder.kill()


def test_every_user_may_lock(tmp_path):
    """Folder and files are open to all users whatever the umask, and nobody can remove another's file."""
    before = os.umask(0o077)
    try:
        GpuLocks(tmp_path / "locks").try_claim(GPUS[:1], 1, "one")
    finally:
        os.umask(before)

    assert 0o1777 == stat.S_IMODE((tmp_path / "locks").stat().st_mode)
    assert {0o666} == {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "locks").iterdir()}


@pytest.mark.parametrize("kind", ["symbolic", "hard", "fifo", "folder"])
def test_what_is_no_lock_file_is_refused(kind, tmp_path):
    """A link to somebody's file is neither followed nor written to, and what is no file is refused by name."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder = tmp_path / "locks"
    folder.mkdir()
    place = folder / "GPU-a.lock"
    {
        "symbolic": lambda: place.symlink_to(precious),
        "hard": lambda: place.hardlink_to(precious),
        "fifo": lambda: os.mkfifo(place),
        "folder": place.mkdir,
    }[kind]()

    with pytest.raises(UsageError, match=r"GPU-a\.lock"):
        GpuLocks(folder).try_claim(GPUS, 1, "us")

    assert "precious" == precious.read_text()


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    """Whoever could make the folder's name first must not choose where we write."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "locks").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UsageError, match="--gpu-locks"):
        GpuLocks(tmp_path / "locks")


def test_a_name_stays_in_the_folder(tmp_path):
    """A UUID with path separators, as old drivers give slices, names a file in the folder."""
    GpuLocks(tmp_path / "locks").try_claim([Gpu(uuid="MIG-GPU-a/../../7", name="")], 1, "us")

    assert {"turn.lock", "MIG-GPU-a_______7.lock"} == {file.name for file in (tmp_path / "locks").iterdir()}
    assert ["locks"] == [file.name for file in tmp_path.iterdir()]


def test_a_stopped_worker_does_not_stop_the_others(tmp_path):
    """Where another keeps the turn, an attempt ends after a moment without a claim instead of waiting for ever."""
    locks = GpuLocks(tmp_path / "locks")

    with locks._turn():
        claim = locks.try_claim(GPUS, 1, "us")

    assert claim is None
    assert locks.try_claim(GPUS, 1, "us") is not None


def test_a_removed_lock_file_is_no_lock(tmp_path):
    """A claim made on a file that was taken away meanwhile is not believed; the next one makes the file anew."""
    locks = GpuLocks(tmp_path / "locks")
    locks.try_claim(GPUS[:1], 1, "first")
    file = tmp_path / "locks" / "GPU-a.lock"
    real_open = locks._open

    def open_and_lose(name: str) -> int:
        descriptor = real_open(name)
        if name == file.name:
            file.unlink()
        return descriptor

    file.unlink()
    locks._open = open_and_lose

    assert locks.try_claim(GPUS[:1], 1, "us") is None


def test_touching_keeps_the_files_young(tmp_path):
    """What clears old files from temporary folders sees that a lock is in use."""
    locks = GpuLocks(tmp_path / "locks")
    claim = locks.try_claim(GPUS[:1], 1, "us")
    file = tmp_path / "locks" / "GPU-a.lock"
    os.utime(file, (0, 0))

    claim.touch()

    wait_until(lambda: file.stat().st_mtime > 1e9)


def test_an_unusable_folder_is_refused(tmp_path):
    """A file in the folder's place is named in the refusal."""
    Path(tmp_path / "locks").write_text("")

    with pytest.raises(UsageError, match="--gpu-locks"):
        GpuLocks(tmp_path / "locks")
