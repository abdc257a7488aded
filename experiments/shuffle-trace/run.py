"""The coflow benchmark's recorded hour under every scheduler, at several loads, beside what no scheduler is below.

``run.py TRACE`` replays it, writes ``measured.csv`` and draws the figures; ``--draw`` draws them from ``measured.csv`` alone.
``--smoke`` replays a short made-up trace, writes nothing and checks what must hold of any: nobody is below the bound, and the
order of those whose order is known. ``--decide XTASK`` measures what a decision takes by ``xtask bench decide``, writes
``decide.csv`` and draws that. Needs the lab's environment (python/test.sh makes it) and a binary. Exit code 1 if
something does not hold, 2 on wrong usage.
"""

from __future__ import annotations

import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MEASURED = HERE / "measured.csv"
DECIDED = HERE / "decide.csv"
#: How many times faster coflows arrive than in the recorded hour.
LOADS = (1, 2, 4)
ABLATION = ("chase+without-order", "chase+without-chase", "chase+without-due")
SCHEDULERS = (
    *("chase+", "varys", "sincronia", "srf", "wss", "aalo", "max-min", "chase-total", "chase", "fifo"),
    *ABLATION,
)

Row = dict[str, Any]


def replay(binary: str, trace: pathlib.Path, faster: int, bound: str, schedulers: tuple[str, ...]) -> list[Row]:
    """One object for each scheduler, as the command prints them."""
    chosen = [word for name in schedulers for word in ("--allocator", name)]
    command = [binary, "shuffle", "replay", str(trace), "--faster", str(faster), "--bound", bound, "--json", *chosen]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [{"faster": faster, **json.loads(line)} for line in done.stdout.splitlines()]


def violations(rows: list[Row]) -> list[str]:
    """What does not hold of these and must."""
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


def canvas_of(look: Any) -> tuple[Any, Any]:
    """A figure and its axes, on a background."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(7.2, 4.6), dpi=150, facecolor=look.paper, layout="constrained")
    axes = canvas.add_subplot(facecolor=look.paper)
    axes.grid(color=look.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=look.ink, length=0, which="both")
    for spine in axes.spines.values():
        spine.set_visible(False)
    return canvas, axes


def finish(canvas: Any, look: Any, name: str, theme: str) -> None:
    """The legend, and the files."""
    from anabranch_lab.figures import save

    legend = canvas.legend(loc="outside lower left", ncols=2, fontsize=8.5, frameon=False)
    for text in legend.get_texts():
        text.set_color(look.ink)
    for end in ("svg", "png"):
        save(canvas, HERE / f"{name}{'' if theme == 'light' else '-dark'}.{end}", {})


def draw(rows: list[Row]) -> None:
    """How far each scheduler is above the bound, at each load."""
    import matplotlib as mpl
    from anabranch_lab.figures import THEMES

    names = [name for name in SCHEDULERS if name not in ABLATION]
    for theme, look in THEMES.items():
        with mpl.rc_context({"font.family": "sans-serif", "font.size": 10}):
            canvas, axes = canvas_of(look)
            loads = sorted({int(row["faster"]) for row in rows})
            for faster, colour, marker in zip(loads, look.lines, "oDsv^", strict=False):
                above = {row["allocator"]: row["above_bound_share"] for row in rows if int(row["faster"]) == faster}
                percent = [100 * float(above[name]) for name in names]
                label = "as recorded" if faster == 1 else f"arrivals {faster} times faster"
                axes.plot(percent, range(len(names)), marker, color=colour, label=label, markersize=7)
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} %")
            axes.set_yticks(range(len(names)), names)
            axes.invert_yaxis()
            axes.set_xlabel("mean completion time above a proven lower bound (logarithmic)", color=look.ink)
            axes.set_title(
                "526 coflows of 706,397 flows on 150 ports",
                color=look.ink,
                loc="left",
                fontsize=11,
                fontweight="bold",
            )
            finish(canvas, look, "above-bound", theme)


def draw_decide(rows: list[Row]) -> None:
    """What a decision takes, as flows grow in number."""
    import matplotlib as mpl
    from anabranch_lab.figures import THEMES

    for theme, look in THEMES.items():
        with mpl.rc_context({"font.family": "sans-serif", "font.size": 10}):
            canvas, axes = canvas_of(look)
            for rule, colour in zip(("chase", "chase+"), look.lines, strict=False):
                points = sorted((int(row["flows"]), float(row["arrival_ms"])) for row in rows if row["rule"] == rule)
                axes.plot(
                    *zip(*points, strict=True),
                    marker="o",
                    color=colour,
                    label=f"{rule}: all rates anew, as a flow arrives",
                )
            flows, ms = points[0]
            line = [(at, ms * at / flows) for at, _ in points]
            axes.plot(*zip(*line, strict=True), color=look.dim, linestyle=":", label="in proportion to flows")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("flows, in coflows of 100 (logarithmic)", color=look.ink)
            axes.set_ylabel("ms of one processor (logarithmic)", color=look.ink)
            axes.set_title("What a decision takes", color=look.ink, loc="left", fontsize=11, fontweight="bold")
            finish(canvas, look, "decide", theme)


def write(path: pathlib.Path, rows: list[Row]) -> None:
    """A table as CSV."""
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def read(path: pathlib.Path) -> list[Row]:
    """The same, as text."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> int:
    """Measure, check, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=pathlib.Path, help="FB2010-1Hr-150-0.txt of the coflow benchmark")
    parser.add_argument("--binary", default=str(ROOT / "target/release/anabranch"))
    parser.add_argument("--draw", action="store_true", help="only the figures, from what was measured")
    parser.add_argument("--decide", metavar="XTASK", help="only what a decision takes, by this xtask")
    parser.add_argument("--smoke", action="store_true", help="a short made-up trace; nothing is written")
    parser.add_argument("--loads", type=int, nargs="+", default=LOADS, help="how many times faster coflows arrive")
    args = parser.parse_args()
    if args.draw:
        draw(read(MEASURED))
        draw_decide(read(DECIDED))
        return 0
    if args.decide:
        done = subprocess.run([args.decide, "bench", "decide", "--json"], check=True, stdout=subprocess.PIPE, text=True)
        write(DECIDED, [json.loads(line) for line in done.stdout.splitlines()])
        draw_decide(read(DECIDED))
        return 0
    if args.smoke:
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "trace.txt"
            made = subprocess.run([args.binary, "shuffle", "trace", "--coflows", "60"], check=True, capture_output=True)
            trace.write_bytes(made.stdout)
            rows = replay(args.binary, trace, 4, "quick", SCHEDULERS)
    elif args.trace is None:
        parser.error("which trace: FB2010-1Hr-150-0.txt of github.com/coflow/coflow-benchmark, or --smoke or --draw")
    else:
        rows = []
        for load in args.loads:
            rows += replay(args.binary, args.trace, load, "long" if load == 1 else "usual", SCHEDULERS)
            # Each load takes minutes: what is measured stays.
            write(MEASURED, rows)
        draw(rows)
    wrong = [
        line
        for load in sorted({row["faster"] for row in rows})
        for line in violations([r for r in rows if r["faster"] == load])
    ]
    for line in wrong:
        print(f"does not hold: {line}", file=sys.stderr)
    print(f"shuffle-trace: {len(rows)} replays, {len(wrong)} of what must hold does not")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
