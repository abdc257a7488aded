"""Means with confidence intervals, by the swept settings.

Source: Student's t for the interval of a mean, as the binary's own tables have it. Read `means` first; `spread` is for
figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

#: Two-sided 95 % quantiles of Student's t by degrees of freedom, 1 to 30; beyond, the normal's.
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
NORMAL_95 = 1.960
#: The quantiles between which nine of ten trials lie.
NINE_OF_TEN = (0.05, 0.95)


def means(rows: pd.DataFrame, column: str, by: str | Sequence[str]) -> pd.DataFrame:
    """Mean of a column over the trials of each point, with its 95 % confidence interval.

    Parameters
    ----------
    rows
        A result's rows; those without a value in ``column`` are left out.
    column
        What is averaged, in the unit that its name says.
    by
        The columns that tell points apart, mostly what was swept.

    Returns
    -------
    pandas.DataFrame
        A row for each point in the order in which they appear: ``by``, ``mean``, ``low``, ``high`` (not a number where
        there is a single trial) and ``trials``.

    Examples
    --------
    >>> rows = pd.DataFrame({"servers": [1, 1, 1, 2], "goodput_mbps": [1.0, 2.0, 3.0, 9.0]})
    >>> means(rows, "goodput_mbps", by="servers").round(3)
       servers  mean    low   high  trials
    0        1   2.0 -0.484  4.484       3
    1        2   9.0    NaN    NaN       1
    """
    keys = [by] if isinstance(by, str) else list(by)
    known = rows.dropna(subset=[column])
    groups = known.groupby(keys, sort=False)[column]
    table = groups.agg(mean="mean", deviation="std", trials="count").reset_index()
    freedom = table["trials"].to_numpy() - 1
    t = np.array([T_95[n - 1] if 1 <= n <= len(T_95) else NORMAL_95 if n else np.nan for n in freedom])
    half = t * table["deviation"].to_numpy(dtype=float) / np.sqrt(table["trials"].to_numpy())
    table["low"] = table["mean"] - half
    table["high"] = table["mean"] + half
    return table[[*keys, "mean", "low", "high", "trials"]]


def spread(rows: pd.DataFrame, column: str, by: str | Sequence[str]) -> pd.DataFrame:
    """Mean of a column over the trials of each point, and what nine of ten of them are between.

    Parameters
    ----------
    rows, column, by
        As `means` takes them.

    Returns
    -------
    pandas.DataFrame
        A row for each point in the order in which they appear: ``by``, ``mean``, ``low`` and ``high`` (the quantiles of 5 %
        and 95 % of the trials, or the mean where it is beyond one) and ``trials``. Neither is beyond what a trial gave.

    Examples
    --------
    >>> rows = pd.DataFrame({"servers": [1, 1, 1, 1], "goodput_mbps": [0.0, 1000.0, 1000.0, 1000.0]})
    >>> spread(rows, "goodput_mbps", by="servers").round(1)
       servers   mean    low    high  trials
    0        1  750.0  150.0  1000.0       4
    """
    keys = [by] if isinstance(by, str) else list(by)
    groups = rows.dropna(subset=[column]).groupby(keys, sort=False)[column]
    table = groups.agg(mean="mean", trials="count").reset_index()
    low, high = (groups.quantile(at).to_numpy() for at in NINE_OF_TEN)
    table["low"] = np.minimum(low, table["mean"])
    table["high"] = np.maximum(high, table["mean"])
    return table[[*keys, "mean", "low", "high", "trials"]]
