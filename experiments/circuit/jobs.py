"""Circuits of training jobs: makespans over parallel switches, wrong bytes and failures.

``run.py jobs`` writes the rows of ``cargo xtask bench jobs``, a file for each kind. Read first:
`document`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anabranch_lab.cells import Row, grouped, read_csv, rounded, table, write_csv
from anabranch_lab.programs import json_lines

#: Files by name, with a column that only the rows of that file have.
FILES = {"parallel": "demand", "jobs": "draws", "failures": "singles"}


def measure(xtask: Path, folder: Path, only: str | None = None) -> None:
    """Run the bench, or only one kind of its rows, and write the rows."""
    found = json_lines([xtask, "bench", "jobs", "--hosts", 64, *(["--only", only] if only else [])])
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{key: rounded(value) for key, value in row.items()} for row in found]
    for name, column in FILES.items():
        if only in (None, name):
            write_csv(folder / f"{name}.csv", [row for row in rows if column in row])


def time_words(us: str) -> str:
    """Return a time of whole microseconds as text."""
    value = int(us)
    for unit, size in (("s", 1_000_000), ("ms", 1_000)):
        if value >= size:
            return f"{value // size} {unit}"
    return f"{value} µs"


def parallel_table(rows: Sequence[Row]) -> str:
    """Return a line for each demand and night: makespan over the bound, mean and worst over hosts and switches."""
    lines = []
    for (demand, night), of in grouped(rows, "demand", "night_us").items():
        shares = lambda column: [float(row[column]) / float(row["bound_s"]) for row in of]
        gains = [float(row["peer_s"]) / float(row["ours_s"]) for row in of]
        ours, peer = shares("ours_s"), shares("peer_s")
        lines.append(
            [
                demand,
                time_words(night),
                f"{sum(ours) / len(ours):.3f}",
                f"{max(ours):.3f}",
                f"{sum(peer) / len(peer):.3f}",
                f"{max(peer):.3f}",
                f"{sum(gains) / len(gains):.2f}",
            ]
        )
    header = ["demand", "night", "ours, mean", "worst", "whole switches, mean", "worst", "gain"]
    return table(header, lines, "lrr")


def jobs_table(rows: Sequence[Row]) -> str:
    """Return a line for each job, number of switches and night."""
    lines = [
        [
            row["job"],
            row["switches"],
            time_words(row["night_us"]),
            f"{float(row['ours_s']) / float(row['bound_s']):.3f}",
            f"{float(row['staying_s']) / float(row['ours_s']):.2f}",
            f"{100 * (float(row['ours_s']) / float(row['packet_s']) - 1):.1f}",
            f"{100 * (float(row['wrong_mean']) - 1):.1f}",
            f"{100 * (float(row['wrong_max']) - 1):.1f}",
        ]
        for row in rows
    ]
    header = [
        "job",
        "switches",
        "night",
        "makespan / bound",
        "staying / makespan",
        "over a packet switch, %",
        "bytes 20 % wrong: mean loss, %",
        "worst loss, %",
    ]
    return table(header, lines, "lrr")


def failures_table(rows: Sequence[Row]) -> str:
    """Return a line for each job, number of switches and number of spare hosts."""
    share = lambda row, name: f"{100 * float(row[f'{name}_survived']) / float(row[name]):.1f}"
    lines = [
        [
            row["job"],
            row["switches"],
            row["spares"],
            share(row, "singles"),
            share(row, "pairs"),
            f"{float(row['slowdown_mean']):.2f}",
            f"{float(row['slowdown_max']):.2f}",
            f"{float(row['answer_ms_max']):.1f}",
        ]
        for row in rows
    ]
    header = [
        "job",
        "switches",
        "spare hosts",
        "single failures survived, %",
        "double, %",
        "makespan after a single one, mean",
        "worst",
        "slowest answer, ms",
    ]
    return table(header, lines, "lrr")


def document(folder: Path) -> dict[str, str]:
    """Return the tables of the committed rows."""
    tables = {"parallel": parallel_table, "jobs": jobs_table, "failures": failures_table}
    return {name: shown(read_csv(folder / f"{name}.csv")) for name, shown in tables.items()}
