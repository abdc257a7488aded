"""Fixtures that all tests share: a binary, and a separate cache."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from anabranch_lab import Scenario
from anabranch_lab import binary as binaries

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_sessionstart() -> None:
    """Say at once, in one line, what is missing."""
    try:
        binaries.find()
    except binaries.BinaryNotFoundError as error:
        pytest.exit(str(error), returncode=1)


def count_skip(report: Report) -> Report:
    """Count a test that is left out, as the tests in Rust do, or have it fail where nothing may be left out."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return report
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    why = " ".join(why.removeprefix("Skipped: ").split())
    if path := os.environ.get("ANABRANCH_SKIPPED"):
        with Path(path).open("a") as file:
            file.write(f"anabranch-lab\t{report.nodeid}\t{why}\n")
    if "ANABRANCH_NO_SKIP" in os.environ:
        report.outcome = "failed"
        report.longrepr = f"ANABRANCH_NO_SKIP is set, and this cannot run: {why}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count tests that are left out."""
    return count_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Count files that are left out."""
    return count_skip((yield))


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache that nothing else has filled."""
    before = os.environ.get("ANABRANCH_LAB_CACHE")
    folder = tmp_path_factory.mktemp("cache")
    os.environ["ANABRANCH_LAB_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["ANABRANCH_LAB_CACHE"]
    else:
        os.environ["ANABRANCH_LAB_CACHE"] = before


@pytest.fixture
def star() -> Scenario:
    """A scenario that takes milliseconds and differs by seed."""
    return Scenario(
        {
            "network": {"topology": "star", "hosts": 9, "delay": "25 us", "queue": "64 KiB"},
            "workload": {
                "kind": "incast",
                "servers": 2,
                "block": "16 KiB",
                "rounds": 2,
                "jitter": "10 us",
            },
        }
    )
