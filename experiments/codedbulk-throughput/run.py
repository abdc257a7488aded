"""Throughput of CodedBulk's schemes at a scaled rate, beside the paper's Figures 8 to 10.

``run.py --full`` plans and measures every cell of ``plan.toml`` (hours); ``--sample`` measures the cells of its
``[sample]``; ``--predict`` only plans. Each then writes ``predicted.csv``, ``measured.csv``, ``expected.csv`` and, in the
lab's environment, the figures; ``--draw`` only the last two, from the first two. ``--smoke`` is the check of ``make test``: one cell in about a minute, exit code 1
if a stated bound is broken, 0 with the line ``skipped: 1 (reason)`` where it cannot be run or trusted.

``measured.csv`` has a row for each finished run, with what was asked and the commit that ran, and is what a later call goes
on from: a row that is there is not measured again. All figures come from ``anabranch experiment codedbulk --json``.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import dataclasses
import hashlib
import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BASELINES = ("single_path", "multi_path", "steiner")
#: What a figure varies, in words.
AXES = {"load": "load, mean share of the links", "concurrent": "transfers at once", "destinations": "destinations each"}
#: The least that a ratio may lie outside the published range and still count as reproduced, as a share.
TOLERANCE = 0.1
#: Exit code of the binary for a run that is not to be trusted.
UNTRUSTED = 4


class CellError(Exception):
    """A cell that gave no figure, with the reason."""


class Untrusted(CellError):
    """A cell whose figure the emulator or the sites' programs do not vouch for."""


class Unsupported(CellError):
    """This machine cannot emulate networks."""


@dataclasses.dataclass(frozen=True, order=True)
class Cell:
    """One scheme in one draw of one point of a figure.

    Attributes
    ----------
    topology, concurrent, destinations, load, seed
        As ``anabranch experiment codedbulk`` has them.
    """

    topology: str
    concurrent: int
    destinations: int
    load: float
    seed: int

    @classmethod
    def of(cls, row: dict[str, str]) -> Cell:
        """The cell that a row of a table is about."""
        counts = (int(row[key]) for key in ("concurrent", "destinations"))
        return cls(row["topology"], *counts, float(row["load"]), int(row["seed"]))

    def arguments(self) -> list[str]:
        """Options of the binary.

        Examples
        --------
        >>> Cell("b4", 6, 3, 0.1, 2).arguments()[:4]
        ['--topology', 'b4', '--concurrent', '6']
        """
        pairs = {
            "--topology": self.topology,
            "--concurrent": self.concurrent,
            "--destinations": self.destinations,
            "--load": self.load,
            "--seed": self.seed,
        }
        return [str(word) for pair in pairs.items() for word in pair]


@dataclasses.dataclass(frozen=True)
class Point:
    """A value on a figure's axis.

    Attributes
    ----------
    figure, topology
        Which curve.
    value
        Of what the figure varies.
    """

    figure: str
    topology: str
    value: float

    def cell(self, figure: dict[str, Any], seed: int) -> Cell:
        """The point's cell for `seed`."""
        fixed = {k: figure[k] for k in ("concurrent", "destinations", "load") if k in figure}
        return Cell(topology=self.topology, seed=seed, **{**fixed, figure["vary"]: self.value})


def points(plan: dict[str, Any], sample: bool) -> Iterator[tuple[Point, dict[str, Any]]]:
    """Points of all figures, or of the sample only."""
    for figure in plan["figure"]:
        chosen = plan["sample"]["points"][figure["name"]] if sample else figure["points"]
        for topology, values in chosen.items():
            for value in values:
                yield Point(figure["name"], topology, value), figure


