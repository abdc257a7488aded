"""The coflow benchmark's recorded hour under every scheduler, at several loads, compared with a
lower bound for all schedulers.

``run.py all TRACE`` replays the trace, writes ``measured.csv`` and draws the figures; ``draw`` only
draws the figures, from ``measured.csv``. ``smoke`` replays a short synthetic trace, writes nothing and checks
properties of every trace: no scheduler is below the bound, and schedulers with a known order are in
that order. ``decide`` measures the time of a decision by ``xtask bench decide``, writes
``decide.csv`` and draws its figure. All verbs but ``smoke`` need the lab's environment (python/test.sh
makes it). Exit code 1 if a property does not hold, 2 on wrong usage.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, XTASK, Experiment, Option, Row, filled, grouped, read_csv, table, write_csv
from anabranch_lab.programs import json_lines

LAB = Experiment(__file__, __doc__)
MEASURED, DECIDED = LAB.folder / "measured.csv", LAB.folder / "decide.csv"
#: Factors by which coflows arrive faster than in the recorded hour.
LOADS = (1, 2, 4)
ABLATION = ("chase+without-order", "chase+without-chase", "chase+without-due")
SCHEDULERS = (
    *("chase+", "varys", "sincronia", "srf", "wss", "aalo", "max-min", "chase-total", "chase", "fifo"),
    *ABLATION,
)
#: Size of a figure in inches.
SIZE = (7.2, 4.6)


def replay(binary: Path, trace: Path, faster: int, bound: str) -> list[Row]:
    """Run the command, and return one row for each scheduler."""
    chosen = [word for name in SCHEDULERS for word in ("--allocator", name)]
    command = [binary, "shuffle", "replay", trace, "--faster", faster, "--bound", bound, "--json", *chosen]
    return [{"faster": faster, **row} for row in json_lines(command)]


def violations(rows: list[Row]) -> list[str]:
    """Return the properties that the rows violate."""
    wrong = []
    mean_s = {row["allocator"]: row["mean_s"] for row in rows}
    for row in rows:
        if row["mean_s"] < row["bound_mean_s"]:
            wrong.append(f"{row['allocator']}: {row['mean_s']} s is below the bound of {row['bound_mean_s']} s")
        if row["slowdown_max_share"] < 1 - 1e-9:
            wrong.append(f"{row['allocator']}: a coflow is faster than alone")
    for better, worse in (("chase+", "varys"), ("varys", "max-min")):
        if mean_s[better] > mean_s[worse] * (1 + 1e-3):
            wrong.append(f"{better}: {mean_s[better]} s, {worse}: {mean_s[worse]} s")
    return wrong


def draw_rows(rows: list[Row]) -> None:
    """Draw the distance of each scheduler from the bound, at each load."""
    from anabranch_lab.figures import THEMES, add_legend, name_axes, panels, save_themed

    names = [name for name in SCHEDULERS if name not in ABLATION]
    loads = grouped(sorted(rows, key=lambda row: int(row["faster"])), "faster")

    def make(theme: str) -> Any:
        look = THEMES[theme]
        canvas, [[axes]] = panels(theme, size=SIZE)
        for ((faster,), those), colour, marker in zip(loads.items(), look.lines, "oDsv^", strict=False):
            above = {row["allocator"]: row["above_bound_share"] for row in those}
            label = "as recorded" if int(faster) == 1 else f"arrivals {faster} times faster"
            percent = [100 * float(above[name]) for name in names]
            axes.plot(percent, range(len(names)), marker, color=colour, label=label, markersize=7)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.tick_params(colors=look.ink, which="both")
        x = "mean completion time above a proven lower bound (logarithmic)"
        name_axes(axes, theme, title="526 coflows of 706,397 flows on 150 ports", x=x)
        add_legend(canvas, theme)
        return canvas

    save_themed(make, LAB.folder, "above-bound", {})


def draw_decide(rows: list[Row]) -> None:
    """Draw the time of a decision over the number of flows."""
    from anabranch_lab.figures import THEMES, add_legend, name_axes, panels, save_themed

    def make(theme: str) -> Any:
        look = THEMES[theme]
        canvas, [[axes]] = panels(theme, size=SIZE)
        for rule, colour in zip(("chase", "chase+"), look.lines, strict=False):
            points = sorted((int(row["flows"]), float(row["arrival_ms"])) for row in rows if row["rule"] == rule)
            label = f"{rule}: all rates anew, as a flow arrives"
            axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=label)
        flows, ms = points[0]
        line = [(at, ms * at / flows) for at, _ in points]
        axes.plot(*zip(*line, strict=True), color=look.dim, linestyle=":", label="in proportion to flows")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.tick_params(colors=look.ink, which="both", length=0)
        name_axes(axes, theme, title="What a decision takes", x="flows, in coflows of 100 (logarithmic)", y="ms of one processor (logarithmic)")
        add_legend(canvas, theme)
        return canvas

    save_themed(make, LAB.folder, "decide", {})


def check(rows: list[Row]) -> int:
    """Print the violated properties, and return the exit code."""
    wrong = [line for those in grouped(rows, "faster").values() for line in violations(those)]
    for line in wrong:
        print(f"does not hold: {line}", file=sys.stderr)
    print(f"shuffle-trace: {len(rows)} replays, {len(wrong)} of what must hold does not")
    return 1 if wrong else 0


@LAB.verb(
    "all",
    trace=Option(kind=Path, help="FB2010-1Hr-150-0.txt of github.com/coflow/coflow-benchmark", positional=True),
    binary=BINARY,
    loads=Option(LOADS, "how many times faster coflows arrive"),
)
def all_loads(args) -> int:
    """Replays the trace at all loads, writes measured.csv and draws."""
    rows: list[Row] = []
    for load in args.loads:
        rows += replay(args.binary, args.trace, load, "long" if load == 1 else "usual")
        # Each load takes minutes: rows are written after each one.
        write_csv(MEASURED, rows)
    draw_rows(rows)
    return check(rows)


@LAB.verb()
def draw(args) -> None:
    """Draws the figures from the rows."""
    draw_rows(read_csv(MEASURED))
    draw_decide(read_csv(DECIDED))


README = LAB.folder / "README.md"
#: Schedulers of the README's table of faster arrivals.
FASTER = {"fair sharing": "max-min", "`chase-total`": "chase-total", "`chase`": "chase"}
#: Schedulers of the README's table of parts, in its order.
PARTS = ("chase+", "chase+without-order", "chase+without-chase", "chase+without-due", "varys")


def written() -> str:
    """Return the README with the tables of the committed rows."""
    rows = [{key: value if key == "allocator" else float(value) for key, value in row.items()} for row in read_csv(MEASURED)]
    of = {(row["allocator"], row["faster"]): row for row in rows}
    recorded = sorted((row for row in rows if row["faster"] == 1 and "without" not in row["allocator"]), key=lambda row: row["mean_s"])
    lines = [
        [
            *(row["allocator"], f"{row['mean_s']:.2f}", f"{100 * row['above_bound_share']:.1f} %", f"{row['p50_s']:.3f}"),
            *(f"{row['p95_s']:.2f}", f"{row['p99_s']:.1f}", f"{row['slowdown_mean_share']:.3f}", f"{row['slowdown_p99_share']:.2f}"),
            *(f"{row['slowdown_max_share']:.1f}", f"{row['decisions']:,.0f}", f"{row['cpu_s']:.1f}"),
        ]
        for row in recorded
    ]
    head = ["scheduler", "mean s", "above the bound", "median s", "95th s", "99th s", "slowdown, mean", "99th", "max", "decisions", "CPU s"]
    cell = lambda part, faster: f"{of[part, faster]['mean_s']:.2f} ({of[part, faster]['p99_s']:.0f})"
    parts = [[part, *(cell(part, faster) for faster in (1, 2, 4))] for part in PARTS]
    arms = [[name, *(f"{of[arm, faster]['mean_s']:.1f}" for faster in (2, 4))] for name, arm in FASTER.items()]
    blocks = {
        "schedulers": table(head, lines, "lr"),
        "faster": table(["mean, s", "arrivals 2 times faster", "4 times"], arms, "lr"),
        "parts": table(["mean s (99th)", "as recorded", "2 times faster", "4 times faster"], parts, "lr"),
    }
    return filled(README.read_text(), "experiments/shuffle-trace/measured.csv", blocks)


check_tables = LAB.tables_of(README, written)


@LAB.verb(xtask=XTASK)
def decide(args) -> None:
    """Measures the time of a decision, writes decide.csv and draws its figure."""
    write_csv(DECIDED, json_lines([args.xtask, "bench", "decide", "--json"]))
    draw_decide(read_csv(DECIDED))


@LAB.verb(binary=BINARY)
def smoke(args) -> int:
    """Replays a short synthetic trace."""
    check_tables()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.txt"
        made = subprocess.run([args.binary, "shuffle", "trace", "--coflows", "60"], check=True, capture_output=True)
        trace.write_bytes(made.stdout)
        return check(replay(args.binary, trace, 4, "quick"))


if __name__ == "__main__":
    sys.exit(LAB.main())
