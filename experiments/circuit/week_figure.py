"""Figures of one week: bytes sent since it began (Figure 2.6), and the rate of both networks together.

The rate is the slope of the bytes. Read `week`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tcp
from anabranch_lab.cells import Row

#: Length of the week, and end of the day, which the first night precedes, in µs.
WEEK_US, NIGHT_US, DAY_END_US = 1_400, 20, 200
#: Times in µs before the day at which a drawn queue grows; one line of the figure each.
AHEAD_US = (600, 1_000, 1_200)


def lines(rows: Sequence[Row]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return phases in µs and kilobytes of each queue: queues of fixed size, and queues that grow."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {"fixed queues": {}, "queues that grow from 16 to 128 packets": {}}
    fixed, growing = found.values()
    for row in rows:
        point = (int(row["phase_us"]), float(row["sent_bytes"]) / 1e3)
        if not row["resize"]:
            fixed.setdefault(f"{row['queue']} packets", []).append(point)
        elif int(row["ahead_us"]) in AHEAD_US:
            growing.setdefault(f"{int(row['ahead_us']):,} µs ahead", []).append(point)
    return found


def rates(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return the rate in Gbit/s between each two points, at the middle of their phases."""
    slopes = []
    for (before_us, before_kb), (after_us, after_kb) in zip(points, points[1:]):
        slopes.append(((before_us + after_us) / 2, (after_kb - before_kb) * 8 / (after_us - before_us)))
    return slopes


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw ``week.svg`` and ``week-dark.svg``, and return their paths."""
    from anabranch_lab.figures import THEMES, name_axes, panels, save_themed

    optimal = [(phase, tcp.optimal_kb(phase)) for phase in (0, NIGHT_US, DAY_END_US, WEEK_US)]

    def make(theme: str) -> Any:
        canvas, grid = panels(theme, 2, 2, size=(11.0, 7.0))
        look = THEMES[theme]
        for column, (title, of) in enumerate(lines(rows).items()):
            sent, rate = grid[0][column], grid[1][column]
            for colour, (name, points) in zip(look.lines, of.items()):
                sent.plot(*zip(*points), color=colour, label=name)
                rate.plot(*zip(*rates(points)), color=colour)
            sent.plot(*zip(*optimal), color=look.dim, linestyle="--", label="optimal")
            capacity = [(NIGHT_US, 0), (NIGHT_US, 80), (DAY_END_US, 80), (DAY_END_US, 10), (WEEK_US, 10)]
            rate.plot(*zip(*capacity), color=look.dim, linestyle="--")
            for axes in (sent, rate):
                axes.axvspan(NIGHT_US, DAY_END_US, color=look.grid, zorder=0)
            sent.legend(frameon=False, labelcolor=look.ink, fontsize=8.5)
            name_axes(sent, theme, title=title, y="kilobytes sent since the week began")
            name_axes(rate, theme, x="time since the week began, µs; the day is shaded", y="rate, Gbit/s")
        return canvas

    return save_themed(make, folder, "week", {}, ["svg"])
