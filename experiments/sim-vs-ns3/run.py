"""Our packet simulator beside ns-3 on the same scenarios: incast, two fat-tree loads, a permutation.

``run.py all`` measures everything in both, writes ``measured.csv`` and draws the figures in the
lab's environment; with ``--resume`` it uses the rows of this ns-3 in ``measured.csv``; ``draw``
draws the figures from all rows. ``smoke`` is the check of ``make test``: it measures a small sample
in both and writes nothing; without ns-3 it prints one line and exits with 0. Exit code 1 if
a value is outside its tolerance, 2 on wrong usage.

``--json`` prints one object for each value. `published` is the value of ns-3 on this machine, `ok` is null for
values without a claim.
"""

from __future__ import annotations

import concurrent.futures
import json
import math
import os
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, ROOT, Experiment, Option, Row, read_csv, write_csv
from anabranch_lab.programs import Failed, Skipped, json_lines

import peer

LAB = Experiment(__file__, __doc__)
MEASURED = LAB.folder / "measured.csv"
COLUMNS = (
    *("simulator", "version", "scenario", "queue_kib", "servers", "seed"),
    *("goodput_mbps", "round_ms_p50", "timeouts", "drops", "delivered", "packet_hops", "cpu_s", "flow_goodput_mbps"),
)
QUEUES_KIB = (64, 128)
SERVERS = (1, 2, 5, 8, 10, 15, 20, 30, 40)
#: Largest number of servers for which runs without a timeout are not rare.
FEW_SERVERS = 10
#: Numbers of runs of ns-3 with more servers, and of the permutation.
FLOOR_SEEDS = 2
PERMUTATION_SEEDS = 3
#: Permutations, and whether each has selective acknowledgements and a slow start that ends at
#: `SSTHRESH_PACKETS`.
PERMUTATIONS = {"permutation": False, "permutation_sack": True}
SSTHRESH_PACKETS = 20
MSS_BYTES = 1_460
#: Half of the link's rate: below it goodput has collapsed.
COLLAPSED_MBPS = 500.0
#: Simulators of the same TCP are known to differ this much on the collapsed floor.
FLOOR_RATIO = 4.0
#: Tolerance of counts and of medians, which vary little between runs.
TOLERANCE_SHARE = 0.01
#: Tolerance of a mean over runs, in standard errors of the difference; at least the share above is
#: tolerated.
STANDARD_ERRORS = 3.0

Point = tuple[int, int, int]
T = TypeVar("T")
Value = dict[str, Any]


class Ours:
    """Our simulator's two programs.

    Parameters
    ----------
    binary, xtask
        Programs named on the command line; cargo builds the xtask if it is left out.
    """

    def __init__(self, binary: Path, xtask: str | None) -> None:
        self.binary = binary
        cargo = ["cargo", "run", "--quiet", "--release", "--package", "xtask", "--"]
        self.xtask = [xtask] if xtask else cargo
        self.version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]

    def simulate(self, file: str, trials: int, settings: dict[str, str]) -> list[Row]:
        """Simulate `file`, and return one row for each trial and workload."""
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return json_lines([self.binary, "simulate", LAB.folder / file, "--quiet", "--json", "--trials", trials, *sets])

    def bench(self, scenario: str) -> Row:
        """Run ``bench sim`` on a scenario, and return its row."""
        (row,) = json_lines([*self.xtask, "bench", "sim", scenario, "--json", "--runs", "1"], folder=ROOT)
        return row


# ---------------------------------------------------------------------------------------- measuring


