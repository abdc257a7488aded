#!/usr/bin/env python3
"""Figure 5 of Flow Chasing in the simulator and on the emulator, beside the paper's numbers.

``run.py all`` runs `scenarios/shuffle.toml` by `anabranch simulate`, and some times by `anabranch
emulate`, under each scheduler and in both of the paper's cases; it prints a table and writes
`measured.csv`. Runs that the emulator does not trust (it ran late) are repeated, and left out if
they stay untrusted. Exit code 1 if a simulated time is more than 3 % from the paper's, or an emulated one
more than 10 %.

Read first: `take`, `all_cases`.
"""

from __future__ import annotations

import functools
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, ROOT, Experiment, Option, Untrusted, trusted, until_trusted, write_csv
from anabranch_lab.programs import json_lines

LAB = Experiment(__file__, __doc__)
SCENARIO = ROOT / "scenarios" / "shuffle.toml"
#: b starts 2 s after a. In the emulation it starts 200 ms later: a2 ends after 2 s and some round
#: trips, and its agent notices at its next poll. If b started earlier, it would overlap with a2;
#: the coordinator would pause b for an instant, and Linux would then delay b for half a second.
LATE = {"simulate": "3 s", "emulate": "3.2 s"}
#: Case, scheduler, and the paper's seconds for coflows a and b.
CASES = [
    *(("together", name, (6, 4)) for name in ("none", "max-min")),
    *(("together", name, (6, 3)) for name in ("varys", "chase", "chase-total", "chase+")),
    ("late", "chase-without-conservation", (6, 3)),
    *(("late", name, (6, 2)) for name in ("none", "max-min", "varys", "chase", "chase-total", "chase+")),
]
TOLERANCE = {"simulated": 0.03, "emulated": 0.10}
#: Emulations for each wanted run, and the largest trusted lateness: 1 % of the shortest measured
#: time.
TRIES, LATE_MAX = 4, "20 ms"


def take(binary: Path, clock: str, case: str, allocator: str, *options: str) -> tuple[float, float]:
    """Run both coflows, and return the seconds of a and of b. The coflow a always ends later."""
    sets = ["sweep={}", f"workload.allocator={allocator}"]
    if case == "late":
        sets += [f"workload.coflows.b.start={LATE[clock]}", "network.topology=networks/figure-5-late.toml"]
    words = [binary, clock, *options, SCENARIO, "-q", "--json", *(word for one in sets for word in ("--set", one))]
    (row,) = trusted(json_lines(words, timeout_s=600))
    return row["cct_us_p99"] / 1e6, row["cct_us_p50"] / 1e6


@LAB.verb("all", binary=BINARY, trials=Option(3, "emulated runs of each; 0 only simulates"))
def all_cases(args) -> int:
    """Runs all cases under all schedulers, and writes measured.csv."""
    wrong, rows = 0, []
    for case, allocator, paper in CASES:
        simulated = take(args.binary, "simulate", case, allocator)
        emulate = functools.partial(take, args.binary, "emulate", case, allocator, "--lateness-bound", LATE_MAX)
        emulated: list[tuple[float, float]] = []
        try:
            for _ in range(args.trials):
                emulated.append(until_trusted(emulate, TRIES))
        except Untrusted as error:
            print(f"{case}, {allocator}: run {len(emulated) + 1} of {args.trials}: {error}", file=sys.stderr)
            wrong += 1
        for index, coflow in enumerate("ab"):
            times = [seconds[index] for seconds in emulated]
            row = {"case": case, "allocator": allocator, "coflow": coflow, "paper_s": paper[index]}
            row["simulated_s"] = f"{simulated[index]:.3f}"
            for column, of in (("emulated_s", statistics.median), ("lowest_s", min), ("highest_s", max)):
                row[column] = f"{of(times):.3f}" if times else ""
            rows.append(row | {"trials": len(times)})
            print(*rows[-1].values(), sep="\t", flush=True)
            for arm, all_times in (("simulated", [simulated[index]]), ("emulated", times)):
                wrong += any(abs(time / paper[index] - 1) > TOLERANCE[arm] for time in all_times)
    write_csv(LAB.folder / "measured.csv", rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(LAB.main())
