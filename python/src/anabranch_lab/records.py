"""Hashes of an experiment's records, by which an edit by hand is found.

``recorded.sha256`` has a line, as ``sha256sum`` writes it, for each record of its folder: the plan with published points,
the expected values, the sample's values and the points of figures. Standard library only. Read `edited` first.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Collection
from pathlib import Path

PLAN, EXPECTED, SAMPLE, HASHES = "plan.toml", "expected.csv", "sample.csv", "recorded.sha256"
#: Prefix of a file of a figure's points.
POINTS = "# points:"


def records(folder: Path) -> list[str]:
    """Return the names of a folder's records."""
    points = (path.name for path in folder.glob("*.csv") if _begin(path) == POINTS)
    return [name for name in (PLAN, EXPECTED, SAMPLE) if (folder / name).is_file()] + sorted(points)


def edited(folder: Path) -> list[str]:
    """Return the records that differ from what was recorded, a line each; none before the first record."""
    found = {name: _hash(folder / name) for name in records(folder)}
    try:
        known = _known(folder)
    except FileNotFoundError:
        return [f"{folder.name}/{HASHES}: is missing"] if _has_values(folder) else []
    except ValueError:
        return [f"{folder.name}/{HASHES}: must have a hash and a name in each line"]
    return [
        f"{folder.name}/{name}: {_difference(found.get(name), known.get(name))}"
        for name in dict.fromkeys([*known, *found])
        if found.get(name) != known.get(name)
    ]


def write(folder: Path, names: Collection[str] | None = None) -> None:
    """Write the hashes of a folder's records.

    Parameters
    ----------
    folder
        Folder of the records.
    names
        Records whose hashes change, if the folder has hashes; all records if left out. Other lines stay.
    """
    path = folder / HASHES
    if names is not None and not path.is_file():
        return
    known = {} if names is None else _known(folder)
    known |= {name: _hash(folder / name) for name in records(folder) if names is None or name in names}
    path.write_text("".join(f"{digest}  {name}\n" for name, digest in known.items()), encoding="utf-8")


def _known(folder: Path) -> dict[str, str]:
    """Return the recorded hashes by name."""
    lines = (line.split("  ") for line in (folder / HASHES).read_text(encoding="utf-8").splitlines())
    return {name: digest for digest, name in lines}


def _begin(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(len(POINTS))


def _difference(found: str | None, known: str | None) -> str:
    if found is None:
        return "was removed"
    return "was edited" if known else "was added"


def _has_values(folder: Path) -> bool:
    """Return whether a folder without hashes has recorded values nevertheless."""
    if not (folder / EXPECTED).is_file():
        return False
    with (folder / EXPECTED).open(encoding="utf-8", newline="") as file:
        return (folder / SAMPLE).is_file() or any(row.get("ours") for row in csv.DictReader(file))


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
