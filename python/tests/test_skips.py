"""A skipped test is counted, and fails in strict mode."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """\
import pytest

def test_passes():
    pass

def test_cannot_run():
    pytest.importorskip("no_such_module")
"""


@pytest.mark.parametrize("strict", [False, True])
def test_skips_are_counted_and_fail_in_strict_mode(tmp_path: Path, strict: bool) -> None:
    shutil.copy(Path(__file__).resolve().parents[1] / "conftest.py", tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_none.py").write_text('import pytest\npytest.importorskip("neither_this")\n')
    environment = {name: value for name, value in os.environ.items() if name != "ANABRANCH_NO_SKIP"}
    environment |= {"ANABRANCH_SKIPPED": str(tmp_path / "skipped")} | ({"ANABRANCH_NO_SKIP": "1"} if strict else {})
    run = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", "--rootdir", str(tmp_path), "."]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == int(strict), done.stdout
    lines = [line.split("\t") for line in (tmp_path / "skipped").read_text().splitlines()]
    assert [(line[0], line[1]) for line in lines] == [
        ("anabranch-lab", "test_none.py"),
        ("anabranch-lab", "test_some.py::test_cannot_run"),
    ]
    assert all("could not import" in line[2] for line in lines)
    assert ("ANABRANCH_NO_SKIP is set" in done.stdout) is strict
