"""Claims: values that an experiment should give, with source and tolerance, and their check.

A claim is a folder with ``plan.toml`` (the runs, how each value is computed, how figures are drawn)
and ``expected.csv`` (published values, our last recorded values, tolerances, sources). Both are
read strictly: an unknown key or column is refused with its place. ``sample.csv`` has our values of
the sample; `anabranch_lab.records` has the hashes by which an edit is found. A folder
with a ``run.py`` measures with its own program; it is listed, not run. Read `Claim` and `check`
first; ``docs/lab.md`` describes the format.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from anabranch_lab import records
from anabranch_lab.records import EXPECTED, PLAN, SAMPLE
from anabranch_lab.results import Result
from anabranch_lab.runs import sweep
from anabranch_lab.scenario import Scenario
from anabranch_lab.stats import means

#: Prefix of the source of a goal or bound of our own.
OWN = "ours"
#: The columns of ``expected.csv``.
COLUMNS = ("metric", "published", "ours", "tolerance", "source", "note")

#: The columns of ``sample.csv``.
SAMPLE_COLUMNS = ("metric", "ours")

#: Reductions of a column's means along a swept setting to a number; ``None`` if no value qualifies.
ALONG = ("first_below", "stays_below", "min_of_means", "max_of_means", "largest_fall")
#: Reductions of a column's values to one number.
REDUCE = ("mean", "median", "min", "max")


class ClaimError(ValueError):
    """A claim's files are invalid; the message names the place."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Runs of one scenario over some settings.

    Attributes
    ----------
    name
        Name by which metrics and figures refer to the sweep.
    scenario
        File name of the scenario, in the plan's folder.
    trials
        Runs of each point, in full.
    over
        Values by setting, in full.
    settings
        Settings in place of the scenario's.
    sample_trials, sample_over
        Trials and values of the sample run; settings that are not in ``sample_over`` are as in the
        full run.
    """

    name: str
    scenario: str
    trials: int
    over: dict[str, list[Any]]
    settings: dict[str, Any]
    sample_trials: int
    sample_over: dict[str, list[Any]]


@dataclasses.dataclass(frozen=True)
class Metric:
    """Rule by which a value is computed from a sweep's rows.

    Attributes
    ----------
    name
        Name of the value in ``expected.csv``, including its unit.
    sweep
        Sweep that gives the rows.
    column
        Column that is reduced.
    reduce
        ``mean``, ``median``, ``min``, ``max`` of all values; or, with ``along``, of the means of
        the points: ``min_of_means``, ``max_of_means``, ``largest_fall`` (the largest drop of a mean
        below an earlier one, as a share of the earlier one), ``first_below`` (the first value of
        ``along`` at which the mean is below ``below``), ``stays_below`` (the first value from which
        on all means are below it).
    where
        Values by column; only rows with these values count.
    along, below
        See ``reduce``.
    least, most
        With ``along``: only its values from ``least`` to ``most`` count.
    against
        With ``along``: each mean is divided by the mean of the rows that have these values instead
        of the values of ``where``.
    """

    name: str
    sweep: str
    column: str
    reduce: str
    where: dict[str, Any]
    along: str | None
    below: float | None
    against: dict[str, Any] = dataclasses.field(default_factory=dict)
    least: float = -math.inf
    most: float = math.inf


@dataclasses.dataclass(frozen=True)
class Published:
    """Points that others published.

    Attributes
    ----------
    label
        Text in the legend: the authors and the source.
    line
        The value of the figure's ``line`` to which the points belong.
    points
        Pairs of x and y.
    """

    label: str
    line: Any
    points: list[list[float]]


@dataclasses.dataclass(frozen=True)
class Curve:
    """A line of a figure whose lines come from several sweeps.

    Attributes
    ----------
    label
        Text in the legend.
    sweep
        Sweep that gives the rows.
    where
        Values by column; only rows with these values count.
    """

    label: str
    sweep: str
    where: dict[str, Any]


#: The column that identifies a figure's curves.
CURVE = "curve"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A picture: the means of ``y`` along ``x``, one line for each value of ``line`` or curve.

    Attributes
    ----------
    name
        Stem of its file names.
    table
        ``rows``, or ``series`` for the samples of a probe.
    curves
        Sources of its lines: one for all values of ``line``, or one for each line if ``line`` is
        `CURVE`.
    x, y, line
        Names of columns.
    title, x_label, y_label, line_label
        Texts for readers; ``{}`` in ``line_label`` is the line's value.
    published
        Published points that are drawn, too.
    least, most
        Only values of ``x`` from ``least`` to ``most`` are drawn.
    """

    name: str
    table: str
    curves: list[Curve]
    x: str
    y: str
    line: str
    title: str
    x_label: str
    y_label: str
    line_label: str
    published: list[Published]
    least: float = -math.inf
    most: float = math.inf

    @property
    def sweeps(self) -> set[str]:
        """Names of the sweeps whose rows the figure shows."""
        return {curve.sweep for curve in self.curves}

    def rows(self, results: Mapping[str, Result]) -> pd.DataFrame:
        """Rows of the figure from the results of `Claim.run`, less the curves that a sample omits."""
        parts = []
        for curve in self.curves:
            result = results[curve.sweep]
            rows = where(result.rows if self.table == "rows" else result.series, curve.where)
            parts.append(rows.assign(**{CURVE: curve.label}) if self.line == CURVE else rows)
        rows = pd.concat(parts)
        rows = rows[rows[self.x].between(self.least, self.most)]
        if rows.empty:
            raise ClaimError(f"figure {self.name}: no row that it could show")
        return rows


