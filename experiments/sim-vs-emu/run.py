#!/usr/bin/env python3
"""One scenario file under either clock: simulated, and emulated with Linux's own TCP, side by side.

Each scenario here runs with `anabranch simulate` and with `anabranch emulate`; goodput, and completion times where flows
have sizes, must agree within 10 %. Runs that the emulator does not trust (it ran late) are repeated, and left out with a
reason if they stay so.

Read first: `compare`, `main`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SCENARIOS = ("dumbbell", "shallow", "lossy", "incast", "web-search", "bbr-cubic")
#: What is compared, where it is not goodput.
METRICS = {"web-search": ("fct_us_mean", "small_fct_us_mean")}
TOLERANCE = 0.10
TRIES = 3
#: Where the two are known to differ and why; see README.md.
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


def binary(given: str | None) -> str:
    """The `anabranch` command: as given, as ANABRANCH_BIN says, or as built in this repository."""
    built = (ROOT / "target" / profile / "anabranch" for profile in ("release", "debug"))
    for place in filter(None, (given, os.environ.get("ANABRANCH_BIN"), *map(str, built))):
        if pathlib.Path(place).is_file():
            return str(pathlib.Path(place).resolve())
    raise SystemExit("no anabranch binary: build it with `cargo build --release`, or name it with --binary")


def rows(command: list[str]) -> list[dict]:
    """The JSON lines that a command prints."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=1_800)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(anabranch: str, name: str, trials: int) -> list[dict]:
    """A value for each point and metric of a scenario: emulated and simulated, the means of some trials."""
    file = str(HERE / f"{name}.toml")
    count = ["--trials", str(trials)]
    simulated = rows([anabranch, "-q", "simulate", file, "--json", *count])
    emulated: list[dict] = []
    for _ in range(TRIES):
        emulated = rows([anabranch, "-q", "emulate", file, "--json", *count])
        if all(row["trusted"] for row in emulated):
            break

    def by_point(of: list[dict]) -> dict[str, list[dict]]:
        points: dict[str, list[dict]] = {}
        for row in of:
            swept = ", ".join(f"{key.split('.')[-1]} {row[key]}" for key in sorted(row) if "." in key)
            points.setdefault(swept, []).append(row)
        # Each workload of a run has its row, in order.
        each = {point: len(rows) // len({row["trial"] for row in rows}) for point, rows in points.items()}
        return {
            point if each[point] == 1 else f"{point}, workload {number}": rows[number :: each[point]]
            for point, rows in points.items()
            for number in range(each[point])
        }

    def mean(of: list[dict], column: str) -> float | None:
        values = [row[column] for row in of if row.get(column) is not None]
        return sum(values) / len(values) if values else None

    values = []
    for point, ours in by_point(simulated).items():
        kernel = by_point(emulated)[point]
        trusted = all(row["trusted"] for row in kernel)
        note = NOTES.get(f"{name}, {point}", "")
        if not trusted:
            note = f"the machine was too busy to emulate: {'; '.join(kernel[0]['why'])}"
        for metric in METRICS.get(name, ("goodput_mbps",)):
            real, own = mean(kernel, metric), mean(ours, metric)
            values.append(
                {
                    "claim": "sim-vs-emu",
                    "metric": f"{name}, {point}: {metric}",
                    "published": real,
                    "ours": own,
                    "tolerance": TOLERANCE,
                    "ok": None if not trusted else bool(real and own and abs(own / real - 1) <= TOLERANCE),
                    "note": note,
                    "drops_emulated": mean(kernel, "dropped_queue_full"),
                    "drops_simulated": mean(ours, "dropped_queue_full"),
                    "fairness_emulated": mean(kernel, "fairness_share"),
                    "fairness_simulated": mean(ours, "fairness_share"),
                    "lateness_us_p99": mean(kernel, "lateness_us_p99"),
                }
            )
    return values


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all without")
    parser.add_argument("--binary", help="the anabranch command")
    parser.add_argument("--trials", type=int, default=3, help="runs of each point under either clock")
    parser.add_argument("--json", action="store_true", help="one object for each value")
    given = parser.parse_args()
    unknown = set(given.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"no scenario {', '.join(sorted(unknown))}: there are {', '.join(SCENARIOS)}")
    anabranch = binary(given.binary)
    failed = 0
    if not given.json:
        print(f"{'scenario':44} {'emulated':>9} {'simulated':>9} {'ratio':>6}  drops (e/s)      ok")
    for name in given.scenarios or SCENARIOS:
        for value in compare(anabranch, name, given.trials):
            failed += value["ok"] is False
            if given.json:
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
    sys.exit(main())
