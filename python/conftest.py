"""What all tests share: a binary, and a cache of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch_lab import Scenario
from anabranch_lab import binary as binaries


def pytest_sessionstart() -> None:
    """Say at once, in one line, what is missing."""
    try:
        binaries.find()
    except binaries.BinaryNotFoundError as error:
        pytest.exit(str(error), returncode=1)


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