class Both:
    """Runs the same scenarios in both simulators, and collects the rows.

    Parameters
    ----------
    ours, ns3
        The two simulators.
    kept
        Rows of earlier runs; rows of this version of ns-3 are not measured again.
    """

    def __init__(self, ours: Ours, ns3: peer.Ns3, kept: Iterable[Row] = ()) -> None:
        self.ours, self.ns3 = ours, ns3
        self.rows: list[Row] = []
        self.kept = {_key(row): row for row in kept if (row["simulator"], row["version"]) == ("ns-3", ns3.version)}

    def incast(self, points: Sequence[Point], trials: int, rounds: tuple[int, int], jobs: int) -> None:
        """Run incast. Points are (KiB of queue, servers, seeds of ns-3), rounds are (warm-up, counted)."""
        asked = [
            {"scenario": "incast", "queue_kib": queue, "servers": servers, "seed": seed}
            for queue, servers, seeds in points
            for seed in range(1, seeds + 1)
        ]

        def run(cell: Row) -> Row:
            options = {"servers": cell["servers"], "queue_bytes": cell["queue_kib"] * 1024, "seed": cell["seed"]}
            return self.ns3.run("incast", **options, warmup_rounds=rounds[0], rounds=rounds[1])

        self._peer(asked, run, jobs)
        for queue, servers, _ in points:
            settings = {
                "network.queue": f'"{queue} KiB"',
                "workload.servers": str(servers),
                "workload.warmup_rounds": str(rounds[0]),
                "workload.rounds": str(rounds[1]),
            }
            for row in self.ours.simulate("incast.toml", trials, settings):
                self._add(
                    {
                        **{"scenario": "incast", "queue_kib": queue, "servers": servers, "seed": row["seed"]},
                        "goodput_mbps": round(row["goodput_mbps"], 2),
                        "round_ms_p50": round(row["round_us_p50"] / 1e3, 3),
                        "timeouts": row["timeouts"],
                        "drops": row["dropped_queue_full"],
                        "packet_hops": row["packet_hops"],
                    }
                )

    def permutation(self, scenario: str, seeds: int, trials: int, duration_ms: int, jobs: int) -> None:
        """Run one of `PERMUTATIONS`. The simulators draw start times differently, so equal seeds do not
        mean equal runs."""
        sack = PERMUTATIONS[scenario]
        asked = [{"scenario": scenario, "queue_kib": 64, "seed": seed} for seed in range(1, seeds + 1)]
        pairs = ",".join(f"{src}-{dst}" for src, dst in listed_pairs())

        def run(cell: Row) -> Row:
            options = {"duration_ms": duration_ms, "pairs": pairs, "sack": int(sack)}
            options["initial_ssthresh_packets"] = SSTHRESH_PACKETS if sack else 0
            found = self.ns3.run("permutation", seed=cell["seed"], **options)
            return {**found, "goodput_mbps": round(sum(found["flow_goodput_mbps"]), 3)}

        self._peer(asked, run, jobs)
        by_seed: dict[int, list[Row]] = {}
        settings = {"duration": f'"{duration_ms} ms"'}
        if sack:
            settings |= {"transport.sack": "true", "transport.initial_ssthresh": f'"{SSTHRESH_PACKETS * MSS_BYTES} B"'}
        for row in self.ours.simulate("permutation.toml", trials, settings):
            by_seed.setdefault(row["seed"], []).append(row)
        for seed, flows in by_seed.items():
            goodput_mbps = [round(flow["goodput_mbps"], 3) for flow in flows]
            self._add(
                {
                    **{"scenario": scenario, "queue_kib": 64, "seed": seed},
                    "goodput_mbps": round(sum(goodput_mbps), 3),
                    "timeouts": sum(flow["timeouts"] for flow in flows),
                    "drops": flows[0]["dropped_queue_full"],
                    "packet_hops": flows[0]["packet_hops"],
                    "flow_goodput_mbps": goodput_mbps,
                }
            )

    def fat_tree(self, name: str, k: int) -> None:
        """Run `name` in ns-3 and directly afterwards in our simulator, so that the machine has the
        same load; kept rows are not used."""
        scenario = name if k == 8 else f"{name}@{k}"
        found = self.ns3.run(name, k=k)
        del found["flow_goodput_mbps"]
        self.rows.append({"simulator": "ns-3", "version": self.ns3.version, "scenario": scenario, **found})
        row = self.ours.bench(scenario)
        self._add({"scenario": scenario, **{key: row[key] for key in ("drops", "delivered", "packet_hops")}})
        self.rows[-1]["cpu_s"] = round(row["cpu_s"], 3)

    def _add(self, row: Row) -> None:
        self.rows.append({"simulator": "anabranch", "version": self.ours.version, **row})

    def _peer(self, asked: list[Row], run: Callable[[Row], Row], jobs: int) -> None:
        whose = {"simulator": "ns-3", "version": self.ns3.version}
        missing = [cell for cell in asked if _key({**whose, **cell}) not in self.kept]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            found = dict(zip(map(_key, missing), pool.map(run, missing), strict=True))
        for cell in asked:
            row = {**whose, **cell}
            self.rows.append(self.kept[_key(row)] if _key(row) in self.kept else {**row, **found[_key(cell)]})


