"""The wheel: it carries the binary and is tagged for its platform, or is not made."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[1]


def build(out: Path, binary: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=PYTHON,
        env=os.environ | {"ANABRANCH_BIN": str(binary)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_wheel_carries_the_binary(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    binary = tmp_path / "anabranch"
    binary.write_bytes(b"#!/bin/sh\necho anabranch 1.2.3 # GLIBC_2.17 GLIBC_2.34\n")
    binary.chmod(0o755)
    done = build(tmp_path / "dist", binary)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert "-py3-none-" in wheel.name
    assert "-any" not in wheel.name
    if sys.platform == "linux":
        assert "manylinux_2_34" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        carried = archive.getinfo("anabranch_lab/bin/anabranch")
        assert carried.external_attr >> 16 & 0o111
        assert archive.read(carried) == binary.read_bytes()
        assert "anabranch_lab/py.typed" in archive.namelist()


def test_a_wheel_without_a_binary_is_not_made(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    done = build(tmp_path / "dist", tmp_path / "none")
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "build it with `cargo build --release -p anabranch-cli`" in last
    assert not list(tmp_path.glob("dist/*.whl"))
