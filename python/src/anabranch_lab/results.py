"""Results: data frames of runs, and the run directories that they come from.

Columns are the binary's, with their units in their names: first the swept settings, then ``trial``
and ``seed``. A column of whole numbers stays one where values are missing (``Int64``). Read
`Result` first.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch_lab.batches import ROWS, RUN

#: File in a directory written by `Result.save` that describes the sweep, beside its tables.
SWEEP = "sweep.json"
#: Tables beside the rows, in files that end in ``.parquet``.
TABLES = ("flows", "coflows", "links", "series", "weeks")


class NoTableError(LookupError):
    """A table was requested that the run did not keep."""


class Result:
    """Rows and tables of a run or a sweep.

    Attributes
    ----------
    rows
        Rows, one for each point, trial and workload.
    about
        Everything that the rows depend on: ``scenario`` (TOML), ``over``, ``trials``, ``seed``,
        ``version``, ``commit``, ``binary`` (its hash), and ``command``.
    path
        Path of the run directory, if one was asked for.
    """

    def __init__(
        self,
        rows: pd.DataFrame,
        tables: dict[str, pa.Table],
        about: dict[str, Any],
        path: Path | None = None,
    ) -> None:
        self.rows = rows
        self.about = about
        self.path = path
        self._tables = tables

    @functools.cached_property
    def flows(self) -> pd.DataFrame:
        """A row for each flow.

        Raises
        ------
        NoTableError
            The run kept no flows.
        """
        return self._table("flows")

    @functools.cached_property
    def coflows(self) -> pd.DataFrame:
        """A row for each coflow, of workloads that have coflows.

        Raises
        ------
        NoTableError
            The run kept no coflows.
        """
        return self._table("coflows")

    @functools.cached_property
    def links(self) -> pd.DataFrame:
        """A row for each link.

        Raises
        ------
        NoTableError
            The run kept no links.
        """
        return self._table("links")

    @functools.cached_property
    def series(self) -> pd.DataFrame:
        """A row for each probed value at each time.

        Raises
        ------
        NoTableError
            The run kept no series.
        """
        return self._table("series")

    @functools.cached_property
    def weeks(self) -> pd.DataFrame:
        """A row for each week of circuits that follow demand.

        Raises
        ------
        NoTableError
            The run kept no weeks.
        """
        return self._table("weeks")

    def _table(self, name: str) -> pd.DataFrame:
        if name not in self._tables:
            raise NoTableError(
                f"this run kept no {name}: ask for `tables=True`, and for `series` give the scenario a [probe]"
            )
        return frame(self._tables[name])

    def save(self, folder: str | Path) -> Result:
        """Write rows, tables and description into a new folder.

        Parameters
        ----------
        folder
            Folder that does not exist, or is empty.

        Returns
        -------
        Result
            The same result with the path of the folder, from which `read` reads it.

        Raises
        ------
        FileExistsError
            The path exists and is no empty folder.
        """
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FileExistsError(f"{folder}: exists already: name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.rows.to_parquet(folder / "rows.parquet", index=False)
        for name, table in self._tables.items():
            pq.write_table(table, folder / f"{name}.parquet")
        # Written last: a folder without this file is of a sweep that did not end.
        (folder / SWEEP).write_text(json.dumps(self.about, indent=2) + "\n", encoding="utf-8")
        return Result(self.rows, self._tables, self.about, folder)

    @classmethod
    def read(cls, folder: str | Path) -> Result:
        """Read a run directory of the binary, or one that `save` wrote.

        Parameters
        ----------
        folder
            The directory.

        Returns
        -------
        Result
            Rows and tables of the directory.

        Raises
        ------
        FileNotFoundError
            The directory holds no finished run.
        """
        folder = Path(folder)
        tables = {name: tidy(pq.read_table(path)) for name in TABLES if (path := folder / f"{name}.parquet").is_file()}
        if (folder / SWEEP).is_file():
            about = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
            return cls(pd.read_parquet(folder / "rows.parquet"), tables, about, folder)
        if not (folder / RUN).is_file():
            raise FileNotFoundError(f"{folder}: holds neither {RUN} nor {SWEEP}: no run that ended")
        run = json.loads((folder / RUN).read_text(encoding="utf-8"))
        rows = rows_frame(parse_rows((folder / ROWS).read_bytes()), [])
        return cls(rows, tables, facts(run), folder)

    def __repr__(self) -> str:
        return f"Result({len(self.rows)} rows, {', '.join(['rows', *self._tables])})"


def facts(run: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a run directory's description that a sweep repeats."""
    return {"command": run["command"], "config": run["config"]} | {
        name: run.get(name) for name in ("seed", "version", "commit", "machine")
    }


