"""Figures: ours as lines with 95 % bands, published values as marked points with their source in the legend.

Each is drawn on a light and on a dark background, as SVG and as PNG, in the colours of the binary's own pictures. Read
`draw` first; `draw_claim` draws what a claim's plan says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from anabranch_lab.claims import Claim, Published
from anabranch_lab.results import Result
from anabranch_lab.stats import means

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class Theme:
    """Colours of a background and of what stands on it."""

    paper: str
    ink: str
    dim: str
    grid: str
    lines: tuple[str, ...]


THEMES = {
    "light": Theme(
        "#ffffff", "#1c2430", "#5b6673", "#e4e8ed", ("#0068b5", "#d1481b", "#00875f", "#a0379b", "#b07800", "#5b4fc9")
    ),
    "dark": Theme(
        "#12161c", "#e8ecf1", "#9aa5b1", "#262d36", ("#5db4ff", "#ff8a5c", "#3ddba4", "#e78be2", "#f0c04a", "#a89dff")
    ),
}
#: Shapes of published points, one for each source.
MARKERS = "oDs^vP*X"


def draw(
    rows: pd.DataFrame,
    x: str,
    y: str,
    line: str | None = None,
    *,
    theme: str = "light",
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    line_label: str = "{}",
    published: Sequence[Published] = (),
) -> Canvas:
    """Draw the means of a column, with their 95 % confidence intervals.

    Parameters
    ----------
    rows
        A result's rows.
    x, y
        Columns: along which, and of what.
    line
        The column whose values get a line each; a single line without.
    theme
        ``light`` or ``dark``.
    title, x_label, y_label
        For people; the columns' names without.
    line_label
        What the legend says of a line; ``{}`` is its value.
    published
        Points beside ours, in the colour of their line.

    Returns
    -------
    matplotlib.figure.Figure
        It can be shown, changed and saved.
    """
    look = THEMES[theme]
    with mpl.rc_context({"font.family": "sans-serif", "font.size": 10}):
        canvas = Canvas(figsize=(7.2, 4.6), dpi=150, facecolor=look.paper, layout="constrained")
        axes = canvas.add_subplot(facecolor=look.paper)
        values = list(dict.fromkeys(rows[line])) if line else [None]
        colours = {value: look.lines[i % len(look.lines)] for i, value in enumerate(values)}
        # Lines beyond the colours are dashed.
        styles = ("-", "--", ":")
        dashes = {value: styles[i // len(look.lines) % len(styles)] for i, value in enumerate(values)}
        for value, colour in colours.items():
            table = means(rows if line is None else rows[rows[line] == value], y, x)
            label = (line_label.format(value) if line else y) + ", ours"
            axes.plot(
                table[x],
                table["mean"],
                color=colour,
                linestyle=dashes[value],
                linewidth=1.6,
                marker=".",
                markersize=5,
                label=label,
                zorder=3,
            )
            axes.fill_between(table[x], table["low"], table["high"], color=colour, alpha=0.2, linewidth=0, zorder=2)
        markers = dict(zip(dict.fromkeys(one.label for one in published), MARKERS * len(published), strict=False))
        for one in published:
            axes.plot(
                *zip(*one.points, strict=True),
                linestyle="none",
                marker=markers[one.label],
                markersize=8,
                markerfacecolor=colours.get(one.line, look.dim),
                markeredgecolor=look.ink,
                markeredgewidth=1.2,
                label=one.label,
                zorder=4,
            )
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.set_xlabel(x_label or x, color=look.ink)
        axes.set_ylabel(y_label or y, color=look.ink)
        if title:
            axes.set_title(title, color=look.ink, loc="left", fontsize=11, fontweight="bold")
        axes.grid(color=look.grid, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=look.dim, length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        # Below the plot: on it, it would lie over points.
        legend = canvas.legend(loc="outside lower left", ncols=2, fontsize=8.5, frameon=False)
        for text in legend.get_texts():
            text.set_color(look.ink)
    return canvas


def save(canvas: Canvas, path: Path, about: Mapping[str, Any]) -> None:
    """Write a figure as SVG or PNG, by the name's end; equal figures are equal files.

    Parameters
    ----------
    canvas
        The figure.
    path
        Where.
    about
        What the figure is of; seed, version and commit go into the file.
    """
    said = f"seed {about.get('seed')}, anabranch {about.get('version')}, commit {about.get('commit')}"
    with mpl.rc_context({"svg.hashsalt": "anabranch", "svg.fonttype": "path"}):
        metadata = {"Date": None, "Description": said} if path.suffix == ".svg" else {"Description": said}
        canvas.savefig(path, metadata=metadata, facecolor=canvas.get_facecolor())


def draw_claim(claim: Claim, results: Mapping[str, Result], folder: Path) -> list[Path]:
    """Draw all figures of a claim, light and dark, as SVG and PNG.

    Parameters
    ----------
    claim
        The claim.
    results
        What `Claim.run` gave.
    folder
        Where the files go, as ``NAME.svg`` and ``NAME-dark.svg``.

    Returns
    -------
    list[Path]
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for figure in claim.figures:
        result = results[figure.curves[0].sweep]
        rows = figure.rows(results)
        for theme in THEMES:
            canvas = draw(
                rows,
                figure.x,
                figure.y,
                figure.line,
                theme=theme,
                title=figure.title,
                x_label=figure.x_label,
                y_label=figure.y_label,
                line_label=figure.line_label,
                published=figure.published,
            )
            for end in ("svg", "png"):
                path = folder / f"{figure.name}{'' if theme == 'light' else '-' + theme}.{end}"
                save(canvas, path, result.about)
                paths.append(path)
    return paths