def _key(row: Row) -> tuple[str, ...]:
    return tuple(str(row.get(key, "")) for key in ("scenario", "queue_kib", "servers", "seed"))


def listed_pairs() -> list[tuple[int, int]]:
    """Return the permutation's pairs (source, destination), as numbers of hosts.

    Examples
    --------
    >>> listed_pairs()[0], len(listed_pairs())
    ((0, 5), 16)
    """
    workloads = tomllib.loads((LAB.folder / "permutation.toml").read_text())["workload"]
    pairs = [pair for workload in workloads for pair in workload["pairs"]]
    return [(int(src.removeprefix("h")), int(dst.removeprefix("h"))) for src, dst in pairs]


def read_rows() -> list[Row]:
    """Read the committed rows, with numbers as numbers; no rows if there is no file."""
    words = {"simulator", "version", "scenario"}

    def value_of(column: str, text: str) -> Any:
        if column == "flow_goodput_mbps":
            return [float(word) for word in text.split()]
        return text if column in words else float(text) if "." in text else int(text)

    return [{column: value_of(column, text) for column, text in row.items() if text != ""} for row in read_csv(MEASURED)]


def write_rows(rows: Iterable[Row]) -> None:
    """Write all rows to ``measured.csv``."""
    write_csv(MEASURED, ({**row, "flow_goodput_mbps": " ".join(map(str, row.get("flow_goodput_mbps", [])))} for row in rows), COLUMNS)


# ---------------------------------------------------------------------------------------- comparing


Pair = tuple[float, float]


def pair_map(of: Callable[[str], T]) -> tuple[T, T]:
    """Apply `of` to ns-3 and to our simulator."""
    return of("ns-3"), of("anabranch")


def value(metric: str, pair: Pair, within: float | None = None, tolerance: str = "-", note: str = "") -> Value:
    """Return one value of ns-3 and of our simulator, with the claim that they differ by at most
    `within`, if given."""
    ns3, ours = pair
    return {
        "claim": "sim-vs-ns3",
        "metric": metric,
        "published": round(ns3, 3),
        "ours": round(ours, 3),
        "tolerance": tolerance,
        "ok": None if within is None else abs(ours - ns3) <= within,
        "note": note,
    }


def share(metric: str, pair: Pair) -> Value:
    """Return a count or median of both, compared with a relative tolerance."""
    return value(metric, pair, TOLERANCE_SHARE * pair[0], f"{TOLERANCE_SHARE:.0%}")


def means(metric: str, ns3: Sequence[float], ours: Sequence[float]) -> Value:
    """Return means over runs, with a tolerance from the spread of the runs.

    Examples
    --------
    >>> means("m", [100.0, 100.0], [100.5, 100.5])["ok"], means("m", [100.0, 100.0], [102.0, 102.0])["ok"]
    (True, False)
    """
    error = math.sqrt(sum(statistics.variance(of) / len(of) if len(of) > 1 else 0.0 for of in (ns3, ours)))
    mean = statistics.fmean(ns3)
    within = max(STANDARD_ERRORS * error, TOLERANCE_SHARE * mean)
    note = f"{len(ns3)} runs from {min(ns3):.0f} to {max(ns3):.0f}; ours {len(ours)}, {min(ours):.0f} to {max(ours):.0f}"
    return value(metric, (mean, statistics.fmean(ours)), within, f"{within:.0f} (3 standard errors, 1 % at least)", note)


def knee(goodput_mbps: dict[int, float]) -> float:
    """Return the number of servers from which on goodput stays below half of the link; infinity if there is none.

    Examples
    --------
    >>> knee({1: 900.0, 2: 400.0, 5: 800.0, 8: 300.0, 10: 200.0})
    8
    """
    low: float = math.inf
    for servers in sorted(goodput_mbps, reverse=True):
        if goodput_mbps[servers] >= COLLAPSED_MBPS:
            break
        low = servers
    return low


