#!/usr/bin/env python3
"""hls.js in Chromium behind the tiers of ``live``, whose reflector dies (`run.mjs`).

``run.py all`` measures the runs without rows. ``run.py docs`` writes the README's table.
``run.py smoke`` plays for a few seconds, and says ``skipped: 1 (why)`` if the machine lacks a
program.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Option, Row, Rows, commit, filled, measure, numbers, read_csv, table
from anabranch_lab.programs import Failed, Skipped, json_lines

LAB = Experiment(__file__, __doc__)
README = LAB.folder / "README.md"
MEASURED = LAB.folder / "measured.csv"


def require_programs() -> None:
    """Check that the machine has a browser and an encoder.

    Raises
    ------
    Skipped
        A program is missing.
    """
    if missing := [name for name in ("node", "chromium", "ffmpeg") if shutil.which(name) is None]:
        raise Skipped(f"players in a browser need {', '.join(missing)}")
    if not (LAB.folder / "node_modules").is_dir():
        raise Skipped("players in a browser need `npm ci` in experiments/live-browser")


def once(binary: Path, *options: object) -> Row:
    """Return the row of one run."""
    (row,) = json_lines(["node", LAB.folder / "run.mjs", "--binary", binary, *options])
    return row


@LAB.verb("all", rows=MEASURED, binary=BINARY, runs=Option(3, "number of runs"))
def all_runs(args) -> int:
    """Measures the runs that have no rows yet."""
    require_programs()
    rows = Rows(args.rows, ["run"], line_end="\n")
    cells = [{"run": number} for number in range(1, args.runs + 1)]

    def run(_: Row) -> Row:
        row = once(args.binary) | {"commit": commit()}
        # The rows have the number and time of stalls instead.
        del row["plays_on"]
        return row

    return measure(rows, cells, run)


def tables() -> dict[str, str]:
    """Return the README's table: a line for each run."""
    columns = ["first_picture_s", "behind_before_s", "behind_most_s", "behind_after_s", "stalls_before", "stalls_after", "stalled_after_s", "errors"]
    lines = [[row["run"], row["player"], *(row[column] for column in columns)] for row in read_csv(MEASURED)]
    heads = ["first picture s", "behind s", "most behind after the kill s", "behind s at the end", "stalls before", "stalls after", "stalled after s", "hls.js says, time from the kill"]
    return {"runs": table(["run", "player", *heads], lines, "rl" + "r" * 7 + "l")}


check_tables = LAB.tables_of(README, lambda: filled(README.read_text(), "experiments/live-browser/measured.csv", tables()))


@LAB.verb(binary=BINARY)
def smoke(args) -> None:
    """Plays for some seconds, and kills the reflector."""
    check_tables()
    require_programs()
    row = once(args.binary, "--before", 5, "--after", 8)
    # A busy machine stalls a player; only a player that stands still at the end is a failure.
    if not row["plays_on"]:
        raise Failed(f"the picture stands still after the reflector died: {row}")
    print(f"live-browser: {numbers([row], 'behind_after_s')[0]:.1f} s behind the source after the reflector died")


if __name__ == "__main__":
    sys.exit(LAB.main())
