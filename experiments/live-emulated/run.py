"""``live`` with all processes real, on VDN's emulated testbed (section 4.7.2): faults, and Figures 4.16 and 4.17.

``run.py all`` runs each setting on each seed and writes rows to a folder, a file for each setting.
Cells that have rows are not run again. ``run.py docs`` writes the README's tables. ``run.py smoke`` runs one
small cell and checks its row.

Read first: `SETTINGS`.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Row, Rows, Untrusted, filled, grouped, measure, product, read_csv, repeatable, table, trusted
from anabranch_lab.programs import json_lines, require_emulator

LAB = Experiment(__file__, __doc__)
README = LAB.folder / "README.md"
MEASURED = LAB.folder / "measured"
SEEDS = (1, 2, 3)
FAULTS = (
    *("none", "link-cut", "link-degraded", "reflector-killed", "reflector-frozen", "edge-killed", "controller-frozen", "split", "drained"),
    *("controller-killed", "etcd-killed", "updates-dropped"),
)
MODES = ("hybrid", "distributed", "centralized")
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Largest share of processor time that other programs, or the host of a virtual machine, may take
#: during a trusted run.
DISTURBED_SHARE = 0.1
#: The testbed's bitrates and links divided by `SCALE`, so that two cores carry all 200 channels.
SCALE = 8
SCALED = ("--rate", f"{75_000 // SCALE}kbit/s", "--bitrates", ",".join(f"{1_000 * rate // SCALE}bit/s" for rate in (200, 600, 1_400)))
LOADED = (*SCALED, "--edges", 1)


@dataclasses.dataclass(frozen=True)
class Setting:
    """Runs of one table or figure.

    Attributes
    ----------
    parts
        Options of ``anabranch experiment live``, by the name of a line of the table.
    options
        Options of all runs.
    """

    parts: dict[str, tuple[object, ...]]
    options: tuple[object, ...]

    def command(self, binary: Path, seed: int, part: str) -> list[object]:
        """Return the command of one cell."""
        return [binary, "-q", "experiment", "live", "--json", "--seed", seed, *self.options, *self.parts[part]]


def events(fault: str) -> Setting:
    """Return the runs of a part of Figure 4.17: each design at each share of the fault."""
    parts = {f"{mode} {share}": ("--mode", mode, "--share", share) for mode in MODES for share in SHARES}
    options = ("--channels", 100, "--late", 10, "--apart", 0, "--kind", "fixed", "--sample", 5, "--seconds", 10, "--fault", fault)
    return Setting(parts, (*LOADED, *options))


SETTINGS: dict[str, Setting] = {
    # The links of one reflector can carry all channels, so each viewer must keep its bitrate
    # despite faults.
    "faults": Setting(
        {fault: ("--fault", fault) for fault in FAULTS},
        ("--channels", 12, "--rate", "12Mbit/s", "--apart", 0, "--seconds", 24, "--kind", "buffering"),
    ),
    # The same faults under the load of Figure 4.16: 200 channels, which begin together.
    "loaded": Setting(
        {fault: ("--fault", fault) for fault in FAULTS},
        (*SCALED, "--edges", 2, "--channels", 200, "--apart", 0, "--seconds", 45, "--kind", "buffering"),
    ),
    # Joins through three cold tiers: each channel has one viewer, and no object is cached.
    "joins": Setting(
        {"10 ms": ("--link-delay", "10ms"), "5 ms": ("--link-delay", "5ms")},
        ("--dns", "--channels", 30, "--rate", "100Mbit/s", "--apart", 1, "--seconds", 10, "--kind", "buffering"),
    ),
    # Figure 4.16: one further channel each second, up to 200.
    "load": Setting(
        {mode: ("--mode", mode) for mode in MODES},
        (*LOADED, "--channels", 200, "--kind", "fixed", "--sample", 10, "--seconds", 10),
    ),
    # The load of Figure 4.16 with players that play from a buffer.
    "buffers": Setting(
        {mode: ("--mode", mode) for mode in MODES},
        (*LOADED, "--channels", 200, "--kind", "buffering", "--sample", 10, "--seconds", 10),
    ),
    # Figure 4.17: 10 s after 10 channels were added to 90.
    "degraded": events("links-degraded"),
    "dropped": events("updates-dropped"),
}


def rounded(row: Row) -> Row:
    """Return the row with six digits of each fraction."""
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}


def once(binary: Path, name: str, cell: Row) -> list[Row]:
    """Return the rows of one run: one, or one for each sample.

    Raises
    ------
    Untrusted
        The emulator was too late, or other programs took more than `DISTURBED_SHARE` of the
        processors.
    """
    (row,) = trusted(json_lines([*SETTINGS[name].command(binary, cell["seed"], cell["part"])]))
    samples = row.pop("samples")
    for share in ("others_share", "steal_share"):
        if row[share] > DISTURBED_SHARE:
            raise Untrusted(f"{share} {row[share]:.2f}: at most {DISTURBED_SHARE}")
    row = {key: value for key, value in row.items() if key not in ("seed", "trusted", "why")}
    return [rounded({**cell, **row, **sample}) for sample in samples or [{}]]


@LAB.verb("all", rows=MEASURED, binary=BINARY, setting=repeatable(SETTINGS), seeds=SEEDS)
def all_settings(args) -> int:
    """Runs the cells that have no rows yet, a file for each setting."""
    require_emulator(args.binary)
    codes = []
    for name in args.setting or SETTINGS:

        def run(cell: Row, name: str = name) -> list[Row]:
            return once(args.binary, name, cell)

        rows = Rows(args.rows / f"{name}.csv", ["part", "seed"], line_end="\n")
        cells = product(seed=args.seeds, part=SETTINGS[name].parts)
        codes.append(measure(rows, cells, run, 1, lambda rows, name=name: f"{name}: {rows[0]['part']}, seed {rows[0]['seed']}"))
    return max(codes)


def shown(values: Iterable[float], digits: int = 1) -> str:
    """Return the median, with the range of several values."""
    values = sorted(values)
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f} to {values[-1]:.{digits}f})"


def of(rows: list[Row], column: str, scale: float = 1.0) -> list[float]:
    """Return the values of a column, without empty cells."""
    return [scale * float(row[column]) for row in rows if row[column]]


def faults_table(rows: list[Row]) -> list[list[object]]:
    """Return a line for each fault."""
    lines = []
    for (part,), group in grouped(rows, "part").items():
        columns = [("joined", 0), ("join_ms_p50", 0), ("mean_kbps", 0), ("stalls", 0), ("stalled_s", 1), ("gap_max_s", 1), ("refused", 0), ("failed", 0)]
        lines.append([part, group[0]["channels"], *(shown(of(group, column), digits) for column, digits in columns), len(group)])
    return lines


def joins_table(rows: list[Row]) -> list[list[object]]:
    """Return a line for each delay of a link."""
    columns = ("join_ms_p50", "join_ms_p99", "get_ms_p50", "get_ms_p99")
    return [
        [part, group[0]["channels"], *(shown(of(group, column), 0) for column in columns), len(group)]
        for (part,), group in grouped(rows, "part").items()
    ]


def load_table(rows: list[Row]) -> list[list[object]]:
    """Return a line for each number of viewers and design. Rates are in the scale of the original
    testbed."""
    lines = []
    for (viewers, part), group in grouped([row for row in rows if int(row["viewers"]) % 20 == 0], "viewers", "part").items():
        optimal = min(1_400.0, 4 * 75_000 / int(viewers))
        watched = of(group, "watched_kbps", SCALE)
        lines.append(
            [
                viewers,
                part,
                shown(watched, 0),
                f"{100 * (1 - statistics.median(watched) / optimal):.0f}",
                shown(of(group, "received_kbps", SCALE), 0),
                shown(of(group, "new_join_ms_p50"), 0),
                shown(of(group, "new_join_ms_max"), 0),
                shown(of(group, "stalled_share", 100), 1),
                len(group),
            ]
        )
    return lines


def events_table(rows: list[Row]) -> list[list[object]]:
    """Return a line for each design and share, of the last sample."""
    lines = []
    for (part,), group in grouped(rows, "part").items():
        last = [rows[-1] for rows in grouped(group, "seed").values()]
        mode, share = part.split()
        columns = [("watched_kbps", SCALE, 0), ("received_kbps", SCALE, 0), ("new_without_video", 1, 0), ("stalled_share", 100, 1)]
        lines.append([share, mode, *(shown(of(last, column, scale), digits) for column, scale, digits in columns), len(last)])
    return sorted(lines)


SERVICE = ["kbit/s watched", "below Optimal %", "kbit/s received", "join ms of new viewers", "longest", "stalled %", "seeds"]
TABLES = {
    "faults": (faults_table, ["viewers", "joined", "join ms", "kbit/s", "stalls", "stalled s", "longest gap s", "refused", "failed", "seeds"]),
    "loaded": (faults_table, ["viewers", "joined", "join ms", "kbit/s", "stalls", "stalled s", "longest gap s", "refused", "failed", "seeds"]),
    "joins": (joins_table, ["viewers", "from the DNS question ms", "longest", "from GET to the first byte of video ms", "longest", "seeds"]),
    "load": (load_table, ["design", *SERVICE]),
    "buffers": (load_table, ["design", *SERVICE]),
    "degraded": (events_table, ["design", "kbit/s watched", "kbit/s received", "new viewers without video", "stalled %", "seeds"]),
    "dropped": (events_table, ["design", "kbit/s watched", "kbit/s received", "new viewers without video", "stalled %", "seeds"]),
}


class Figures:
    """Medians over the seeds of a setting's rows.

    Parameters
    ----------
    rows
        The rows.
    column
        Column by whose values they are grouped: ``viewers``, or ``fault_share``.
    """

    def __init__(self, rows: list[Row], column: str) -> None:
        self.groups = grouped(rows, column, "mode")

    def range(self, mode: str, column: str, least: float, most: float, scale: float = 1.0) -> tuple[float, float]:
        """Return the lowest and the highest median of a design between two values of the axis."""
        medians = [
            statistics.median(of(rows, column, scale))
            for (at, design), rows in self.groups.items()
            if design == mode and least <= float(at) <= most
        ]
        return min(medians), max(medians)


def span(values: tuple[float, float], digits: int = 0) -> str:
    """Return a range as text."""
    low, high = (f"{value:.{digits}f}" for value in values)
    return low if low == high else f"{low} to {high}"


def beside_thesis(folder: Path) -> str:
    """Return the thesis's statements about Figures 4.16 and 4.17 beside ours."""
    load = Figures([row for row in read_csv(folder / "load.csv") if int(row["viewers"]) % 20 == 0], "viewers")
    last = {name: [rows[-1] for rows in grouped(read_csv(folder / f"{name}.csv"), "part", "seed").values()] for name in ("degraded", "dropped")}
    events = {name: Figures(rows, "fault_share") for name, rows in last.items()}

    def below(least: float, most: float) -> tuple[float, float]:
        low, high = load.range("hybrid", "received_kbps", least, most, SCALE / 14)
        return 100 - high, 100 - low

    def falls(mode: str) -> float:
        first, final = (load.range(mode, "received_kbps", at, at)[0] for at in (140, 200))
        return 100 * (1 - final / first)

    def joins(mode: str) -> str:
        return span(load.range(mode, "new_join_ms_p50", 20, 200, 1e-3), 1 if mode == "centralized" else 2)

    def stalled(figures: Figures, mode: str, least: float, most: float) -> str:
        return span(figures.range(mode, "stalled_share", least, most, 100))

    degraded, dropped = events["degraded"], events["dropped"]
    lines = [
        [
            "4.16a", "VDN within 17 % of Optimal", f"received: {span(below(60, 200))} % below at 60 to 200 channels, {span(below(20, 20))} % at 20",
            "agrees but for few channels, where the pause of 2 s between segments counts most",
        ],
        ["4.16a", "VDN up to 2 times Fully Distributed at medium load", "alike", "differs; perhaps because of the small network"],
        [
            "4.16a", "all designs decay from about 150 videos", f"from 140 to 200 channels VDN falls by {falls('hybrid'):.0f} %, Fully Distributed by {falls('distributed'):.0f} %",
            "differs: the emulated links have an eighth of the rate, and no incast",
        ],
        [
            "4.16b", "joins: VDN 0.2 s, Fully Centralized 7 s, Fully Distributed below 1 s until loaded, then spikes",
            f"{joins('hybrid')} s, {joins('centralized')} s, {joins('distributed')} s", "agrees; no spikes",
        ],
        [
            "4.16c", "Fully Centralized buffers much more",
            f"stalled {stalled(load, 'centralized', 60, 180)} % of the time at 60 to 180 channels, VDN {stalled(load, 'hybrid', 60, 180)} %; "
            f"at 200 {stalled(load, 'centralized', 200, 200)} and {stalled(load, 'hybrid', 200, 200)} %",
            "agrees up to 180 channels",
        ],
        [
            "4.17a", "the designs alike under degraded links",
            f"stalled at shares 0.5 to 1: VDN {stalled(degraded, 'hybrid', 0.5, 1)} %, Fully Distributed {stalled(degraded, 'distributed', 0.5, 1)} %, "
            f"Fully Centralized {stalled(degraded, 'centralized', 0.5, 1)} %",
            "differs for Fully Centralized: new viewers wait for a plan",
        ],
        [
            "4.17b", "Fully Centralized falls with lost updates, VDN holds",
            f"stalled at any share: VDN {stalled(dropped, 'hybrid', 0, 1)} %, Fully Centralized {stalled(dropped, 'centralized', 0, 1)} %",
            "VDN agrees. Fully Centralized differs: TCP repeats lost packets, and without any update nodes keep the last tables",
        ],
    ]  # fmt: skip
    return table(["figure", "the thesis", "here, medians", "state"], lines)