def runs(rows: Iterable[Row], column: str, **where: object) -> list[Any]:
    """Return the values of `column` in the rows that have the values of `where`."""
    return [row[column] for row in rows if all(row.get(key) == given for key, given in where.items())]


def incast_values(rows: list[Row], rounds_all: int) -> list[Value]:
    """Return for each queue the knee, goodput before it, the floor after it, rounds and timeouts."""
    rows = [row for row in rows if row["scenario"] == "incast"]
    queues = sorted({row["queue_kib"] for row in rows})
    return [one for queue in queues for one in _queue_values(rows, queue, rounds_all)]


def _queue_values(rows: list[Row], queue: int, rounds_all: int) -> list[Value]:
    servers = sorted(set(runs(rows, "servers", queue_kib=queue)))

    def at(column: str, count: int) -> tuple[list[float], list[float]]:
        return pair_map(lambda s: runs(rows, column, simulator=s, queue_kib=queue, servers=count))

    goodput = {count: at("goodput_mbps", count) for count in servers}
    curves = [{count: statistics.fmean(pair[which]) for count, pair in goodput.items()} for which in (0, 1)]
    knees = knee(curves[0]), knee(curves[1])
    step = {count: place for place, count in enumerate([*servers, math.inf])}
    name = f"incast.{queue}kib"
    row = value(f"{name}.knee_servers", knees, None, f"one step of {'-'.join(map(str, servers))}")
    found = [{**row, "ok": abs(step[knees[0]] - step[knees[1]]) <= 1}]
    for count in servers:
        metric = f"{name}.{count}_servers"
        pair = curves[0][count], curves[1][count]
        if count < min(knees):
            found.append(means(f"{metric}.goodput_mbps", *goodput[count]))
        elif count >= max(knees):
            note = f"the floor: ratio {pair[1] / pair[0]:.2f}"
            row = value(f"{metric}.goodput_mbps", pair, None, f"{FLOOR_RATIO:.0f} times", note)
            found.append({**row, "ok": 1 / FLOOR_RATIO <= pair[1] / pair[0] <= FLOOR_RATIO})
        else:
            found.append(value(f"{metric}.goodput_mbps", pair, note="between the two knees"))
        if count <= FEW_SERVERS:
            medians = [statistics.median(of) for of in at("round_ms_p50", count)]
            found.append(share(f"{metric}.round_ms_p50", (medians[0], medians[1])))
        timeouts = [statistics.fmean(of) * 100 / rounds_all for of in at("timeouts", count)]
        note = "reported, not claimed"
        found.append(value(f"{metric}.timeouts_per_100_rounds", (timeouts[0], timeouts[1]), note=note))
    return found


def fat_tree_values(rows: list[Row]) -> list[Value]:
    """Return the amounts of simulated work, and the speed."""
    found = []
    for scenario in sorted({row["scenario"] for row in rows} - {"incast", *PERMUTATIONS}, reverse=True):
        here = [row for row in rows if row["scenario"] == scenario]
        theirs, mine = sorted(here, key=lambda row: row["simulator"], reverse=True)
        found += [share(f"{scenario}.{key}", (theirs[key], mine[key])) for key in ("delivered", "packet_hops")]
        within, tolerance = (0.0, "none in either") if scenario.startswith("NB5") else (None, "-")
        found.append(value(f"{scenario}.drops", (theirs["drops"], mine["drops"]), within, tolerance))
        speed = round(theirs["packet_hops"] / theirs["cpu_s"]), round(mine["packet_hops"] / mine["cpu_s"])
        note = f"{speed[1] / speed[0]:.0f} times, ns-3 as distributed: logging and asserts compiled in"
        found.append(value(f"{scenario}.hops_per_cpu_s", speed, note=note))
    return found


