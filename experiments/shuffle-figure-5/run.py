#!/usr/bin/env python3
"""Figure 5 of Flow Chasing in the simulator and on the emulator, beside the paper's numbers.

Runs `scenarios/shuffle.toml` by `anabranch simulate`, and some times by `anabranch emulate`, under each scheduler and in both of
the paper's cases; prints a table and writes `measured.csv`. Runs that the emulator does not trust (it ran late) are repeated, and
left out if they stay so. Exit code 1 if a simulated time is more than 3 % from the paper's, or an emulated one more than 10 %.

Read first: `take`, `main`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SCENARIO = ROOT / "scenarios" / "shuffle.toml"
#: b comes 2 s after a. Emulated it comes 200 ms later: a2 is through after 2 s and some round trips, which its agent sees at its
#: next look; b would meet it, and be told to stand back for an instant, after which Linux lets it wait for half a second.
LATE = {"simulate": "3 s", "emulate": "3.2 s"}
#: Case, scheduler, and the seconds that the paper has for coflows a and b.
CASES = [
    *(("together", name, (6, 4)) for name in ("none", "max-min")),
    *(("together", name, (6, 3)) for name in ("varys", "chase", "chase-total", "chase+")),
    ("late", "chase-without-conservation", (6, 3)),
    *(("late", name, (6, 2)) for name in ("none", "max-min", "varys", "chase", "chase-total", "chase+")),
]
TOLERANCE = {"simulated": 0.03, "emulated": 0.10}
TRIES = 4
#: Packets may be this late: 1 % of the shortest time that is measured.
LATE_MAX = "20 ms"


def binary(given: str | None) -> str:
    """The `anabranch` command: as given, as ANABRANCH_BIN says, or as built in this repository."""
    built = (ROOT / "target" / profile / "anabranch" for profile in ("release", "debug"))
    for place in filter(None, (given, os.environ.get("ANABRANCH_BIN"), *map(str, built))):
        if pathlib.Path(place).is_file():
            return str(pathlib.Path(place).resolve())
    raise SystemExit("no anabranch binary: build it with `cargo build --release`, or name it with --binary")


def take(command: list[str], case: str, allocator: str) -> tuple[float, float] | None:
    """Seconds that a and b take; None for a run that is not to be trusted. Of two coflows, a is always the later to end."""
    sets = ["sweep={}", f"workload.allocator={allocator}"]
    if case == "late":
        sets += [f"workload.coflows.b.start={LATE[command[1]]}", "network.topology=networks/figure-5-late.toml"]
    words = [*command, str(SCENARIO), "-q", "--json", *(word for one in sets for word in ("--set", one))]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    (row,) = (json.loads(line) for line in done.stdout.splitlines())
    if not row.get("trusted", True):
        print(f"{case}, {allocator}: {'; '.join(row['why'])}", file=sys.stderr)
        return None
    return row["cct_us_p99"] / 1e6, row["cct_us_p50"] / 1e6


def main() -> int:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--binary", help="the anabranch command")
    parser.add_argument("--trials", type=int, default=3, help="emulated runs of each; 0 only simulates")
    options = parser.parse_args()
    anabranch = binary(options.binary)
    wrong = 0
    out = HERE / "measured.csv"
    partial = out.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["case", "allocator", "coflow", "paper_s", "simulated_s", "emulated_s", "lowest_s", "highest_s", "trials"])
        for case, allocator, paper in CASES:
            simulated = take([anabranch, "simulate"], case, allocator)
            assert simulated is not None, "the simulator is never late"
            emulated: list[tuple[float, float]] = []
            for _ in range(TRIES * options.trials):
                if len(emulated) == options.trials:
                    break
                seconds = take([anabranch, "emulate", "--lateness-bound", LATE_MAX], case, allocator)
                emulated += [seconds] if seconds is not None else []
            if len(emulated) < options.trials:
                print(f"{case}, {allocator}: {len(emulated)} of {options.trials} emulated runs are trusted", file=sys.stderr)
                wrong += 1
            for index, coflow in enumerate("ab"):
                times = [seconds[index] for seconds in emulated]
                shown = [f"{of(times):.3f}" if times else "" for of in (statistics.median, min, max)]
                row = [case, allocator, coflow, paper[index], f"{simulated[index]:.3f}", *shown, len(times)]
                table.writerow(row)
                file.flush()
                print(*row, sep="\t", flush=True)
                for arm, all_times in (("simulated", [simulated[index]]), ("emulated", times)):
                    wrong += any(abs(time / paper[index] - 1) > TOLERANCE[arm] for time in all_times)
    partial.replace(out)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