class Lab:
    """Runs the binary and keeps what it says.

    Parameters
    ----------
    binary
        ``anabranch``.
    runs
        Folder for the files of runs under way.
    kept
        The table of finished runs, if they are to be kept: read now, written anew after each.
    """

    def __init__(self, binary: pathlib.Path, runs: pathlib.Path, kept: pathlib.Path | None = None) -> None:
        self.binary, self.runs, self.kept = binary, runs, kept
        self.rows: dict[tuple[Cell, str], dict[str, str]] = {}
        self.lock = threading.Lock()
        self.commit = commit()
        runs.mkdir(parents=True, exist_ok=True)
        if kept is not None and kept.exists():
            with kept.open(newline="") as file:
                for row in csv.DictReader(file):
                    self.rows[Cell.of(row), row["scheme"]] = row

    def predict(self, cell: Cell, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Planned rates of `cell`, by scheme."""
        schemes = ",".join(settings["predicted"])
        options = ["--rate", settings["rate"], "--schemes", schemes, "--predict"]
        return {row["scheme"]: row for row in self._call([*cell.arguments(), *options], 120)}

    def _arguments(self, cell: Cell, scheme: str, settings: dict[str, Any]) -> list[str]:
        of_option = {
            "--rate": "rate",
            "--warm-up": "warm_up_s",
            "--seconds": "window_s",
            "--mtu": "mtu_bytes",
            "--tcp-buffer": "tcp_buffer",
            "--symbol": "symbol",
            "--buffer-packets": "buffer_packets",
            "--congestion-control": "congestion_control",
            "--lateness": "lateness_us",
        }
        here = {**settings, "tcp_buffer": settings["tcp_buffer"][cell.topology]}
        options = [word for option, key in of_option.items() for word in (option, str(here[key]))]
        return [*cell.arguments(), "--schemes", scheme, *options]

    def known(self, cell: Cell, scheme: str, settings: dict[str, Any]) -> dict[str, str] | None:
        """What was measured of `cell` before by these settings, if it was."""
        row = self.rows.get((cell, scheme))
        return row if row is not None and row["asked"] == self._asked(cell, scheme, settings) else None

    def _asked(self, cell: Cell, scheme: str, settings: dict[str, Any]) -> str:
        return hashlib.sha256(json.dumps(self._arguments(cell, scheme, settings)).encode()).hexdigest()[:16]

    def measure(self, cell: Cell, scheme: str, settings: dict[str, Any]) -> dict[str, str]:
        """Measures what `scheme` does in `cell`, and keeps it.

        Raises
        ------
        CellError
            If no run could be trusted in ``tries``, or the run failed.
        """
        arguments = self._arguments(cell, scheme, settings)
        for left in reversed(range(settings["tries"])):
            try:
                (row,) = self._call(arguments, settings["timeout_s"])
                break
            except Unsupported:
                raise
            except CellError as error:
                print(f"  {cell} {scheme}: {error}{'; again' if left else ''}", file=sys.stderr)
                if not left:
                    raise
        measured = row["measured"]
        found = {
            **dataclasses.asdict(cell),
            "scheme": scheme,
            "aggregate_mbps": round(row["aggregate_mbps"], 3),
            "slowest_mbps": round(row["slowest_mbps"], 3),
            "planned_mbps": round(row["planned_mbps"], 3),
            "planned_flows_mbps": round(row["planned_flows_mbps"], 3),
            "lateness_us_p99": measured["lateness_us_p99"],
            "programs_late_us_p99": measured.get("programs_late_us_p99", ""),
            "link_share_mean": round(measured["link_share_mean"], 3),
            "interactive_received_share": round(measured["interactive_received_share"], 4),
            "stops": sum(len(t["stops"]) for t in row["transfers"]),
            "at": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
            "commit": self.commit,
            "asked": self._asked(cell, scheme, settings),
        }
        text = {key: str(value) for key, value in found.items()}
        with self.lock:
            self.rows[cell, scheme] = text
            if self.kept is not None:
                rows = [self.rows[key] for key in sorted(self.rows)]
                partial = self.kept.with_suffix(".partial")
                write_rates(partial, rows)
                partial.rename(self.kept)
        return text

    def _call(self, arguments: Sequence[str], timeout_s: float) -> list[dict[str, Any]]:
        command = [str(self.binary), "experiment", "codedbulk", *arguments, "--json"]
        # Runs at the same time must not share a folder; the binary removes it in the end.
        command += ["--out", str(self.runs / f"stage-{threading.get_ident()}")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise CellError(f"no answer in {timeout_s} s") from None
        said = done.stderr.strip().splitlines()
        why = said[-1] if said else f"exit code {done.returncode}"
        if done.returncode == UNTRUSTED:
            raise Untrusted(why)
        if done.returncode != 0:
            if any(word in why for word in ("no network to emulate on", "namespace", "/dev/net/tun")):
                raise Unsupported(why)
            raise CellError(why)
        return [json.loads(line) for line in done.stdout.splitlines()]


def commit() -> str:
    """The commit of the working tree, with a mark if it was changed."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


Table = dict[tuple[Point, int, str], float]


def ratios(table: Table, baseline: str, figure: str, topologies: Sequence[str]) -> dict[Point, float]:
    """Coded's mean rate over the baseline's at each point, over the seeds that have both.

    Examples
    --------
    >>> point = Point("figure-8", "b4", 0.1)
    >>> table = {(point, 1, "coded"): 3.0, (point, 1, "steiner"): 2.0, (point, 2, "coded"): 9.0}
    >>> ratios(table, "steiner", "figure-8", ["b4"])[point]
    1.5
    """
    both: dict[Point, list[tuple[float, float]]] = {}
    for (point, seed, scheme), rate in table.items():
        if scheme == "coded" and point.figure == figure and point.topology in topologies:
            other = table.get((point, seed, baseline))
            if other is not None:
                both.setdefault(point, []).append((rate, other))
    return {
        point: statistics.fmean(c for c, _ in pairs) / max(statistics.fmean(o for _, o in pairs), 1e-9)
        for point, pairs in both.items()
    }


def write_rates(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows of equal keys as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["figure"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def expected(plan: dict[str, Any], whole: Table, flows: Table, measured: Table) -> list[dict[str, str]]:
    """The published ratios beside ours, planned and measured."""
    rows = []
    for figure, by_topology in plan["published"].items():
        for name, of_baseline in by_topology.items():
            topologies = ["internet2", "b4"] if name == "both" else [name]
            for baseline, (low, high, *wording) in of_baseline.items():
                kinds = [
                    ("measured", measured, baseline),
                    ("planned, plans share", whole, baseline),
                    ("planned, flows share", flows, baseline),
                ]
                if baseline == "steiner":
                    kinds.append(("planned, flows share, one tree", flows, "steiner_one_tree"))
                    kinds.append(("measured, one tree", measured, "steiner_one_tree"))
                for kind, table, scheme in kinds:
                    ours = ratios(table, scheme, figure, topologies)
                    least, most = min(ours.values(), default=0.0), max(ours.values(), default=0.0)
                    fits = bool(ours) and least >= low * (1 - TOLERANCE) and most <= high * (1 + TOLERANCE)
                    count = len(ours)
                    reading = f"; {low} is our reading, as no least is published" if wording else ""
                    rows.append(
                        {
                            "claim": plan["claim"],
                            "metric": f"{figure} {name} coded/{baseline} ({kind})",
                            "published": wording[0] if wording else f"{low}-{high}",
                            "ours": f"{least:.2f}-{most:.2f}" if ours else "not run",
                            "tolerance": f"{TOLERANCE:.0%} beyond the range",
                            "ok": ("yes" if fits else "no") if ours else "-",
                            "note": f"range over {count} point{'s' if count != 1 else ''}, each the mean of its seeds{reading}",
                        }
                    )
    # A cell may be a point of several figures; each of its runs counts once.
    figures = {figure["name"]: figure for figure in plan["figure"]}
    runs = {
        (point.cell(figures[point.figure], seed), scheme): rate / flows[point, seed, scheme]
        for (point, seed, scheme), rate in measured.items()
        if flows.get((point, seed, scheme))
    }
    together = list(runs.values())
    if together:
        rows.append(
            {
                "claim": plan["claim"],
                "metric": "measured / planned (flows share)",
                "published": "-",
                "ours": f"{min(together):.2f}-{max(together):.2f}, mean {statistics.fmean(together):.2f}",
                "tolerance": "-",
                "ok": "-",
                "note": f"{len(together)} runs, all schemes",
            }
        )
    return rows


def draw(plan: dict[str, Any], whole: Table, flows: Table, measured: Table) -> None:
    """Draws coded's ratio to each baseline, ours beside the published range, one picture for each figure."""
    try:
        from anabranch_lab import figures as lab_figures
    except ImportError:
        print("no figures: they take the lab's environment (pip install ./python)", file=sys.stderr)
        return
    for figure in plan["figure"]:

        def make(theme: str, figure: dict[str, Any] = figure) -> Any:
            look = lab_figures.THEMES[theme]
            canvas, grid = lab_figures.panels(theme, 2, len(BASELINES), size=(10.8, 6.6))
            published = plan["published"][figure["name"]]
            for row, topology in zip(grid, ("internet2", "b4"), strict=True):
                for axes, baseline in zip(row, BASELINES, strict=True):
                    low, high = published.get(topology, published.get("both"))[baseline][:2]
                    axes.axhspan(low, high, color=look.grid, label="published")
                    axes.axhline(1, color=look.dim, linewidth=0.8)
                    looks = [
                        ("planned, plans share links", whole, ":", baseline, 0),
                        ("planned, flows share links", flows, "--", baseline, 0),
                        ("measured, one draw", measured, "o", baseline, 0),
                    ]
                    if baseline == "steiner":
                        one = "steiner_one_tree"
                        looks.append(("planned, flows share links, one tree", flows, "--", one, 1))
                        looks.append(("measured, one draw, one tree", measured, "s", one, 1))
                    for label, table, line, scheme, colour in looks:
                        ours = sorted(
                            (p.value, r) for p, r in ratios(table, scheme, figure["name"], [topology]).items()
                        )
                        if ours:
                            axes.plot(*zip(*ours, strict=True), line, color=look.lines[colour], label=label, markersize=4)
                    name = "steiner packing" if baseline == "steiner" else baseline
                    lab_figures.name_axes(axes, theme, title=f"{topology}: coded / {name}", x=AXES[figure["vary"]])
                    axes.set_ylim(bottom=0)
                    if figure["vary"] != "load":
                        axes.xaxis.get_major_locator().set_params(integer=True)
                row[0].set_ylabel("ratio of rates", color=look.ink)
            lab_figures.add_legend(canvas, theme, columns=3)
            return canvas

        for path in lab_figures.save_themed(make, HERE, figure["name"], {}):
            if path.suffix == ".png":
                path.unlink()


def predicted_tables(plan: dict[str, Any]) -> tuple[Table, Table]:
    """What ``predict_all`` gave, from ``predicted.csv``."""
    figures = {figure["name"]: figure for figure in plan["figure"]}
    whole: Table = {}
    flows: Table = {}
    with (HERE / "predicted.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            value = float(row[figures[row["figure"]]["vary"]])
            key = (Point(row["figure"], row["topology"], value), int(row["seed"]), row["scheme"])
            whole[key], flows[key] = float(row["planned_mbps"]), float(row["planned_flows_mbps"])
    return whole, flows


def predict_all(lab: Lab, plan: dict[str, Any]) -> tuple[Table, Table]:
    """Plans every cell of every figure; writes ``predicted.csv``."""
    whole: Table = {}
    flows: Table = {}
    rows, seen = [], {}
    for point, figure in points(plan, sample=False):
        for seed in plan["settings"]["seeds"]:
            cell = point.cell(figure, seed)
            if cell not in seen:
                seen[cell] = lab.predict(cell, plan["settings"])
            for scheme, row in seen[cell].items():
                key = (point, seed, scheme)
                whole[key], flows[key] = row["planned_mbps"], row["planned_flows_mbps"]
                coding = sum(t["coding_flows"] > 0 for t in row["transfers"])
                rows.append(
                    {
                        "figure": point.figure,
                        **dataclasses.asdict(cell),
                        "scheme": scheme,
                        "planned_mbps": round(whole[key], 4),
                        "planned_flows_mbps": round(flows[key], 4),
                        "transfers_that_code": coding,
                    }
                )
    write_rates(HERE / "predicted.csv", rows)
    return whole, flows


def measure_all(lab: Lab, plan: dict[str, Any], asked: set[Cell], budget_s: float, jobs: int) -> None:
    """Measures by every scheme those cells of `asked` that are not known, `jobs` runs at a time, the first seeds first."""
    settings = plan["settings"]
    wanted = [(cell, scheme) for cell in sorted(asked, key=lambda c: (c.seed, c)) for scheme in settings["schemes"]]
    missing = [(cell, scheme) for cell, scheme in wanted if lab.known(cell, scheme, settings) is None]
    began = time.monotonic()
    done, failed, late = len(wanted) - len(missing), 0, 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:

        def run(cell: Cell, scheme: str) -> dict[str, str] | None:
            if time.monotonic() - began > budget_s:
                return None
            return lab.measure(cell, scheme, settings)

        running = {pool.submit(run, cell, scheme): (cell, scheme) for cell, scheme in missing}
        for future in concurrent.futures.as_completed(running):
            cell, scheme = running[future]
            try:
                row = future.result()
            except Unsupported:
                pool.shutdown(cancel_futures=True)
                raise
            except CellError as error:
                failed, done = failed + 1, done + 1
                print(f"{done}/{len(wanted)} {cell} {scheme}: no figure: {error}", file=sys.stderr)
                continue
            if row is None:
                late += 1
                continue
            done += 1
            rates = f"{float(row['aggregate_mbps']):.2f} Mbit/s (planned {float(row['planned_flows_mbps']):.2f})"
            print(f"{done}/{len(wanted)} {cell} {scheme}: {rates}", file=sys.stderr)
    if late:
        print(f"time is up, {late} runs of {len(wanted)} not begun; run again to go on", file=sys.stderr)
    if failed:
        print(f"{failed} runs gave no figure", file=sys.stderr)


def measured_table(lab: Lab, plan: dict[str, Any]) -> Table:
    """All that is known of the figures' points."""
    table: Table = {}
    settings = plan["settings"]
    for point, figure in points(plan, sample=False):
        for seed in settings["seeds"]:
            for scheme in settings["schemes"]:
                known = lab.known(point.cell(figure, seed), scheme, settings)
                if known is not None:
                    table[point, seed, scheme] = float(known["aggregate_mbps"])
    return table


def cells(plan: dict[str, Any], sample: bool) -> set[Cell]:
    """The cells of all figures' points, or of the sample's only."""
    seeds = (plan["sample"] if sample else plan["settings"])["seeds"]
    return {point.cell(figure, seed) for point, figure in points(plan, sample) for seed in seeds}


def smoke(lab: Lab, plan: dict[str, Any]) -> int:
    """One cell with bounds; the exit code."""
    check = plan["smoke"]
    settings = {**plan["settings"], "warm_up_s": check["warm_up_s"], "window_s": check["window_s"], "tries": 1}
    cell = Cell(check["topology"], check["concurrent"], check["destinations"], check["load"], check["seed"])
    broken, rates = 0, []
    for scheme in check["schemes"]:
        try:
            (row,) = lab._call(lab._arguments(cell, scheme, settings), settings["timeout_s"])
        except (Unsupported, Untrusted) as error:
            print(f"{plan['claim']}: skipped: 1 ({scheme}: {error})")
            return 0
        except CellError as error:
            print(f"{plan['claim']}: FAILED ({scheme}: {error})")
            return 1
        rates.append(row["aggregate_mbps"])
        share = row["aggregate_mbps"] / row["planned_flows_mbps"]
        fine = check["of_predicted_min"] <= share <= check["of_predicted_max"]
        broken += not fine
        print(
            f"{plan['claim']}: {scheme} {row['aggregate_mbps']:.2f} Mbit/s, {share:.2f} of what is planned"
            f" ({check['of_predicted_min']} to {check['of_predicted_max']}): {'ok' if fine else 'BROKEN'}"
        )
    ratio = rates[0] / max(rates[1], 1e-9)
    broken += ratio < check["ratio_min"]
    verdict = "ok" if ratio >= check["ratio_min"] else "BROKEN"
    print(f"{plan['claim']}: {' / '.join(check['schemes'])} {ratio:.2f} (at least {check['ratio_min']}): {verdict}")
    return 1 if broken else 0


def main() -> int:
    """Reads the command line and runs what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--full", action="store_true", help="plan and measure every cell")
    what.add_argument("--sample", action="store_true", help="plan every cell, measure the sample")
    what.add_argument("--predict", action="store_true", help="plan every cell, measure nothing new")
    what.add_argument("--draw", action="store_true", help="only the figures and expected.csv, from the rows that are there")
    what.add_argument("--smoke", action="store_true", help="the bounded check of make test")
    parser.add_argument("--budget", type=float, default=float("inf"), help="start no cell after so many seconds")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/anabranch")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time; each takes 0.3 to 0.6 of a core")
    parser.add_argument("--runs", type=pathlib.Path, default=ROOT / "runs/codedbulk-throughput")
    args = parser.parse_args()
    plan = tomllib.loads((HERE / "plan.toml").read_text())
    if not args.draw and not args.binary.exists():
        print(f"no {args.binary}: cargo build --release -p anabranch-cli", file=sys.stderr)
        return 2
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: at least 1")
    if args.smoke:
        return smoke(Lab(args.binary, args.runs), plan)
    lab = Lab(args.binary, args.runs, HERE / "measured.csv")
    whole, flows = predicted_tables(plan) if args.draw else predict_all(lab, plan)
    if not (args.predict or args.draw):
        try:
            measure_all(lab, plan, cells(plan, args.sample), args.budget, args.jobs)
        except Unsupported as error:
            print(f"measured nothing: {error}", file=sys.stderr)
            return 1
    measured = measured_table(lab, plan)
    rows = expected(plan, whole, flows, measured)
    write_rates(HERE / "expected.csv", rows)
    draw(plan, whole, flows, measured)
    for row in rows:
        print(f"{row['metric']:62} {row['published']:>9}  {row['ours']:>12}  {row['ok']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