def sorted_means(flows: Sequence[Sequence[float]]) -> list[float]:
    """Sort the flows of each run, and return the mean of each rank.

    Examples
    --------
    >>> sorted_means([[3.0, 1.0], [1.0, 5.0]])
    [1.0, 4.0]
    """
    return [statistics.fmean(rank) for rank in zip(*map(sorted, flows), strict=True)]


def permutation_values(rows: list[Row]) -> list[Value]:
    """Return goodput, extreme flows, the distance between the sorted curves, and timeouts."""
    found = []
    for scenario in [name for name in PERMUTATIONS if runs(rows, "seed", scenario=name)]:
        goodput, flows, timeouts = (
            [runs(rows, column, simulator=s, scenario=scenario) for s in ("ns-3", "anabranch")]
            for column in ("goodput_mbps", "flow_goodput_mbps", "timeouts")
        )
        curves = sorted_means(flows[0]), sorted_means(flows[1])
        lost = statistics.fmean(timeouts[0]), statistics.fmean(timeouts[1])
        apart = statistics.fmean(abs(a - b) for a, b in zip(*curves, strict=True))
        found.append(means(f"{scenario}.aggregate_mbps", *goodput))
        found.append(value(f"{scenario}.slowest_flow_mbps", (curves[0][0], curves[1][0]), note="mean over runs"))
        found.append(value(f"{scenario}.fastest_flow_mbps", (curves[0][-1], curves[1][-1]), note="mean over runs"))
        note = "mean over ranks of the difference, where 0 is the same curve"
        found.append(value(f"{scenario}.sorted_curves_apart_mbps", (0.0, apart), note=note))
        found.append(value(f"{scenario}.timeouts", lost, note="of a run; reported, not claimed"))
    return found


def draw_rows(rows: list[Row]) -> None:
    """Draw both curves of each comparison; bands are between the lowest and the highest run."""
    try:
        from anabranch_lab import figures as lab_figures
    except ImportError:
        print("no figures: they take the lab's environment (pip install ./python)", file=sys.stderr)
        return

    def curve(axes: Any, theme: str, simulator: str, x: Sequence[int], runs_at: Sequence[Sequence[float]]) -> None:
        look = lab_figures.THEMES[theme]
        colour, line = {"ns-3": (look.lines[1], "s--"), "anabranch": (look.lines[0], "o-")}[simulator]
        label = f"{simulator}: mean, least to most"
        axes.plot(x, list(map(statistics.fmean, runs_at)), line, color=colour, markersize=4, label=label)
        axes.fill_between(x, list(map(min, runs_at)), list(map(max, runs_at)), color=colour, alpha=0.2, linewidth=0)

    def incast(theme: str) -> Any:
        canvas, [grid] = lab_figures.panels(theme, 1, len(QUEUES_KIB), size=(10, 4.2))
        for axes, queue in zip(grid, QUEUES_KIB, strict=True):
            for simulator in ("ns-3", "anabranch"):
                here = {"simulator": simulator, "scenario": "incast", "queue_kib": queue}
                points = [runs(rows, "goodput_mbps", **here, servers=count) for count in SERVERS]
                curve(axes, theme, simulator, SERVERS, points)
            axes.axhline(COLLAPSED_MBPS, color=lab_figures.THEMES[theme].dim, linewidth=0.8)
            axes.set_ylim(0, 1000)
            title = f"{queue} KiB a port"
            lab_figures.name_axes(axes, theme, title=title, x="servers that answer at once", y="goodput, Mbit/s")
        lab_figures.add_legend(canvas, theme)
        return canvas

    def permutation(theme: str) -> Any:
        canvas, [grid] = lab_figures.panels(theme, 1, len(PERMUTATIONS), size=(10, 4.2))
        for axes, (scenario, sack) in zip(grid, PERMUTATIONS.items(), strict=True):
            for simulator in ("ns-3", "anabranch"):
                flows = [sorted(of) for of in runs(rows, "flow_goodput_mbps", simulator=simulator, scenario=scenario)]
                ranks = range(1, len(flows[0]) + 1)
                curve(axes, theme, simulator, ranks, list(zip(*flows, strict=True)))
            end = f"slow start to {SSTHRESH_PACKETS} packets" if sack else "slow start to the first loss"
            title = ("SACK, " if sack else "no SACK, ") + end
            axes.set_ylim(0, 1000)
            axes.xaxis.get_major_locator().set_params(integer=True)
            lab_figures.name_axes(axes, theme, title=title, x="flow, the slowest first", y="goodput, Mbit/s")
        lab_figures.add_legend(canvas, theme)
        return canvas

    for name, make in (("incast", incast), ("permutation", permutation)):
        lab_figures.save_themed(make, LAB.folder, name, {}, ["svg"])


