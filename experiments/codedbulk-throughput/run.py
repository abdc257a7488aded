"""Throughput of CodedBulk's schemes at a scaled rate, compared with the paper's Figures 8 to 10.

``run.py full`` plans and measures every cell of ``plan.toml`` (hours); ``sample`` measures the
cells of its ``[sample]``; ``predict`` only plans. Each then writes ``predicted.csv``,
``measured.csv``, ``expected.csv`` and, in the lab's environment, the figures; ``draw`` writes only
the last two, from the first two. ``smoke`` is the check of ``make test``: one cell in about a
minute, exit code 1 if a rate exceeds its plan, 0 with the line ``skipped: 1 (reason)`` if it
cannot run or the emulator is not trusted. ``claim`` checks all bounds, for ``make claims``.

``measured.csv`` has a row for each finished run, with its options and the commit of the binary. A
later call continues from it: runs with a row are not measured again. All figures come from
``anabranch experiment codedbulk --json``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import (
    BINARY, ROOT, Experiment, Option, Row, Untrusted, commit, filled, measure, read_csv, until_trusted, write_csv,
    write_expected,
)
from anabranch_lab.cells import table as markdown
from anabranch_lab.programs import Failed, Skipped

LAB = Experiment(__file__, __doc__)
PLAN = tomllib.loads((LAB.folder / "plan.toml").read_text())
BASELINES = ("single_path", "multi_path", "steiner")
#: Axis titles of the varied values.
AXES = {"load": "load, mean share of the links", "concurrent": "transfers at once", "destinations": "destinations each"}
#: Largest distance of a reproduced ratio from the published range, as a share.
TOLERANCE = 0.1
#: Exit code of the binary for an untrusted run.
UNTRUSTED = 6


@dataclasses.dataclass(frozen=True, order=True)
class Cell:
    """One scheme in one random draw of one point of a figure.

    Attributes
    ----------
    topology, concurrent, destinations, load, seed
        Options of ``anabranch experiment codedbulk``.
    """

    topology: str
    concurrent: int
    destinations: int
    load: float
    seed: int

    @classmethod
    def of(cls, row: dict[str, str]) -> Cell:
        """Return the cell of a row of a table."""
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
        Figure and topology of the curve.
    value
        Value of the quantity that the figure varies.
    """

    figure: str
    topology: str
    value: float

    def cell(self, figure: Row, seed: int) -> Cell:
        """The point's cell for `seed`."""
        fixed = {k: figure[k] for k in ("concurrent", "destinations", "load") if k in figure}
        return Cell(topology=self.topology, seed=seed, **{**fixed, figure["vary"]: self.value})


def points(sample: bool = False) -> Iterator[tuple[Point, Row]]:
    """Yield the points of all figures, or only of the sample, each with its figure."""
    for figure in PLAN["figure"]:
        chosen = PLAN["sample"]["points"][figure["name"]] if sample else figure["points"]
        for topology, values in chosen.items():
            for value in values:
                yield Point(figure["name"], topology, value), figure


def call(binary: Path, runs: Path, options: Sequence[object], timeout_s: float) -> list[Row]:
    """Return the rows that the binary prints for some runs.

    Raises
    ------
    Skipped
        This machine cannot emulate networks.
    Untrusted
        The emulator or the sites' programs ran too late for trusted figures.
    Failed
        The binary fails for another reason.
    """
    # Concurrent runs must not share a folder, because the binary removes it at its end.
    command = [binary, "experiment", "codedbulk", *options, "--json", "--out", runs / f"stage-{threading.get_ident()}"]
    runs.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"no answer in {timeout_s} s") from None
    said = done.stderr.strip().splitlines()
    why = said[-1] if said else f"exit code {done.returncode}"
    if done.returncode == UNTRUSTED:
        raise Untrusted(why)
    if done.returncode != 0:
        if any(word in why for word in ("no network to emulate on", "namespace", "/dev/net/tun")):
            raise Skipped(why)
        raise Failed(why)
    return [json.loads(line) for line in done.stdout.splitlines()]


def options_of(cell: Cell, scheme: str, settings: Row) -> list[str]:
    """Return the options of the binary for one run."""
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


def asked(cell: Cell, scheme: str) -> str:
    """Return a hash of all options of a run, settings included."""
    return hashlib.sha256(json.dumps(options_of(cell, scheme, PLAN["settings"])).encode()).hexdigest()[:16]


