"""HiGHS on the path form of a round's program of ``live`` (Figure 4.8 of the thesis), in one thread.

``oracle_live.py --seconds S`` reads a program from standard input, as ``cargo xtask bench live
--peer PYTHON`` writes it, and prints the bounds that HiGHS found as one JSON object. All sources
hold all channels. It needs ``highspy`` alone. Read `model` first.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from typing import Any

import highspy
import numpy as np
from oracle_highs import oracle, rss_bytes_max

#: A row: its columns, their values, and its upper limit.
Row = tuple[list[int], list[float], float]


class Model:
    """Columns from 0 to 1 with costs to minimise, and rows with upper limits."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.rows: list[Row] = []
        #: Columns and bitrates on each link.
        self.uses: defaultdict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)

    def column(self, cost: float, mbps: float, *links: tuple[str, int]) -> int:
        """Add a binary column that uses ``mbps`` of each link."""
        self.costs.append(cost)
        for link in links:
            self.uses[link].append((len(self.costs) - 1, mbps))
        return len(self.costs) - 1

    def at_most_one(self, columns: list[int]) -> None:
        """Allow at most one of the columns to be 1."""
        if len(columns) > 1:
            self.rows.append((columns, [1.0] * len(columns), 1.0))

    def at_most_sum(self, columns: list[int], others: list[int]) -> None:
        """Keep the sum of the columns at or below the sum of the others."""
        self.rows.append((columns + others, [1.0] * len(columns) + [-1.0] * len(others), 0.0))

    def lp(self) -> highspy.HighsLp:
        """Return the model as HiGHS takes it."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.costs), len(self.rows)
        lp.col_cost_ = np.array(self.costs)
        lp.col_lower_, lp.col_upper_ = np.zeros(lp.num_col_), np.ones(lp.num_col_)
        lp.row_lower_ = np.full(lp.num_row_, -highspy.kHighsInf)
        lp.row_upper_ = np.array([most for _, _, most in self.rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0] + [len(columns) for columns, _, _ in self.rows]).astype(np.int32)
        lp.a_matrix_.index_ = np.array([column for columns, _, _ in self.rows for column in columns], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([value for _, values, _ in self.rows for value in values])
        lp.integrality_ = [highspy.HighsVarType.kInteger] * lp.num_col_
        return lp


def model(of: dict[str, Any]) -> highspy.HighsLp:
    """Build the path form: a binary column for each path of a request, for each object's trunk and for its feed.

    Parameters
    ----------
    of
        ``sources`` (the first nodes), ``cost_weight``, ``links`` and ``group_links`` (from, to,
        Mbit/s, cost), and ``objects`` (Mbit/s, requests of group and value).

    Returns
    -------
    highspy.HighsLp
        A minimisation: its objective is the program's with the sign changed. An object with one
        request needs no columns of trunks.
    """
    weight = of["cost_weight"]
    feeds: defaultdict[int, list[tuple[int, int, float]]] = defaultdict(list)
    trunks: defaultdict[int, list[tuple[int, int, float]]] = defaultdict(list)
    tails: defaultdict[int, list[tuple[int, int, float]]] = defaultdict(list)
    for number, (start, end, _, cost) in enumerate(of["links"]):
        (feeds if start < of["sources"] else trunks)[end].append((number, start, cost))
    for number, (edge, group, _, cost) in enumerate(of["group_links"]):
        tails[group].append((number, edge, cost))
    made = Model()
    for mbps, requests in of["objects"]:
        price = weight * mbps
        fed: dict[int, list[int]] = {}
        carried: dict[int, int] = {}
        for group, value in requests:
            paths: list[int] = []
            through: defaultdict[int, list[int]] = defaultdict(list)
            for tail, edge, tail_cost in tails[group]:
                on_trunk: list[tuple[int, int]] = []
                for trunk, reflector, trunk_cost in trunks[edge]:
                    if reflector not in fed:
                        ways = feeds[reflector]
                        fed[reflector] = [made.column(price * cost, mbps, ("link", feed)) for feed, _, cost in ways]
                        made.at_most_one(fed[reflector])
                    if len(requests) == 1:
                        path = made.column(
                            price * (tail_cost + trunk_cost) - value, mbps, ("tail", tail), ("link", trunk)
                        )
                    else:
                        path = made.column(price * tail_cost - value, mbps, ("tail", tail))
                        if trunk not in carried:
                            carried[trunk] = made.column(price * trunk_cost, mbps, ("link", trunk))
                        on_trunk.append((path, trunk))
                    paths.append(path)
                    through[reflector].append(path)
                for path, trunk in on_trunk:
                    made.at_most_sum([path], [carried[trunk]])
            for reflector, some in through.items():
                made.at_most_sum(some, fed[reflector])
            made.at_most_one(paths)
    capacities = {"link": of["links"], "tail": of["group_links"]}
    for (kind, number), columns in made.uses.items():
        made.rows.append(
            ([column for column, _ in columns], [mbps for _, mbps in columns], capacities[kind][number][2])
        )
    return made.lp()


def main() -> None:
    """Read a program and print HiGHS's bounds."""
    parser = argparse.ArgumentParser(description="HiGHS on the path form of a program of live, from standard input")
    parser.add_argument("--seconds", type=float, default=75.0, help="time limit")
    parser.add_argument("--gap", type=float, default=1e-5, help="relative gap at which it stops")
    options = parser.parse_args()
    found = oracle(model(json.load(sys.stdin)), options.seconds, options.gap)
    objective, bound = (-value if math.isfinite(value) else None for value in (found.cost, found.bound))
    row = {"objective": objective, "bound": bound, "cpu_s": found.cpu_s}
    print(json.dumps(row | {"rss_bytes": rss_bytes_max(), "ended": found.ended}))


if __name__ == "__main__":
    main()
