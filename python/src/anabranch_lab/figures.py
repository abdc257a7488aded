"""Figures: means as lines, nine of ten trials as bands, published values as marked points.

Each figure is drawn on a light and on a dark background, as SVG and as PNG, in the colours of the
binary's own pictures. A band reaches from the 5 % to the 95 % quantile of the trials, so that it
never shows values that no trial had; an interval of Student's t would, where values are bounded or
have two peaks. Read `draw` first; `draw_claim` draws the figures of a claim's plan from the points
that `write_points` left beside the pictures; `panels` and `save_themed` are for other kinds of
pictures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from anabranch_lab.claims import Claim, ClaimError, Figure, Published
from anabranch_lab.records import POINTS
from anabranch_lab.results import Result
from anabranch_lab.stats import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclasses.dataclass(frozen=True)
class Theme:
    """Colours of a background and of the things drawn on it."""

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
#: Fields of a run's manifest that go into pictures and beside points.
ABOUT = ("seed", "version", "commit")
#: Shapes of published points, one for each source.
MARKERS = "oDs^vP*X"


@dataclasses.dataclass(frozen=True)
class _Labels:
    """Texts and published points of a figure, as `draw` takes them."""

    title: str
    x_label: str
    y_label: str
    line_label: str
    published: Sequence[Published]


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
    """Draw the means of a column over the trials, with a band that holds nine of ten trials.

    Parameters
    ----------
    rows
        Rows of a result.
    x, y
        Columns of the two axes.
    line
        Column whose values get a line each; a single line if left out.
    theme
        ``light`` or ``dark``.
    title, x_label, y_label
        Texts for readers; the columns' names if left out.
    line_label
        Text of a line in the legend; ``{}`` is its value.
    published
        Published points, drawn in the colour of their line.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, which can be shown, changed and saved.
    """
    labels = _Labels(title, x_label, y_label, line_label, published)
    return _draw_points(points(rows, x, y, line), x, y, line, theme, labels)


def points(rows: pd.DataFrame, x: str, y: str, line: str | None = None) -> pd.DataFrame:
    """Compute the points of a figure.

    Parameters
    ----------
    rows, x, y, line
        Rows and columns, as for `draw`.

    Returns
    -------
    pandas.DataFrame
        A row for each point, line by line: ``line`` where there is one, ``x``, and ``mean``,
        ``low``, ``high`` and ``trials`` as `spread` has them.
    """
    if line is None:
        return spread(rows, y, x)
    return pd.concat(
        [spread(rows[rows[line] == value], y, [line, x]) for value in dict.fromkeys(rows[line])], ignore_index=True
    )


def _draw_points(table: pd.DataFrame, x: str, y: str, line: str | None, theme: str, labels: _Labels) -> Canvas:
    """Draw the points that `points` computed."""
    look = THEMES[theme]
    canvas, [[axes]] = panels(theme)
    values = list(dict.fromkeys(table[line])) if line else [None]
    colours = {value: look.lines[i % len(look.lines)] for i, value in enumerate(values)}
    # If there are more lines than colours, further lines are dashed.
    styles = ("-", "--", ":")
    dashes = {value: styles[i // len(look.lines) % len(styles)] for i, value in enumerate(values)}
    for value, colour in colours.items():
        own = table if line is None else table[table[line] == value]
        label = labels.line_label.format(value) if line else y
        axes.plot(
            own[x],
            own["mean"],
            color=colour,
            linestyle=dashes[value],
            linewidth=1.6,
            marker=".",
            markersize=5,
            label=f"{label}, ours" if labels.published else label,
            zorder=3,
        )
        axes.fill_between(own[x], own["low"], own["high"], color=colour, alpha=0.2, linewidth=0, zorder=2)
    markers = dict(
        zip(dict.fromkeys(one.label for one in labels.published), MARKERS * len(labels.published), strict=False)
    )
    for one in labels.published:
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
    if table[x].dtype.kind in "iu":
        # Counts have whole ticks: half a server does not exist.
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    name_axes(axes, theme, title=labels.title, x=labels.x_label or x, y=labels.y_label or y)
    add_legend(canvas, theme)
    return canvas


def panels(
    theme: str,
    rows: int = 1,
    columns: int = 1,
    *,
    size: tuple[float, float] = (7.2, 4.6),
    font_size: float = 10,
    sharey: bool = False,
) -> tuple[Canvas, list[list[Axes]]]:
    """Make an empty figure in the lab's style.

    Parameters
    ----------
    theme
        ``light`` or ``dark``.
    rows, columns
        Number of plots in each direction.
    size
        Width and height in inches.
    font_size
        Size of its text in points.
    sharey
        Whether all plots have the same y axis.

    Returns
    -------
    tuple[Canvas, list[list[Axes]]]
        The figure, and its plots by row.
    """
    look = THEMES[theme]
    with mpl.rc_context({"font.family": "sans-serif", "font.size": font_size}):
        canvas = Canvas(figsize=size, dpi=150, facecolor=look.paper, layout="constrained")
        grid = canvas.subplots(rows, columns, squeeze=False, sharey=sharey)
    for axes in grid.flat:
        axes.set_facecolor(look.paper)
        axes.grid(color=look.grid, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=look.dim, length=0, which="both")
        for spine in axes.spines.values():
            spine.set_visible(False)
    return canvas, [list(row) for row in grid]


def name_axes(axes: Axes, theme: str, *, title: str = "", x: str = "", y: str = "") -> None:
    """Write the titles of a plot and of its axes.

    Parameters
    ----------
    axes
        The plot.
    theme
        ``light`` or ``dark``.
    title, x, y
        Texts above, below and beside the plot; an empty text is left out.
    """
    ink = THEMES[theme].ink
    axes.set_title(title, color=ink, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(x, color=ink)
    axes.set_ylabel(y, color=ink)


def add_legend(canvas: Canvas, theme: str, columns: int = 2) -> None:
    """Put one legend of all plots below them, where it covers no point.

    Parameters
    ----------
    canvas
        The figure; a name that several plots use is in the legend once.
    theme
        ``light`` or ``dark``.
    columns
        Number of columns of the legend.
    """
    named: dict[str, Any] = {}
    for axes in canvas.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    legend = canvas.legend(
        list(named.values()), list(named), loc="outside lower left", ncols=columns, fontsize=8.5, frameon=False
    )
    for text in legend.get_texts():
        text.set_color(THEMES[theme].ink)


def save_themed(
    make: Callable[[str], Canvas],
    folder: Path,
    name: str,
    about: Mapping[str, Any],
    ends: Sequence[str] = ("svg", "png"),
) -> list[Path]:
    """Write a figure light and dark, as SVG and PNG.

    Parameters
    ----------
    make
        Function that draws the figure in a theme.
    folder, name
        Folder and stem of the files: ``NAME.svg``, ``NAME.png``, ``NAME-dark.svg`` and
        ``NAME-dark.png``.
    ends
        Kinds of files to write.
    about
        Manifest of the run, as for `save`.

    Returns
    -------
    list[Path]
        The files.
    """
    paths = []
    for theme in THEMES:
        canvas = make(theme)
        for end in ends:
            path = folder / f"{name}{'' if theme == 'light' else '-' + theme}.{end}"
            save(canvas, path, about)
            paths.append(path)
    return paths


def save(canvas: Canvas, path: Path, about: Mapping[str, Any]) -> None:
    """Write a figure as SVG or PNG, by the name's end; equal figures are equal files.

    Parameters
    ----------
    canvas
        The figure.
    path
        Path of the file.
    about
        Manifest of the run; its seed, version and commit go into the file.
    """
    said = ", ".join(f"{'anabranch' if name == 'version' else name} {about.get(name)}" for name in ABOUT)
    with mpl.rc_context({"svg.hashsalt": "anabranch", "svg.fonttype": "path"}):
        metadata = {"Date": None, "Description": said} if path.suffix == ".svg" else {"Description": said}
        canvas.savefig(path, metadata=metadata, facecolor=canvas.get_facecolor())


def write_points(claim: Claim, results: Mapping[str, Result], folder: Path) -> list[Path]:
    """Write the points of a claim's figures with seven digits, for `draw_claim`.

    Parameters
    ----------
    claim
        The claim.
    results
        Results of `Claim.run`.
    folder
        Folder of the files ``NAME.csv``: a line with seed, version and commit, then the columns
        of `points`.

    Returns
    -------
    list[Path]
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for figure in claim.figures:
        about = results[figure.curves[0].sweep].about
        path = folder / f"{figure.name}.csv"
        if path.is_file() and not path.read_text(encoding="utf-8").startswith(POINTS):
            raise ClaimError(f"{path}: these are no points of a figure: name the figure otherwise, or move the file")
        with path.open("w", encoding="utf-8", newline="") as file:
            print(POINTS, *(f"{name}={about.get(name)}" for name in ABOUT), file=file)
            table = points(figure.rows(results), figure.x, figure.y, figure.line)
            table.to_csv(file, index=False, float_format="%.7g", lineterminator="\n")
        paths.append(path)
    return paths


