"""GPUs for machines that have none: the stub of NVML, and which lock files a process holds."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "stub_nvml.c"


def build_stub(folder: Path) -> Path:
    """Compile the stub into *folder*, which then goes first on LD_LIBRARY_PATH; skip where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)], check=True, timeout=60
    )
    return folder


def stub_uuid(number: int) -> str:
    """Return the UUID that the stub gives its GPU of this number."""
    return f"GPU-00000000-0000-0000-0000-00000000000{number:x}"
