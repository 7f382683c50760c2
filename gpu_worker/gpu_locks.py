"""One lock file for each GPU of this host, so that no two workers, of whatever run or user, take the same one.

Theory: a lock is a ``flock``, which the kernel lifts when the process that holds it is gone, however it died; so a file
that is left over means nothing. The files' folder is open to every user, hence: names come from UUIDs alone, symbolic
and hard links are refused, and a file is opened without O_CREAT first (the kernel refuses O_CREAT on another user's
file in such a folder: fs.protected_regular). Several GPUs are taken all or none, under a lock of its own, so that two
workers never each wait for what the other has.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu_worker.nvml import Gpu
from hiddenstream.contracts.errors import UsageError

_TURN = "turn.lock"
_TURN_SECONDS = 0.5  # a turn takes microseconds, unless its holder is stopped in it
_HOLDER_BYTES = 300


def default_lock_folder() -> Path:
    """Return the folder of a user's workers that were told no other."""
    return Path(tempfile.gettempdir()) / f"hiddenstream-gpus-{os.getuid()}"


class GpuClaim:
    """GPUs that this process holds; nobody else has them until it lets go or dies.

    Attributes:
        gpus: those that are held.
    """

    def __init__(self, gpus: tuple[Gpu, ...] = (), descriptors: Sequence[int] = ()) -> None:
        self.gpus = gpus
        self._descriptors = list(descriptors)
        self._lock = threading.Lock()  # a descriptor must not be closed, and be another file, while it is touched

    def touch(self) -> None:
        """Keep those who clear temporary folders of old files from taking ours: a lock without its name is none."""
        with self._lock:
            for descriptor in self._descriptors:
                with contextlib.suppress(OSError):
                    os.utime(descriptor)

    def release(self) -> None:
        """Let go."""
        with self._lock:
            self.gpus = ()
            while self._descriptors:
                os.close(self._descriptors.pop())


class GpuLocks:
    """The lock files of this host's GPUs."""

    def __init__(self, folder: Path) -> None:
        """Open the folder, or make it so that every user may lock there.

        Raises:
            UsageError: it is no folder, or may not be used.
        """
        self._shown = folder
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True)
                os.chmod(folder, 0o1777)
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise UsageError(f"--gpu-locks {folder}: {error}") from error

    def try_claim(self, candidates: Sequence[Gpu], count: int, holder: str) -> GpuClaim | None:
        """Take *count* of *candidates*, the first that are free; return None and take nothing where there are fewer.

        Args:
            holder: who we are, for people who look into the lock files.

        Raises:
            UsageError: a lock file is a link or may not be opened.
        """
        with self._turn() as is_ours:
            if not is_ours:
                return None
            taken: list[Gpu] = []
            descriptors: list[int] = []
            try:
                for gpu in candidates:
                    descriptor = self._try_lock(_file_of(gpu))
                    if descriptor is not None:
                        taken.append(gpu)
                        descriptors.append(descriptor)
                    if len(taken) == count:
                        for one in descriptors:
                            os.ftruncate(one, 0)
                            os.pwrite(one, holder.encode()[:_HOLDER_BYTES], 0)
                        claim = GpuClaim(tuple(taken), descriptors)
                        descriptors = []
                        return claim
                return None
            finally:
                for one in descriptors:
                    os.close(one)

    def holder_of(self, gpu: Gpu) -> str:
        """Return who holds a GPU, as that one wrote it."""
        try:
            descriptor = self._open(_file_of(gpu))
        except (OSError, UsageError):
            return "unknown"
        try:
            return os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace") or "unknown"
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close the folder; what was claimed stays so."""
        os.close(self._folder)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Have one worker at a time try, and yield whether it is us; a stopped one must not stop all others."""
        deadline = time.monotonic() + _TURN_SECONDS
        while (descriptor := self._try_lock(_TURN)) is None:
            if time.monotonic() > deadline:
                yield False
                return
            time.sleep(0.01)
        try:
            yield True
        finally:
            os.close(descriptor)

    def _try_lock(self, name: str) -> int | None:
        """Return a descriptor that holds the lock of a file, or None where another has it."""
        descriptor = self._open(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_ino != os.fstat(descriptor).st_ino:
                raise FileNotFoundError(name)  # somebody took the file away meanwhile: what we hold is worth nothing
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _open(self, name: str) -> int:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            try:
                descriptor = os.open(name, flags, dir_fd=self._folder)
            except FileNotFoundError:
                try:
                    descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=self._folder)
                    os.fchmod(descriptor, 0o666)  # whatever the umask
                except FileExistsError:
                    descriptor = os.open(name, flags, dir_fd=self._folder)
        except OSError as error:
            raise UsageError(f"--gpu-locks: {self._shown / name} cannot be opened as a lock file: {error}") from error
        kind = os.fstat(descriptor)
        if not stat.S_ISREG(kind.st_mode) or kind.st_nlink > 1:
            os.close(descriptor)
            raise UsageError(f"--gpu-locks: {self._shown / name} is no plain file of its own; remove it")
        return descriptor


def _file_of(gpu: Gpu) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "_", gpu.uuid)[:100] + ".lock"