class Measured:
    """The finished runs, sorted by cell and scheme; a new run replaces one with other options."""

    def __init__(self) -> None:
        self.path = LAB.folder / "measured.csv"
        self.rows = {(Cell.of(row), row["scheme"]): row for row in read_csv(self.path)}

    def known(self, cell: Cell, scheme: str) -> Row | None:
        """Return the row of an earlier run with the same settings, if there is one."""
        row = self.rows.get((cell, scheme))
        return row if row is not None and row["asked"] == asked(cell, scheme) else None

    def missing(self, cells: list[Row]) -> list[Row]:
        """Return the runs that have no row with the current settings."""
        return [cell for cell in cells if self.known(cell["cell"], cell["scheme"]) is None]

    def add(self, row: Row) -> None:
        """Add the row of a run, and write the file."""
        cell, figures = row["cell"], {key: value for key, value in row.items() if key != "cell"}
        self.rows[cell, row["scheme"]] = {key: str(value) for key, value in (dataclasses.asdict(cell) | figures).items()}
        write_csv(self.path, (self.rows[key] for key in sorted(self.rows)))


def measure_once(binary: Path, runs: Path, cell: Cell, scheme: str, at_commit: str) -> Row:
    """Run `scheme` in `cell`, again if a run fails, and return the row of figures."""
    settings = PLAN["settings"]
    options = options_of(cell, scheme, settings)
    (row,) = until_trusted(lambda: call(binary, runs, options, settings["timeout_s"]), settings["tries"], Failed)
    measured = row["measured"]
    return {
        **{column: round(row[column], 3) for column in ("aggregate_mbps", "slowest_mbps", "planned_mbps", "planned_flows_mbps")},
        "lateness_us_p99": measured["lateness_us_p99"],
        "programs_late_us_p99": measured.get("programs_late_us_p99", ""),
        "link_share_mean": round(measured["link_share_mean"], 3),
        "interactive_received_share": round(measured["interactive_received_share"], 4),
        "stops": sum(len(t["stops"]) for t in row["transfers"]),
        "at": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
        "commit": at_commit,
        "asked": asked(cell, scheme),
    }


Table = dict[tuple[Point, int, str], float]


