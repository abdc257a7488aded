"""Measured examples of docs/recipes.md, from the committed rows of other experiments.

``run.py docs`` writes the tables of docs/recipes.md again. ``run.py smoke`` checks them, and asks
the command for each mechanism.

Read first: `document`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "circuit"))
import tcp
from anabranch_lab.cells import BINARY, ROOT, Experiment, Row, filled, grouped, numbers, read_csv, table
from anabranch_lab.programs import Failed

LAB = Experiment(__file__, __doc__)
DOCUMENT = ROOT / "docs/recipes.md"
#: Mechanism of each pair of features that the command is asked for, as ``--sharing`` and ``--resources``.
ASKED = {
    ("none", "full"): "reaction",
    ("complete", "disjoint"): "transparency",
    ("incomplete", "disjoint"): "priority ranking",
    ("incomplete", "full"): "hierarchical partitioning",
    ("incomplete", "partial"): "not covered",
}


def measured(name: str) -> list[Row]:
    """Return committed rows of an experiment, as ``circuit/tcp``."""
    folder, file = name.split("/")
    rows = read_csv(ROOT / "experiments" / folder / "measured" / f"{file}.csv")
    if not rows:
        raise Failed(f"experiments/{name}: no rows")
    return rows


def mean_and_range(values: Iterable[float], digits: int = 0) -> str:
    """Return the mean of some values with their range."""
    values = list(values)
    return f"{statistics.fmean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def circuits() -> list[Row]:
    """Return runs of NewReno in the thesis's setting: `queue_packets`, as ``16 to 128`` if the
    queue grows, and `ahead_us`."""
    setting = {"racks": "8", "delay_us": "30", "control": "newreno", "drops": "", "mark_us": "", "also": ""}
    rows = [row for row in measured("circuit/tcp") if all(row[key] == value for key, value in setting.items())]
    sizes = [f"{row['queue']} to {row['resize']}" if row["resize"] else row["queue"] for row in rows]
    return [row | {"queue_packets": size} for row, size in zip(rows, sizes, strict=True) if row["night_us"] == "20"]


def transparency(rows: Sequence[Row]) -> str:
    """Return the use of circuits by TCP with queues that ignore the schedule, and with queues that know the next day."""

    def use(queue: str, ahead: str = "") -> float:
        (row,) = [row for row in rows if (row["queue_packets"], row["ahead_us"]) == (queue, ahead)]
        return 100 * tcp.use(row)

    lines = [
        ["nothing: 16 packets in each queue", f"{use('16'):.0f}"],
        ["the next day, 600 µs ahead: the queue grows to 128", f"{use('16 to 128', '600'):.0f}"],
        ["the next day, 1,000 µs ahead", f"{use('16 to 128', '1000'):.0f}"],
        ["nothing: 128 packets in each queue, at all times", f"{use('128'):.0f}"],
    ]
    return table(["the queues know of the schedule", "use of the circuit, %"], lines, "lr")


def ranking(rows: Sequence[Row]) -> str:
    """Return designs of broker and networks in percent of the one without an interface, over drawn worlds."""
    names = {
        "brokered": "reaction: contract prices",
        "dynamic-pricing": "a price for each cluster, no ranking",
        "marketplace": "priority ranking: bids (VDX)",
        "omniscient": "all costs known to the broker",
    }
    of = {(row["seed"], row["design"]): row for row in rows if float(row["cost_weight"]) == 1}
    seeds = sorted({seed for seed, _ in of})
    lines = []
    for design, name in names.items():
        pairs = [(of[seed, design], of[seed, "brokered"]) for seed in seeds]
        shown = [
            mean_and_range(100 * float(row[column]) / float(base[column]) for row, base in pairs)
            for column in ("cost_p50", "score_p50", "distance_km_p50")
        ]
        lines.append([name, *shown, f"{max(100 * float(row['congested_share']) for row, _ in pairs):.1f}"])
    head = ["interface", "cost of a viewer, %", "score, %", "distance, %", "most viewers on full clusters, %"]
    return f"{table(head, lines, 'lr')}\n\n{len(seeds)} worlds: mean and range, percent of the first line; lower is better."


def planned(rows: Sequence[Row]) -> str:
    """Return the plan of global control beside decisions of nodes alone, under more demand than capacity."""
    names = {
        "balanced": "global control: the plan",
        "om": "local decisions alone: Overlay Multicast",
        "cdn": "local decisions alone: a CDN by DNS",
    }
    of = {
        design: found for (design,), found in grouped([r for r in rows if r["part"] == "heavy-tail"], "design").items()
    }
    lines = [
        [
            name,
            mean_and_range(100 * value for value in numbers(of[design], "satisfied_share")),
            mean_and_range(numbers(of[design], "cost_per_satisfied")),
        ]
        for design, name in names.items()
    ]
    head = ["10,000 videos, heavy tail", "viewers at their bitrate, %", "cost of a satisfied viewer"]
    return f"{table(head, lines, 'lr')}\n\n{len(of['balanced'])} drawn networks: mean and range."


def local(rows: Sequence[Row]) -> str:
    """Return the table of faults during play, to which local control reacts before the next plan."""
    names = {
        "none": "none",
        "link-cut": "a link is cut",
        "reflector-killed": "a reflector is killed",
        "edge-killed": "an edge is killed",
        "controller-frozen": "the controller is frozen",
        "split": "the controller loses half of the nodes",
    }
    of = {fault: found for (fault,), found in grouped(rows, "fault").items()}
    lines = []
    for fault, name in names.items():
        columns = [numbers(of[fault], column) for column in ("joined", "stalls", "gap_max_s")]
        lines.append([name, *(f"{max(values):.0f}" for values in columns[:2]), f"{max(columns[2]):.1f}"])
    return table(["fault", "viewers that joined, of 12", "stalls", "longest gap, s"], lines, "lr")


def modes(rows: Sequence[Row]) -> str:
    """Return the table of both extremes and of hybrid control with all viewers of Figure 4.16, without
    designs that have no rows."""
    names = {
        "hybrid": "global and local control",
        "distributed": "local control alone",
        "centralized": "global control alone",
    }
    lines = []
    for mode, name in names.items():
        found = [row for row in rows if row["mode"] == mode and row["viewers"] == "200"]
        if not found:
            lines.append([name, *["no rows yet"] * 3])
            continue
        columns = [numbers(found, column) for column in ("new_join_ms_p50", "new_join_ms_max", "stalled_share")]
        lines.append([name, *(f"{max(values):,.0f}" for values in columns[:2]), f"{100 * max(columns[2]):.1f}"])
    head = ["200 viewers", "median join of the last ones, ms", "longest, ms", "stalled, % of the time"]
    return table(head, lines, "lr")


def document() -> str:
    """Return docs/recipes.md with the tables of the committed rows."""
    blocks = {
        "circuit": ("circuit", transparency(circuits())),
        "broker": ("broker", ranking(measured("broker/designs"))),
        "plan": ("live", planned(measured("live/tables"))),
        "faults": ("live-emulated", local(measured("live-emulated/faults"))),
        "modes": ("live-emulated", modes(measured("live-emulated/load"))),
    }
    text = DOCUMENT.read_text()
    for name, (folder, new) in blocks.items():
        text = filled(text, f"experiments/{folder}/measured", {name: new})
    return text


check_tables = LAB.tables_of(DOCUMENT, document)


@LAB.verb(binary=BINARY)
def smoke(args) -> int:
    """Checks the tables of docs/recipes.md, and the command's answer for each mechanism."""
    check_tables()
    for (sharing, resources), expected in ASKED.items():
        command = [args.binary, "recipe", "--sharing", sharing, "--resources", resources]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if not said.startswith(f"{expected}\n"):
            raise Failed(f"sharing {sharing}, resources {resources}: {expected} expected:\n{said}")
    print(f"recipes: {len(ASKED)} answers")
    return 0


if __name__ == "__main__":
    sys.exit(LAB.main())