def show(values: list[Value], as_json: bool) -> None:
    """Print all values."""
    if as_json:
        for row in values:
            # JSON has no infinity; a missing knee is null.
            print(json.dumps({key: None if at == math.inf else at for key, at in row.items()}))
        return
    print(f"{'metric':46} {'ns-3':>11} {'ours':>11}  ok   tolerance; note")
    for row in values:
        ok = {None: "-", True: "yes", False: "NO"}[row["ok"]]
        why = "; ".join(word for word in (row["tolerance"], row["note"]) if word not in ("", "-"))
        print(f"{row['metric']:46} {row['published']:>11.10g} {row['ours']:>11.10g}  {ok:4} {why}")


def find_ns3(args, missing: type[Exception]) -> peer.Ns3:
    """Find the ns-3 that the command line names, and compile the program; raise `missing` without it."""
    ns3 = peer.find(args.ns3)
    if ns3 is None:
        raise missing(f"ns-3 is not installed: {peer.INSTALL}")
    # Compiled before concurrent runs begin.
    ns3.program()
    return ns3


def conclude(args, both: Both, rounds_all: int) -> int:
    """Print all comparisons, and return the exit code."""
    values = [*fat_tree_values(both.rows), *incast_values(both.rows, rounds_all), *permutation_values(both.rows)]
    if not args.json:
        print(f"anabranch {both.ours.version} beside ns-3 {both.ns3.version}")
    show(values, args.json)
    return 1 if any(row["ok"] is False for row in values) else 0


PROGRAMS = {
    "binary": BINARY,
    "xtask": Option(kind=str, help="a built xtask; else cargo builds it"),
    "ns3": Option(os.environ.get("NS3_PREFIX"), "folder with ns-3's include and lib"),
    "jobs": Option(2, "runs of ns-3 at a time, where time is not measured"),
    "json": Option(False, "one object for each value"),
}


@LAB.verb(**PROGRAMS)
def smoke(args) -> int:
    """Measures a small sample in both; skipped if ns-3 is not installed."""
    ns3 = find_ns3(args, Skipped)
    both = Both(Ours(args.binary, args.xtask), ns3)
    both.incast([(64, servers, 1) for servers in (1, 5, 10, 20)], 4, (10, 20), args.jobs)
    both.fat_tree("NB5", 4)
    both.permutation("permutation_sack", 2, 4, 50, args.jobs)
    return conclude(args, both, 30)


@LAB.verb(
    "all",
    **PROGRAMS,
    resume=Option(False, "take this ns-3's rows from measured.csv where it has them"),
    seeds=Option(8, "runs of ns-3 at up to 10 servers (ours: 20)"),
)
def all_scenarios(args) -> int:
    """Measures everything in both, writes measured.csv and draws."""
    ns3 = find_ns3(args, Failed)
    both = Both(Ours(args.binary, args.xtask), ns3, read_rows() if args.resume else ())
    # Runs with more servers differ little, and take long.
    points = [(queue, n, args.seeds if n <= FEW_SERVERS else FLOOR_SEEDS) for queue in QUEUES_KIB for n in SERVERS]
    both.fat_tree("NB5", 8)
    both.fat_tree("HASH10", 8)
    both.incast(points, 20, (10, 100), args.jobs)
    for scenario in PERMUTATIONS:
        both.permutation(scenario, PERMUTATION_SEEDS, 20, 1000, args.jobs)
    write_rows(both.rows)
    draw_rows(both.rows)
    return conclude(args, both, 110)


@LAB.verb()
def draw(args) -> None:
    """Draws only the figures, from measured.csv."""
    draw_rows(read_rows())


if __name__ == "__main__":
    sys.exit(LAB.main())