def parse_rows(data: bytes) -> list[dict[str, Any]]:
    """Rows of a run directory, as they are in its file."""
    return [json.loads(line) for line in data.splitlines() if line]


def parse_table(data: bytes) -> pa.Table:
    """A table of a run directory."""
    return tidy(pq.read_table(io.BytesIO(data)))


def tidy(table: pa.Table) -> pa.Table:
    """Move identifying columns to the front, make counts signed, and remove the type of columns without a value."""
    table = table.select(_ordered(table.column_names, []))
    for at, name in enumerate(table.column_names):
        column = table.column(at)
        if column.null_count == len(column):
            table = table.set_column(at, name, pa.nulls(len(column)))
        elif pa.types.is_unsigned_integer(column.type):
            table = table.set_column(at, name, column.cast(pa.int64()))
    return table


def _ordered(names: Iterable[str], swept: Iterable[str]) -> list[str]:
    """Order columns: swept settings (if not in `swept`, names with a dot), then trial, seed and workload."""
    names = list(names)
    dotted = [name for name in names if "." in name]
    first = [name for name in dict.fromkeys([*swept, *dotted, "trial", "seed", "workload"]) if name in names]
    return [*first, *(name for name in names if name not in first)]


def rows_frame(rows: Sequence[dict[str, Any]], swept: Iterable[str]) -> pd.DataFrame:
    """Make a data frame of rows: swept settings first, then trial, seed and workload, then the others in order.

    Examples
    --------
    >>> rows_frame([{"goodput_mbps": 1.5, "trial": 0, "k": 4, "drops": None}, {"drops": 2, "trial": 1, "k": 4}], ["k"])
       k  trial  goodput_mbps  drops
    0  4      0           1.5   <NA>
    1  4      1           NaN      2
    """
    seen: dict[str, None] = {}
    for row in rows:
        seen |= dict.fromkeys(row)
    names = _ordered(seen, swept)
    return pd.DataFrame({name: _column([row.get(name) for row in rows]) for name in names}, columns=names)


def _column(values: list[Any]) -> pd.Series[Any]:
    kinds = {type(value) for value in values}
    if kinds == {int, type(None)}:
        return pd.Series(values, dtype="Int64")
    if kinds and kinds <= {int, float, type(None)} and float in kinds:
        return pd.Series(values, dtype="float64")
    if len(kinds - {type(None)}) > 1 or dict in kinds or list in kinds:
        return pd.Series(values, dtype="object")
    return pd.Series(values)


def frame(table: pa.Table) -> pd.DataFrame:
    """Make a data frame of a Parquet table; whole numbers stay whole where some are missing."""

    def series(column: pa.ChunkedArray) -> pd.Series[Any]:
        if pa.types.is_null(column.type):
            return pd.Series([np.nan] * len(column), dtype="float64")
        if column.null_count and pa.types.is_integer(column.type):
            return pd.Series(column.to_pylist(), dtype="Int64")
        return pd.Series(column.to_pandas())

    return pd.DataFrame({name: series(table.column(name)) for name in table.column_names})
