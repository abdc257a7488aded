#!/usr/bin/env python3
"""One scenario file under both clocks: simulated, and emulated with Linux's own TCP.

``run.py all`` runs each scenario here with `anabranch simulate` and with `anabranch emulate`;
goodput, and completion times where flows have sizes, must agree within 10 %. Runs that the emulator
does not trust (it ran late) are repeated; if they stay untrusted, they are left out with a reason.

Read first: `compare`.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Option, Untrusted, grouped, numbers, trusted, until_trusted
from anabranch_lab.programs import Failed, json_lines

LAB = Experiment(__file__, __doc__)
SCENARIOS = ("dumbbell", "shallow", "lossy", "incast", "web-search", "bbr-cubic")
#: Compared columns of scenarios for which goodput is not compared.
METRICS = {"web-search": ("fct_us_mean", "small_fct_us_mean")}
TOLERANCE = 0.10
#: Columns that are reported without a claim, by the first word of their names.
REPORTED = {"drops": "dropped_queue_full", "fairness": "fairness_share"}
#: Known differences between the two clocks, with reasons; README.md has the details.
NOTES = {
    "lossy, control cubic": "single runs differ by a fifth",
    "web-search, control newreno": "means of several runs are 10 % apart; single ones differ more",
    **{
        f"bbr-cubic, uplink_queue {queue}, control bbr, workload {number}": "the kernel has BBR's first version, which answers no losses"
        for queue in ("62500 B", "125 kB")
        for number in (0, 1)
    },
    **{f"bbr-cubic, uplink_queue 500 kB, control bbr, workload {number}": "the kernel has BBR's first version" for number in (0, 1)},
    **{f"bbr-cubic, uplink_queue {queue}, control bbr1, workload 1": "little is left to Cubic" for queue in ("62500 B", "125 kB")},
}


def by_point(rows: list[dict]) -> dict[str, list[dict]]:
    """Group rows by the swept values and, if a run has several workloads, by workload; the
    workloads' rows are in order."""
    for row in rows:
        row["point"] = ", ".join(f"{key.split('.')[-1]} {row[key]}" for key in sorted(row) if "." in key)
    points = {}
    for (point,), those in grouped(rows, "point").items():
        each = len(those) // len({row["trial"] for row in those})
        points |= {point if each == 1 else f"{point}, workload {number}": those[number::each] for number in range(each)}
    return points


def compare(binary: Path, name: str, trials: int) -> list[dict]:
    """Return a value for each point and metric of a scenario: the emulated and the simulated mean over trials."""

    def run(clock: str) -> list[dict]:
        return json_lines([binary, "-q", clock, LAB.folder / f"{name}.toml", "--json", "--trials", trials], 1_800)

    def mean(rows: list[dict], column: str) -> float | None:
        values = numbers(rows, column)
        return statistics.fmean(values) if values else None

    simulated = run("simulate")
    try:
        emulated = until_trusted(lambda: trusted(run("emulate")))
    except Untrusted as error:
        emulated = error.rows
    values = []
    kernels = by_point(emulated)
    for point, ours in by_point(simulated).items():
        kernel = kernels[point]
        is_trusted = all(row["trusted"] for row in kernel)
        note = NOTES.get(f"{name}, {point}", "")
        if not is_trusted:
            note = f"the machine was too busy to emulate: {'; '.join(kernel[0]['why'])}"
        for metric in METRICS.get(name, ("goodput_mbps",)):
            real, own = mean(kernel, metric), mean(ours, metric)
            value = {"claim": LAB.name, "metric": f"{name}, {point}: {metric}", "published": real, "ours": own}
            value["tolerance"] = TOLERANCE
            value["ok"] = None if not is_trusted else bool(real and own and abs(own / real - 1) <= TOLERANCE)
            value["note"] = note
            for what, column in REPORTED.items():
                value |= {f"{what}_emulated": mean(kernel, column), f"{what}_simulated": mean(ours, column)}
            values.append(value | {"lateness_us_p99": mean(kernel, "lateness_us_p99")})
    return values


@LAB.verb(
    "all",
    scenarios=Option(list(SCENARIOS), f"of {', '.join(SCENARIOS)}; all without", positional=True),
    binary=BINARY,
    trials=Option(3, "runs of each point under either clock"),
    json=Option(False, "one object for each value"),
)
def all_scenarios(args) -> int:
    """Runs scenarios under both clocks, and compares the results."""
    if unknown := set(args.scenarios) - set(SCENARIOS):
        raise Failed(f"no scenario {', '.join(sorted(unknown))}: there are {', '.join(SCENARIOS)}")
    failed = 0
    if not args.json:
        print(f"{'scenario':44} {'emulated':>9} {'simulated':>9} {'ratio':>6}  drops (e/s)      ok")
    for name in args.scenarios:
        for value in compare(args.binary, name, args.trials):
            failed += not value["ok"]
            if args.json:
                print(json.dumps(value), flush=True)
                continue
            ok = {True: "yes", False: "no", None: "-"}[value["ok"]]
            ratio = value["ours"] / value["published"] if value["ours"] and value["published"] else float("nan")
            drops = f"{value['drops_emulated']:.0f}/{value['drops_simulated']:.0f}"
            label = value["metric"].removesuffix(": goodput_mbps")
            line = f"{label:44} {value['published']:9.2f} {value['ours']:9.2f} {ratio:6.3f}  {drops:15}  {ok}"
            print(line, value["note"], flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(LAB.main())
