"""``live`` with all processes real, on VDN's emulated testbed (section 4.7.2): faults under way, and the load of Figure 4.16.

``run.py all`` runs each setting on each seed and writes rows to a folder, a file for each setting. Cells that have rows are not run again.
``run.py table`` prints the rows. ``run.py smoke`` runs one small cell and checks its row.

Read first: `SETTINGS`.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Row, Rows, grouped, measure, product, read_csv, repeatable, table, trusted
from anabranch_lab.programs import json_lines, require_emulator

LAB = Experiment(__file__, __doc__)
SEEDS = (1, 2, 3)
FAULTS = ("none", "link-cut", "link-degraded", "reflector-killed", "reflector-frozen", "edge-killed", "controller-frozen", "split", "drained")


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


SETTINGS: dict[str, Setting] = {
    # One reflector's links carry all channels, so no fault must cost a viewer its bitrate.
    "faults": Setting(
        {fault: ("--fault", fault) for fault in FAULTS},
        ("--channels", 12, "--rate", "12Mbit/s", "--apart", 0, "--seconds", 24, "--kind", "buffering"),
    ),
    # An eighth of the testbed's 200 channels and 75 Mbit/s.
    "load": Setting({"fixed": ("--kind", "fixed"), "buffering": ("--kind", "buffering")}, ("--channels", 25, "--rate", "9.375Mbit/s")),
}


def once(binary: Path, name: str, cell: Row) -> list[Row]:
    """Return the row of one run.

    Raises
    ------
    Untrusted
        The emulator was too late.
    """
    (row,) = trusted(json_lines(SETTINGS[name].command(binary, cell["seed"], cell["part"])))
    figures = {key: value for key, value in row.items() if key not in ("seed", "trusted", "why")}
    return [{**cell, **{key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in figures.items()}}]


@LAB.verb("all", rows=LAB.folder / "measured", binary=BINARY, setting=repeatable(SETTINGS), seeds=SEEDS)
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
    """Return the median with the range."""
    values = sorted(values)
    if not values:
        return ""
    return f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f} to {values[-1]:.{digits}f})"


@LAB.verb("table", rows=LAB.folder / "measured")
def show_tables(args) -> None:
    """Prints the rows: medians over the seeds, with the range."""
    heads = ["viewers", "joined", "join ms", "kbit/s", "stalls", "stalled s", "longest gap s", "refused", "failed", "seeds"]
    for name in SETTINGS:
        lines = []
        for (part,), rows in grouped(read_csv(args.rows / f"{name}.csv"), "part").items():
            of = lambda column, rows=rows: [float(row[column]) for row in rows if row[column]]  # noqa: E731
            lines.append(
                [
                    part,
                    rows[0]["channels"],
                    shown(of("joined"), 0),
                    shown(of("join_ms_p50"), 0),
                    shown(of("mean_kbps"), 0),
                    shown(of("stalls"), 0),
                    shown(of("stalled_s")),
                    shown(of("gap_max_s")),
                    shown(of("refused"), 0),
                    shown(of("failed"), 0),
                    len(rows),
                ]
            )
        print(table([name, *heads], lines, "lr"), end="\n\n")


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