def draw_claim(claim: Claim, folder: Path) -> list[Path]:
    """Draw all figures of a claim from their points, light and dark, as SVG and PNG. No scenario runs.

    Parameters
    ----------
    claim
        The claim.
    folder
        Folder with the points that `write_points` left; pictures are written there as ``NAME.svg``
        and ``NAME-dark.svg``.

    Returns
    -------
    list[Path]
        Paths of the pictures.

    Raises
    ------
    ClaimError
        There are no points, or they belong to another version of the plan's figure.
    """
    paths = []
    for figure in claim.figures:
        path = folder / f"{figure.name}.csv"
        if not path.is_file():
            raise ClaimError(f"{path}: no points of this figure: run `anabranch-lab figures {claim.name}` first")
        with path.open(encoding="utf-8") as file:
            first = file.readline()
            if not first.startswith(POINTS):
                raise ClaimError(f"{path}: no points of a figure: run `anabranch-lab figures {claim.name}` first")
            about = dict(word.split("=", 1) for word in first.removeprefix(POINTS).split() if "=" in word)
            # A line may be called NA.
            table = pd.read_csv(file, keep_default_na=False, na_values={c: [""] for c in ("mean", "low", "high")})
        for column in (figure.line, figure.x, "mean", "low", "high"):
            if column not in table:
                raise ClaimError(f"{path}: no column `{column}`, which {claim.name}/plan.toml names: run it again")

        def make(theme: str, figure: Figure = figure, table: pd.DataFrame = table) -> Canvas:
            labels = _Labels(figure.title, figure.x_label, figure.y_label, figure.line_label, figure.published)
            return _draw_points(table, figure.x, figure.y, figure.line, theme, labels)

        paths += save_themed(make, folder, figure.name, about)
    return paths