def tables(folder: Path) -> dict[str, str]:
    """Return the table of each setting: medians over the seeds, with the range."""
    made = {}
    for name, (lines, heads) in TABLES.items():
        path = folder / f"{name}.csv"
        if path.exists():
            made[name] = table([name, *heads], lines(read_csv(path)), "lr")
    if all((folder / f"{name}.csv").exists() for name in ("load", "degraded", "dropped")):
        made["thesis"] = beside_thesis(folder)
    return made


@LAB.verb("table", rows=MEASURED)
def show_tables(args) -> None:
    """Prints the tables of rows."""
    print("\n\n".join(tables(args.rows).values()))


LAB.tables_of(README, lambda: filled(README.read_text(), "experiments/live-emulated/measured", tables(MEASURED)))


@LAB.verb(binary=BINARY)
def smoke(args) -> None:
    """Runs one small cell and checks its row."""
    require_emulator(args.binary)
    options = ("--channels", 3, "--rate", "12Mbit/s", "--apart", 0, "--seconds", 12, "--kind", "buffering", "--fault", "reflector-killed")
    (row,) = json_lines([args.binary, "-q", "experiment", "live", "--json", "--lateness", 1_000_000, *options])
    assert row["joined"] == 3, row
    assert row["mean_kbps"] > 1_000, row
    print("live-emulated: three viewers watch on though a reflector is killed")


if __name__ == "__main__":
    sys.exit(LAB.main())