def ratios(table: Table, baseline: str, figure: str, topologies: Sequence[str]) -> dict[Point, float]:
    """Return coded's mean rate over the baseline's at each point, over the seeds that have both.

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


def expected(whole: Table, flows: Table, measured: Table) -> list[Row]:
    """Return the published ratios with our planned and our measured ratios."""
    rows = []
    for figure, by_topology in PLAN["published"].items():
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
                            "claim": PLAN["claim"],
                            "metric": f"{figure} {name} coded/{baseline} ({kind})",
                            "published": wording[0] if wording else f"{low}-{high}",
                            "ours": f"{least:.2f}-{most:.2f}" if ours else "not run",
                            "tolerance": f"{TOLERANCE:.0%} beyond the range",
                            "ok": ("yes" if fits else "no") if ours else "-",
                            "note": f"range over {count} point{'s' if count != 1 else ''}, each the mean of its seeds{reading}",
                        }
                    )
    # A cell may be a point of several figures; each of its runs counts once.
    figures = {figure["name"]: figure for figure in PLAN["figure"]}
    runs = {
        (point.cell(figures[point.figure], seed), scheme): rate / flows[point, seed, scheme]
        for (point, seed, scheme), rate in measured.items()
        if flows.get((point, seed, scheme))
    }
    together = list(runs.values())
    if together:
        rows.append(
            {
                "claim": PLAN["claim"],
                "metric": "measured / planned (flows share)",
                "published": "-",
                "ours": f"{min(together):.2f}-{max(together):.2f}, mean {statistics.fmean(together):.2f}",
                "tolerance": "-",
                "ok": "-",
                "note": f"{len(together)} runs, all schemes",
            }
        )
    return rows


def draw_figures(whole: Table, flows: Table, measured: Table) -> None:
    """Draw coded's ratio to each baseline, our value and the published range, one picture for each
    figure."""
    try:
        from anabranch_lab import figures as lab_figures
    except ImportError:
        print("no figures: they take the lab's environment (pip install ./python)", file=sys.stderr)
        return
    for figure in PLAN["figure"]:

        def make(theme: str, figure: Row = figure) -> Any:
            look = lab_figures.THEMES[theme]
            canvas, grid = lab_figures.panels(theme, 2, len(BASELINES), size=(10.8, 6.6))
            published = PLAN["published"][figure["name"]]
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

        lab_figures.save_themed(make, LAB.folder, figure["name"], {}, ["svg"])


def predicted_tables() -> tuple[Table, Table]:
    """Read the result of ``predict_all`` from ``predicted.csv``."""
    varied = {figure["name"]: figure["vary"] for figure in PLAN["figure"]}
    whole: Table = {}
    flows: Table = {}
    for row in read_csv(LAB.folder / "predicted.csv"):
        key = (Point(row["figure"], row["topology"], float(row[varied[row["figure"]]])), int(row["seed"]), row["scheme"])
        whole[key], flows[key] = float(row["planned_mbps"]), float(row["planned_flows_mbps"])
    return whole, flows


def predict_all(args) -> None:
    """Plan every cell of every figure, and write ``predicted.csv``."""
    settings = PLAN["settings"]
    options = ["--rate", settings["rate"], "--schemes", ",".join(settings["predicted"]), "--predict"]
    rows: list[Row] = []
    seen: dict[Cell, list[Row]] = {}
    for point, figure in points():
        for seed in settings["seeds"]:
            cell = point.cell(figure, seed)
            if cell not in seen:
                seen[cell] = call(args.binary, args.runs, [*cell.arguments(), *options], 120)
            for row in seen[cell]:
                planned = {column: round(row[column], 4) for column in ("planned_mbps", "planned_flows_mbps")}
                coding = sum(t["coding_flows"] > 0 for t in row["transfers"])
                of = {"figure": point.figure, **dataclasses.asdict(cell), "scheme": row["scheme"]}
                rows.append(of | planned | {"transfers_that_code": coding})
    write_csv(LAB.folder / "predicted.csv", rows)


def measure_all(args, kept: Measured, is_sample: bool) -> int:
    """Run every scheme in all cells without a row, the first seeds first; return the exit code."""
    seeds = (PLAN["sample"] if is_sample else PLAN["settings"])["seeds"]
    cells = sorted({point.cell(figure, seed) for point, figure in points(is_sample) for seed in seeds}, key=lambda cell: (cell.seed, cell))
    began = time.monotonic()

    def is_over() -> bool:
        return time.monotonic() - began > args.budget

    # The last run ends hours later, and the working tree may change until then.
    at_commit = commit(dirty=True) or "unknown"

    def run(one: Row) -> Row | None:
        return None if is_over() else measure_once(args.binary, args.runs, one["cell"], one["scheme"], at_commit)

    def show(rows: list[Row]) -> str:
        row = kept.rows[rows[0]["cell"], rows[0]["scheme"]]
        return f"{rows[0]['cell']} {row['scheme']}: {row['aggregate_mbps']} Mbit/s (planned {row['planned_flows_mbps']})"

    wanted = [{"cell": cell, "scheme": scheme} for cell in cells for scheme in PLAN["settings"]["schemes"]]
    code = measure(kept, wanted, run, args.jobs, show)
    if is_over():
        print(f"time is up: {len(kept.missing(wanted))} runs of {len(wanted)} have no row; run again to go on", file=sys.stderr)
    return code


def measured_table(kept: Measured) -> Table:
    """Return the rate of each finished run."""
    settings = PLAN["settings"]
    measured: Table = {}
    for (point, figure), seed, scheme in itertools.product(points(), settings["seeds"], settings["schemes"]):
        if row := kept.known(point.cell(figure, seed), scheme):
            measured[point, seed, scheme] = float(row["aggregate_mbps"])
    return measured


FULL_RATE = ROOT / "experiments/codedbulk-full-rate"
NAMES = {"b4": "B4", "internet2": "Internet2", "both": "both", "steiner_one_tree": "one tree"}


def published(figure: str, topology: str, baseline: str) -> str:
    """Return the paper's range of ratios to a baseline."""
    of_figure = PLAN["published"][figure]
    low, high, *wording = of_figure.get(topology, of_figure.get("both"))["steiner" if baseline == "steiner_one_tree" else baseline]
    return wording[0] if wording else f"{low}-{high}" if low < high else str(low)


def ratios_written() -> str:
    """Return the README with its table of ratios."""
    ours = {row["metric"]: row["ours"] for row in read_csv(LAB.folder / "expected.csv")}
    lines = []
    for figure, by_topology in PLAN["published"].items():
        for topology, baseline in itertools.product(by_topology, ("single_path", "multi_path", "steiner", "steiner_one_tree")):
            one_tree, name = (", one tree", "steiner") if baseline == "steiner_one_tree" else ("", baseline)
            of = f"{figure} {topology} coded/{name}"
            kinds = (f"planned, plans share{one_tree}", f"planned, flows share{one_tree}", f"measured{one_tree}")
            head = ["", ""] if one_tree else [figure.removeprefix("figure-"), NAMES[topology]]
            cells = [ours.get(f"{of} ({kind})", "") for kind in kinds]
            lines.append([*head, NAMES.get(baseline, baseline), published(figure, topology, baseline), *cells])
    head = ["figure", "topology", "to", "published", "planned, plans share", "planned, flows share", "measured"]
    blocks = {"ratios": markdown(head, lines)}
    return filled((LAB.folder / "README.md").read_text(), "experiments/codedbulk-throughput/expected.csv", blocks)