@dataclasses.dataclass(frozen=True)
class Expected:
    """A row of ``expected.csv``."""

    metric: str
    published: str
    ours: str
    tolerance: str
    source: str
    note: str


@dataclasses.dataclass(frozen=True)
class Row:
    """A checked value, as ``anabranch-lab check`` prints it.

    Attributes
    ----------
    claim, metric
        Names of the claim and of the metric.
    published
        A number, a range ``5-10``, or a bound ``<300`` or ``>900``.
    ours
        Our value of this run; ``None`` if there is none.
    tolerance
        Distance that our value may have from the published value: a number of the same unit, or a share
        such as ``10%``.
    ok
        Whether our value is within the tolerance.
    note
        Source, remarks, and the difference from the last recorded value.
    own
        Whether the metric is a goal or a bound of this project, without a published value.
    was_ok
        Whether the last recorded value is within the tolerance.
    recorded
        Last recorded value of the same runs; empty before the first record.
    """

    claim: str
    metric: str
    published: str
    ours: float | None
    tolerance: str
    ok: bool
    note: str
    own: bool
    was_ok: bool
    recorded: str

    @property
    def is_as_recorded(self) -> bool:
        """Whether our value is the recorded one: runs are deterministic, so that any difference is a change."""
        return self.recorded in ("", shown(self.ours))


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim, read from its folder.

    Attributes
    ----------
    name, title
        The folder's name, and the statement that is claimed.
    folder
        Path of the folder.
    sweeps, metrics, figures, expected
        Contents of the plan and of ``expected.csv``; empty if the claim measures with its own
        program.
    sample
        Recorded values of the sample by metric; empty before the first record.
    command
        Command of the claim's own program; ``None`` if this package measures.
    """

    name: str
    title: str
    folder: Path
    sweeps: dict[str, Sweep]
    metrics: list[Metric]
    figures: list[Figure]
    expected: dict[str, Expected]
    command: str | None = None
    sample: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, folder: str | Path) -> Claim:
        """Read a claim's folder.

        Parameters
        ----------
        folder
            Folder with its ``plan.toml``.

        Returns
        -------
        Claim
            The claim of the plan.

        Raises
        ------
        ClaimError
            A file in the folder is invalid.
        """
        folder = Path(folder)
        place = f"{folder.name}/{PLAN}"
        try:
            plan = tomllib.loads((folder / PLAN).read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ClaimError(f"{place}: {error}") from error
        if (folder / "run.py").is_file():
            command = f"python3 {folder.parent.name}/{folder.name}/run.py"
            return cls(folder.name, _title(folder), folder, {}, [], [], {}, command)
        top = _Table(plan, place)
        name = top.text("claim")
        if name != folder.name:
            raise ClaimError(f"{place}: claim `{name}`: must be the folder's name, `{folder.name}`")
        title = top.text("title")
        sweeps = {one.name: one for one in (_sweep(table) for table in top.tables("sweep"))}
        metrics = [_metric(table, sweeps) for table in top.tables("metric")]
        figures = [_figure(table, sweeps) for table in top.tables("figure", needed=False)]
        top.end()
        expected = _read_expected(folder)
        if [metric.name for metric in metrics] != list(expected):
            raise ClaimError(
                f"{folder.name}/{EXPECTED}: metrics {', '.join(expected)}: must be the plan's, in its order: "
                f"{', '.join(metric.name for metric in metrics)}"
            )
        sample = _read_sample(folder, list(expected))
        return cls(name, title, folder, sweeps, metrics, figures, expected, sample=sample)

    def run(self, *, full: bool, **options: Any) -> dict[str, Result]:  # noqa: ANN401
        """Run the claim's sweeps.

        Parameters
        ----------
        full
            Whether to make the full runs instead of the sample's.
        options
            As `anabranch_lab.sweep` has them: ``cluster``, ``binary``, ``jobs``, ``progress``.

        Returns
        -------
        dict[str, Result]
            Results by the names of the sweeps.
        """
        results = {}
        for name, one in self.sweeps.items():
            scenario = Scenario.from_file(self.folder / one.scenario).set(one.settings)
            over = one.over if full else one.over | one.sample_over
            tables = any(figure.table != "rows" and name in figure.sweeps for figure in self.figures)
            results[name] = sweep(scenario, over, one.trials if full else one.sample_trials, tables=tables, **options)
        return results


def find(folder: str | Path | None = None) -> Path:
    """Find the folder of claims: the one named, or ``experiments`` above the working directory or this package.

    Raises
    ------
    ClaimError
        No folder of claims was found.
    """
    if folder is not None:
        if not Path(folder).is_dir():
            raise ClaimError(f"{folder}: no folder of claims")
        return Path(folder)
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for above in (start, *start.parents):
            if any((above / "experiments").glob(f"*/{PLAN}")):
                return above / "experiments"
    raise ClaimError("no folder `experiments` above the working directory: name one with --experiments")


def read_all(folder: str | Path | None = None) -> dict[str, Claim]:
    """Read all claims of a folder, in the order of their names."""
    return {path.parent.name: Claim.read(path.parent) for path in sorted(find(folder).glob(f"*/{PLAN}"))}


def edited(folder: str | Path | None, names: Sequence[str] = ()) -> list[str]:
    """Return the edited records of all claims, or of those named, a line each.

    No claim is read, so that an edit that makes a record unreadable is reported as an edit, too.
    """
    plans = sorted(find(folder).glob(f"*/{PLAN}"))
    return [line for plan in plans if not names or plan.parent.name in names for line in records.edited(plan.parent)]


def check(claim: Claim, results: Mapping[str, Result], *, full: bool) -> list[Row]:
    """Compare the results with the published values.

    Parameters
    ----------
    claim
        The claim.
    results
        Results of `Claim.run`.
    full
        Whether all runs of the claim were made.

    Returns
    -------
    list[Row]
        A row for each of its metrics.
    """
    rows = []
    for metric in claim.metrics:
        expected = claim.expected[metric.name]
        ours = value(metric, results[metric.sweep].rows)
        notes = [expected.source, expected.note]
        if full and expected.ours and shown(ours) != expected.ours:
            notes.append(f"recorded was {expected.ours}")
        if not full:
            one = claim.sweeps[metric.sweep]
            in_full = f", in full ({one.trials}) {expected.ours}" if expected.ours else ""
            notes.append(f"sample of {one.sample_trials} trials{in_full}")
        ok = is_within(ours, expected.published, expected.tolerance)
        note = "; ".join(note for note in notes if note)
        own = expected.source.startswith(OWN)
        recorded = expected.ours if full else claim.sample.get(metric.name, "")
        was = None if recorded in ("", shown(None)) else float(recorded)
        was_ok = is_within(was, expected.published, expected.tolerance)
        rows.append(
            Row(claim.name, metric.name, expected.published, ours, expected.tolerance, ok, note, own, was_ok, recorded)
        )
    return rows


def record(claim: Claim, rows: Sequence[Row], *, full: bool) -> None:
    """Write the measured values to ``expected.csv`` (column ``ours``) or ``sample.csv``, and the hashes of all records.

    Parameters
    ----------
    claim
        The claim.
    rows
        Rows that `check` returned.
    full
        Whether the rows are of the full runs, not of the sample.
    """
    measured = {row.metric: shown(row.ours) for row in rows}
    with (claim.folder / (EXPECTED if full else SAMPLE)).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS if full else SAMPLE_COLUMNS)
        for one in claim.expected.values():
            ours = measured[one.metric]
            writer.writerow(dataclasses.astuple(dataclasses.replace(one, ours=ours)) if full else (one.metric, ours))
    records.write(claim.folder)


def shown(number: float | None) -> str:
    """A value as ``expected.csv`` has it: four digits, or ``none``.

    Examples
    --------
    >>> shown(182.3456), shown(8), shown(None)
    ('182.3', '8', 'none')
    """
    return "none" if number is None else f"{number:.4g}"


def where(rows: pd.DataFrame, wanted: Mapping[str, Any]) -> pd.DataFrame:
    """The rows that have these values."""
    for column, one in wanted.items():
        rows = rows[rows[column] == one]
    return rows


def _along(rows: pd.DataFrame, metric: Metric) -> list[tuple[float, float]]:
    assert metric.along is not None
    table = means(rows, metric.column, metric.along)
    pairs = [(float(at), float(mean)) for at, mean in zip(table[metric.along], table["mean"], strict=True)]
    pairs = [(at, mean) for at, mean in pairs if metric.least <= at <= metric.most]
    if not pairs:
        raise ClaimError(f"metric {metric.name}: no {metric.along} from {metric.least:g} to {metric.most:g}")
    return pairs


def value(metric: Metric, rows: pd.DataFrame) -> float | None:
    """Compute a metric from a sweep's rows.

    Examples
    --------
    >>> rows = pd.DataFrame({"servers": [1, 2, 3, 4], "goodput_mbps": [900.0, 300.0, 900.0, 200.0]})
    >>> knee = Metric("knee_servers", "s", "goodput_mbps", "first_below", {}, "servers", 500)
    >>> value(knee, rows), value(dataclasses.replace(knee, reduce="stays_below"), rows)
    (2.0, 4.0)
    >>> value(dataclasses.replace(knee, reduce="min_of_means", least=1, most=3), rows)
    300.0
    >>> round(value(dataclasses.replace(knee, reduce="largest_fall"), rows), 3)
    0.778
    >>> rows = pd.DataFrame({"load": [1, 2, 1, 2], "scheme": ["a", "a", "b", "b"], "goodput_mbps": [6.0, 5.0, 3.0, 2.0]})
    >>> gain = Metric("gain", "s", "goodput_mbps", "max_of_means", {"scheme": "a"}, "load", None, {"scheme": "b"})
    >>> value(gain, rows)
    2.5
    """
    for column in (*metric.where, *metric.against, metric.column, *([metric.along] if metric.along else [])):
        if column not in rows:
            raise ClaimError(f"metric {metric.name}: no column `{column}`: there are {', '.join(rows.columns)}")
    ours = where(rows, metric.where)
    if ours.empty:
        raise ClaimError(f"metric {metric.name}: no row where {metric.where}")
    if metric.along is None:
        return float(ours[metric.column].agg(metric.reduce))
    pairs = _along(ours, metric)
    if metric.against:
        others = dict(_along(where(rows, {**metric.where, **metric.against}), metric))
        if missing := [at for at, _ in pairs if not others.get(at)]:
            raise ClaimError(f"metric {metric.name}: nothing at {metric.along} = {missing[0]:g} to divide by")
        pairs = [(at, mean / others[at]) for at, mean in pairs]
    match metric.reduce:
        case "min_of_means":
            return min(mean for _, mean in pairs)
        case "max_of_means":
            return max(mean for _, mean in pairs)
        case "largest_fall":
            highest = itertools.accumulate((mean for _, mean in sorted(pairs)), max)
            return max(1 - mean / high for (_, mean), high in zip(sorted(pairs), highest, strict=True))
    below = math.inf if metric.below is None else metric.below
    found: float | None = None
    for at, mean in pairs if metric.reduce == "first_below" else reversed(pairs):
        if mean < below:
            found = at
            if metric.reduce == "first_below":
                break
        elif metric.reduce == "stays_below":
            break
    return found


_NUMBER = r"[0-9]+(?:\.[0-9]+)?"


def bounds(published: str) -> tuple[float, float]:
    """Lower and upper bound of a published value.

    Examples
    --------
    >>> bounds("989"), bounds("6-10"), bounds("<300"), bounds(">900")
    ((989.0, 989.0), (6.0, 10.0), (-inf, 300.0), (900.0, inf))
    """
    if match := re.fullmatch(rf"({_NUMBER})(?:-({_NUMBER}))?", published):
        return float(match[1]), float(match[2] or match[1])
    if match := re.fullmatch(rf"([<>])({_NUMBER})", published):
        return (-math.inf, float(match[2])) if match[1] == "<" else (float(match[2]), math.inf)
    raise ValueError(f"published `{published}`: must be a number, a range as 6-10, or a bound as <300 or >900")


def is_within(ours: float | None, published: str, tolerance: str) -> bool:
    """Whether a value is within the published bounds, widened by the tolerance.

    Examples
    --------
    >>> is_within(900, "989", "10%"), is_within(880, "989", "10%"), is_within(11, "6-10", "0"), is_within(None, "5", "0")
    (True, False, False, False)
    """
    low, high = bounds(published)
    match = re.fullmatch(rf"({_NUMBER})(%?)", tolerance)
    if not match:
        raise ValueError(f"tolerance `{tolerance}`: must be a number of the metric's unit, or a share as 10%")
    if ours is None:
        return False
    amount = float(match[1])
    below, above = (low * amount / 100, high * amount / 100) if match[2] else (amount, amount)
    return low - (0 if math.isinf(low) else below) <= ours <= high + (0 if math.isinf(high) else above)


class _Table:
    """A table of a plan whose keys are taken one by one; keys that remain are refused."""

    def __init__(self, table: dict[str, Any], place: str) -> None:
        self._left = dict(table)
        self.place = place

    def wrong(self, key: str, message: str) -> ClaimError:
        return ClaimError(f"{self.place}: {key}: {message}")

    def take(self, key: str, is_good: Callable[[Any], bool], what: str, default: Any = None) -> Any:  # noqa: ANN401
        if key not in self._left:
            if default is not None:
                return default
            raise self.wrong(key, f"is missing: must be {what}")
        taken = self._left.pop(key)
        if not is_good(taken):
            raise self.wrong(key, f"{taken!r}: must be {what}")
        return taken

    def text(self, key: str, default: str | None = None) -> str:
        return str(self.take(key, lambda v: isinstance(v, str) and bool(v), "text", default))

    def count(self, key: str, default: int | None = None) -> int:
        return int(self.take(key, lambda v: type(v) is int and v > 0, "a whole number from 1", default))

    def number(self, key: str, default: float) -> float:
        return float(self.take(key, lambda v: type(v) in (int, float), "a number", default))

    def table(self, key: str) -> dict[str, Any]:
        return dict(self.take(key, lambda v: isinstance(v, dict), "a table", {}))

    def lists(self, key: str) -> dict[str, list[Any]]:
        def is_good(v: Any) -> bool:  # noqa: ANN401
            return isinstance(v, dict) and all(isinstance(values, list) and values for values in v.values())

        return dict(self.take(key, is_good, "a table of lists of at least one value", {}))

    def tables(self, key: str, *, needed: bool = True) -> Iterator[_Table]:
        def is_good(v: Any) -> bool:  # noqa: ANN401
            return isinstance(v, list) and all(isinstance(inner, dict) for inner in v)

        tables = self.take(key, is_good, f"tables, as [[{key}]]", None if needed else [])
        for number, table in enumerate(tables):
            name = table.get("name", number)
            yield _Table(table, f"{self.place}: {key} {name}")

    def end(self) -> None:
        for key in self._left:
            raise ClaimError(f"{self.place}: {key}: is not known here")


def _sweep(table: _Table) -> Sweep:
    trials, over = table.count("trials"), table.lists("over")
    name, scenario, settings = table.text("name"), table.text("scenario"), table.table("set")
    sample = _Table(table.table("sample"), f"{table.place}: sample")
    sample_trials, sample_over = sample.count("trials", trials), sample.lists("over")
    for key in sample_over:
        if key not in over:
            raise sample.wrong(f"over.{key}", "must be swept in full too")
    sample.end()
    table.end()
    return Sweep(name, scenario, trials, over, settings, sample_trials, sample_over)


def _of_sweep(table: _Table, sweeps: Mapping[str, Sweep]) -> str:
    known = ", ".join(sweeps)
    return str(table.take("sweep", lambda v: v in sweeps, f"the name of a sweep: {known}"))


def _metric(table: _Table, sweeps: Mapping[str, Sweep]) -> Metric:
    name, of, column, where = table.text("name"), _of_sweep(table, sweeps), table.text("column"), table.table("where")
    along = table.text("along", "") or None
    against = table.table("against") if along else {}
    reduces = ALONG if along else REDUCE
    reduce = str(table.take("reduce", lambda v: v in reduces, f"one of {', '.join(reduces)}"))
    least, most = (table.number("from", -math.inf), table.number("to", math.inf)) if along else (-math.inf, math.inf)
    below = None
    if reduce.endswith("_below"):
        below = float(table.take("below", lambda v: type(v) in (int, float), "a number"))
    table.end()
    return Metric(name, of, column, reduce, where, along, below, against, least, most)


def _figure(table: _Table, sweeps: Mapping[str, Sweep]) -> Figure:
    def is_points(v: Any) -> bool:  # noqa: ANN401
        return isinstance(v, list) and all(isinstance(p, list) and len(p) == 2 for p in v) and bool(v)

    name, rows = table.text("name"), table.text("table", "rows")
    if rows not in ("rows", "series"):
        raise table.wrong("table", f"{rows!r}: must be rows or series")
    curves = []
    for one in table.tables("curve", needed=False):
        curves.append(Curve(one.text("label"), _of_sweep(one, sweeps), one.table("where")))
        one.end()
    line = CURVE
    if not curves:
        curves = [Curve("", _of_sweep(table, sweeps), table.table("where"))]
        line = table.text("line")
    published = []
    for one in table.tables("published", needed=False):
        points = one.take("points", is_points, "a list of pairs")
        of = one.take("line", lambda v: isinstance(v, str | int | float), "a value of the figure's line")
        published.append(Published(one.text("label"), of, points))
        one.end()
    figure = Figure(
        name=name,
        table=rows,
        curves=curves,
        x=table.text("x"),
        y=table.text("y"),
        line=line,
        title=table.text("title"),
        x_label=table.text("x_label"),
        y_label=table.text("y_label"),
        line_label=table.text("line_label", "{}"),
        published=published,
        least=table.number("from", -math.inf),
        most=table.number("to", math.inf),
    )
    table.end()
    return figure


def _read_expected(folder: Path) -> dict[str, Expected]:
    place = f"{folder.name}/{EXPECTED}"
    try:
        with (folder / EXPECTED).open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
    except OSError as error:
        raise ClaimError(f"{place}: {error}") from error
    if not lines or tuple(lines[0]) != COLUMNS:
        raise ClaimError(f"{place}:1: must be {','.join(COLUMNS)}")
    expected: dict[str, Expected] = {}
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(COLUMNS):
            raise ClaimError(f"{place}:{number}: {len(line)} values: must be {len(COLUMNS)}")
        row = Expected(*line)
        try:
            is_within(None, row.published, row.tolerance)
        except ValueError as error:
            raise ClaimError(f"{place}:{number}: {error}") from error
        if row.metric in expected:
            raise ClaimError(f"{place}:{number}: metric {row.metric}: is there twice")
        expected[row.metric] = row
    return expected


def _title(folder: Path) -> str:
    """Return the first sentence of a README's claim, without its details."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"\*\*Claim\.\*\*\s+(.*?)(?:[.:]\s| \()", text, re.DOTALL)
    return " ".join(match[1].split()) if match else ""


def _read_sample(folder: Path, metrics: Sequence[str]) -> dict[str, str]:
    place = f"{folder.name}/{SAMPLE}"
    if not (folder / SAMPLE).is_file():
        return {}
    with (folder / SAMPLE).open(encoding="utf-8", newline="") as file:
        lines = [tuple(line) for line in csv.reader(file)]
    if not lines or lines[0] != SAMPLE_COLUMNS:
        raise ClaimError(f"{place}:1: must be {','.join(SAMPLE_COLUMNS)}")
    if [line[0] for line in lines[1:]] != list(metrics) or any(len(line) != len(SAMPLE_COLUMNS) for line in lines):
        raise ClaimError(f"{place}: must have a value for each metric of {EXPECTED}, in its order")
    return {line[0]: line[1] for line in lines[1:]}
