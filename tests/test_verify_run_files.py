"""What verify finds of the files that workers make once per run."""

from __future__ import annotations

import pytest

from hiddenstream.contracts.sink_api import RUN_FILES
from hiddenstream.verify.verify import verify_run
from tests.factories import a_run, a_run_file
from tests.run_helpers import with_record
from tests.verify_helpers import a_complete_run, flip, found


def with_run_files(paths):
    for name in RUN_FILES:
        paths.run_file(name).write_bytes(b"".join(a_run_file(paths, name)))
    return paths


def test_whole_run_files_are_read_and_pass(tmp_path):
    """Files that verify are no finding, and their bytes are among those that were read."""
    paths = a_complete_run(tmp_path)
    without = verify_run(paths).read_bytes

    report = verify_run(with_run_files(paths))

    assert ((), 0) == (report.findings, report.exit_code)
    assert without + sum(paths.run_file(name).stat().st_size for name in RUN_FILES) == report.read_bytes


@pytest.mark.parametrize("name", RUN_FILES)
@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "another run"])
def test_a_damaged_run_file_is_damage(tmp_path, name, harm):
    """A flipped bit, a cut, and another run's file each make the run fail."""
    paths = with_run_files(a_complete_run(tmp_path / "run"))
    file = paths.run_file(name)
    if harm == "flip":
        flip(file, file.stat().st_size - 1)
    elif harm == "another run":
        file.write_bytes(b"".join(a_run_file(a_run(tmp_path / "other"), name)))  # its plan is another
    else:
        file.write_bytes(file.read_bytes()[:-1] if harm == "cut" else b"")

    report = verify_run(paths)

    assert ["run_file_damaged"] == [finding.kind for finding in report.findings]
    assert (1, True) == (report.exit_code, file.name in report.findings[0].message)


def test_a_final_state_without_its_norm_is_noted(tmp_path):
    """Once something is stored, a run that keeps `final` should have its norm; until then it is not due."""
    paths = a_complete_run(tmp_path / "run")
    with_record(paths, keeps_final=True)
    begun = a_run(tmp_path / "begun")
    with_record(begun, keeps_final=True)

    assert {("run_file_missing", None, None)} == found(paths)
    assert 0 == verify_run(paths).exit_code
    assert set() == found(begun)
