"""HiGHS on a round's program of ``broker`` (the thesis's Figure 3.10): the reference for tests of its optimiser.

``oracle_highs.py --seconds S`` reads a program from standard input, as ``anabranch broker market``
prints it, and prints the result of HiGHS as one JSON object, for ``cargo xtask bench broker --peer
PYTHON``. It needs ``highspy`` alone. Read `oracle` first.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import highspy
import numpy as np


@dataclasses.dataclass(frozen=True)
class Found:
    """Result of HiGHS.

    Attributes
    ----------
    bound
        Lower bound of the cost of any answer.
    cost
        Cost of the best answer; infinity without an answer.
    cpu_s
        Processor seconds to pass the model to HiGHS and to solve it.
    ended
        HiGHS's reason to stop, in its own words.
    version
        Version of HiGHS.
    """

    bound: float
    cost: float
    cpu_s: float
    ended: str
    version: str


def model(of: dict[str, Any]) -> highspy.HighsLp:
    """Build the program: how many of a group's clients each candidate of its place serves, and how many go unserved.

    Parameters
    ----------
    of
        The program, as ``anabranch broker market`` prints it.

    Returns
    -------
    highspy.HighsLp
        Rows are groups, whose clients are all counted, and clusters, which send at most their
        capacity, in Mbit/s.
    """
    clusters = np.array(of["clusters"], dtype=float).reshape(-1, 2)
    # Candidates of each place: clusters and scores. A further choice, to go unserved, loads no
    # cluster.
    places = [np.array(place, dtype=float).reshape(-1, 2) for place in of["places"]]
    groups = len(of["groups"])
    rows, values, costs, most, lengths = [], [], [], [], []
    for number, (place, bitrate_bps, sessions) in enumerate(of["groups"]):
        mbps = bitrate_bps / 1e6
        at, scores = places[place][:, 0].astype(np.int32), places[place][:, 1]
        costs.append(np.concatenate(([of["unserved_cost"]], scores + clusters[at, 1] * mbps)))
        most.append(np.full(len(at) + 1, float(sessions)))
        pairs = np.column_stack((np.full(len(at), number, np.int32), groups + at))
        rows.append(np.concatenate((np.array([number], np.int32), pairs.ravel())))
        values.append(np.concatenate(([1.0], np.tile([1.0, mbps], len(at)))))
        lengths.append(np.concatenate(([1], np.full(len(at), 2))))
    clients = np.array([float(sessions) for _, _, sessions in of["groups"]])
    lp = highspy.HighsLp()
    lp.col_cost_, lp.col_upper_ = np.concatenate(costs), np.concatenate(most)
    lp.num_col_, lp.num_row_ = len(lp.col_cost_), groups + len(clusters)
    lp.col_lower_ = np.zeros(lp.num_col_)
    lp.row_lower_ = np.concatenate((clients, np.full(len(clusters), -highspy.kHighsInf)))
    lp.row_upper_ = np.concatenate((clients, clusters[:, 0] / 1e6))
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.concatenate(([0], np.cumsum(np.concatenate(lengths)))).astype(np.int32)
    lp.a_matrix_.index_, lp.a_matrix_.value_ = np.concatenate(rows), np.concatenate(values)
    lp.integrality_ = [highspy.HighsVarType.kInteger] * lp.num_col_
    return lp


def oracle(lp: highspy.HighsLp, seconds: float, gap: float = 0.0) -> Found:
    """Solve a program by HiGHS, in one thread.

    Parameters
    ----------
    lp
        From `model`.
    seconds
        Seconds after which HiGHS stops with its best answer so far.
    gap
        HiGHS also stops once its answer provably costs at most this share more than the optimum.

    Returns
    -------
    Found
        Bounds from both sides.
    """
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    options = {"output_flag": False, "time_limit": seconds, "mip_rel_gap": gap, "threads": 1}
    for option, value in options.items():
        solver.setOptionValue(option, value)
    began = time.process_time()
    solver.passModel(lp)
    solver.run()
    cpu_s = time.process_time() - began
    info = solver.getInfo()
    ended = solver.modelStatusToString(solver.getModelStatus())
    return Found(info.mip_dual_bound, info.objective_function_value, cpu_s, ended, solver.version())


def rss_bytes_max() -> int:
    """Return the peak memory of this process in bytes; `getrusage` would include its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    """Read a program, and print the result of HiGHS."""
    parser = argparse.ArgumentParser(description="HiGHS on a round's program from standard input")
    parser.add_argument("--seconds", type=float, default=120.0, help="when it stops with what it has")
    parser.add_argument("--gap", type=float, default=1e-4, help="it stops this near to the best, too")
    options = parser.parse_args()
    # The program has no name, so that only the model stays in memory.
    found = oracle(model(json.load(sys.stdin)), options.seconds, options.gap)
    answer: dict[str, Any] = {"name": "HiGHS", "version": found.version, "cost": None, "gap": None}
    if math.isfinite(found.cost):
        answer["cost"] = found.cost
        if math.isfinite(found.bound):
            answer["gap"] = 1 - found.bound / found.cost if found.cost else 0.0
    print(json.dumps(answer | {"cpu_s": found.cpu_s, "rss_bytes": rss_bytes_max(), "ended": found.ended}))


if __name__ == "__main__":
    main()
