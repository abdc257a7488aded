"""Plans, runs, checks and draws experiments with Anabranch's packet simulator.

The simulator is one binary, ``anabranch``; this package calls it, reads its results and holds no second copy of any
protocol. Columns carry their units in their names, as the binary has them. Read `Scenario`, `run` and `sweep` first;
`anabranch_lab.claims` checks published values, and the command ``anabranch-lab`` does so from a shell.

Examples
--------
>>> import anabranch_lab as lab
>>> star = lab.Scenario({
...     "network": {"topology": "star", "hosts": 9, "delay": "25 us", "queue": "64 KiB"},
...     "workload": {"kind": "incast", "servers": 1, "block": "64 KiB", "rounds": 5},
... })
>>> result = lab.sweep(star, over={"workload.servers": [1, 8]}, trials=3, progress=False)
>>> result.rows[["workload.servers", "trial", "seed", "rounds"]]
   workload.servers  trial  seed  rounds
0                 1      0     1       5
1                 1      1     2       5
2                 1      2     3       5
3                 8      0     1       5
4                 8      1     2       5
5                 8      2     3       5
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch_lab.batches import RunError, ScenarioError
    from anabranch_lab.binary import Binary, BinaryNotFoundError
    from anabranch_lab.results import NoTableError, Result
    from anabranch_lab.runs import run, sweep
    from anabranch_lab.scenario import Scenario
    from anabranch_lab.stats import means

__all__ = [
    "Binary",
    "BinaryNotFoundError",
    "NoTableError",
    "Result",
    "RunError",
    "Scenario",
    "ScenarioError",
    "means",
    "run",
    "sweep",
]
#: Module of each public name. A name is imported at its first use: `anabranch_lab.cells` needs no pandas.
_MODULES = {
    "batches": ("RunError", "ScenarioError"),
    "binary": ("Binary", "BinaryNotFoundError"),
    "results": ("NoTableError", "Result"),
    "runs": ("run", "sweep"),
    "scenario": ("Scenario",),
    "stats": ("means",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