def full_rate_written() -> str:
    """Return the README of codedbulk-full-rate with its table of ratios, and with the ratios emulated here."""
    ours = {row["metric"]: row["ours"] for row in read_csv(FULL_RATE / "expected.csv")}
    emulated = measured_table(Measured())
    lines = []
    schemes = ("single_path", "multi_path", "steiner", "steiner_one_tree")
    for figure, topology, baseline in itertools.product(PLAN["published"], ("b4", "internet2"), schemes):
        of = f"{figure}.{topology}.coded_over_{baseline}"
        here = "-".join(f"{float(ours[f'{of}.{end}_ratio']):.2f}" for end in ("min", "max"))
        found = ratios(emulated, baseline, figure, [topology]).values()
        name = figure.removeprefix("figure-")
        cells = [published(figure, topology, baseline), here, f"{min(found):.2f}-{max(found):.2f}"]
        lines.append([name, NAMES[topology], NAMES.get(baseline, baseline), *cells])
    blocks = {"ratios": markdown(["figure", "topology", "to", "published", "here", "emulated at 5 Mbit/s"], lines)}
    source = "experiments/codedbulk-full-rate/expected.csv"
    return filled((FULL_RATE / "README.md").read_text(), source, blocks)


check_tables = LAB.tables_of(LAB.folder / "README.md", ratios_written)
LAB.tables_of(FULL_RATE / "README.md", full_rate_written)


def conclude(kept: Measured) -> None:
    """Write expected.csv, draw the figures, and compare our ratios with the published ones, from the
    existing rows."""
    whole, flows = predicted_tables()
    measured = measured_table(kept)
    rows = expected(whole, flows, measured)
    write_expected(LAB.folder, rows)
    draw_figures(whole, flows, measured)
    for row in rows:
        print(f"{row['metric']:62} {row['published']:>9}  {row['ours']:>12}  {row['ok']}")


RUNS = {"binary": BINARY, "runs": LAB.runs}
MEASURE = {
    **RUNS,
    "budget": Option(float("inf"), "start no cell after so many seconds"),
    "jobs": Option(1, "runs at the same time; each takes 0.3 to 0.6 of a core"),
}


@LAB.verb("full", "sample", **MEASURE)
@LAB.verb("predict", **RUNS)
def plan_and_measure(args) -> int:
    """Plans every cell; then `full` measures every cell, `sample` some, `predict` none."""
    kept = Measured()
    predict_all(args)
    code = 0 if args.verb == "predict" else measure_all(args, kept, args.verb == "sample")
    conclude(kept)
    return code


@LAB.verb()
def draw(args) -> None:
    """Writes only the figures and expected.csv, from the existing rows."""
    conclude(Measured())


@LAB.verb(**RUNS)
def smoke(args) -> int:
    """Runs one cell, for make test, and checks the tables of the READMEs. The rates are bounded from
    above by the plan; `claim` bounds them from below."""
    check_tables()
    return measure_cell(args, is_claim=False)


@LAB.verb(**RUNS)
def claim(args) -> int:
    """Runs the cell of `smoke` with all bounds, on an idle machine."""
    return measure_cell(args, is_claim=True)


def measure_cell(args, is_claim: bool) -> int:
    """Measure the cell of the plan's `smoke`; return 1 if it breaks a bound."""
    check = PLAN["smoke"]
    settings = {**PLAN["settings"], "warm_up_s": check["warm_up_s"], "window_s": check["window_s"]}
    cell = Cell(check["topology"], check["concurrent"], check["destinations"], check["load"], check["seed"])
    broken, rates = 0, []
    for scheme in check["schemes"]:
        try:
            (row,) = call(args.binary, args.runs, options_of(cell, scheme, settings), settings["timeout_s"])
        except (Skipped, Untrusted) as error:
            raise Skipped(f"{scheme}: {error}") from None
        rates.append(row["aggregate_mbps"])
        share = row["aggregate_mbps"] / row["planned_flows_mbps"]
        least = check["of_predicted_min"] if is_claim else 0
        fine = 0 < share and least <= share <= check["of_predicted_max"]
        broken += not fine
        bounds = f"({least} to {check['of_predicted_max']}): {'ok' if fine else 'BROKEN'}"
        print(f"{LAB.name}: {scheme} {row['aggregate_mbps']:.2f} Mbit/s, {share:.2f} of what is planned {bounds}")
    ratio = rates[0] / max(rates[1], 1e-9)
    if not is_claim:
        return 1 if broken else 0
    broken += ratio < check["ratio_min"]
    verdict = "ok" if ratio >= check["ratio_min"] else "BROKEN"
    print(f"{LAB.name}: {' / '.join(check['schemes'])} {ratio:.2f} (at least {check['ratio_min']}): {verdict}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(LAB.main())
