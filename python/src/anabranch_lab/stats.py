"""Means with confidence intervals, by the swept settings.

Source: Student's t for the interval of a mean, by `scipy.stats.t`. The binary's own tables have
three decimals of it, and the normal's quantile beyond 30 degrees of freedom. Read `means` first;
`interval` is `means` for a list, `spread` is for figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats as scipy_stats

Numbers = npt.NDArray[Any]
#: Confidence of all intervals.
CONFIDENCE = 0.95
#: The quantiles between which nine of ten trials lie.
NINE_OF_TEN = (0.05, 0.95)


def means(rows: pd.DataFrame, column: str, by: str | Sequence[str]) -> pd.DataFrame:
    """Mean of a column over the trials of each point, with its 95 % confidence interval.

    Parameters
    ----------
    rows
        Rows of a result; rows without a value in ``column`` are left out.
    column
        Column that is averaged, in the unit that its name says.
    by
        Columns that distinguish points, usually the swept values.

    Returns
    -------
    pandas.DataFrame
        A row for each point in the order in which they appear: ``by``, ``mean``, ``low``, ``high`` (not a number if
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
    half = _half(table["trials"].to_numpy(), table["deviation"].to_numpy(dtype=float))
    table["low"] = table["mean"] - half
    table["high"] = table["mean"] + half
    return table[[*keys, "mean", "low", "high", "trials"]]


def interval(values: Iterable[float]) -> tuple[float, float]:
    """Mean of some trials, with its 95 % confidence interval.

    Parameters
    ----------
    values
        One value for each trial.

    Returns
    -------
    tuple[float, float]
        The mean, and half of the interval; not a number if there is a single trial.

    Examples
    --------
    >>> mean, half = interval([1.0, 2.0, 3.0])
    >>> round(mean, 3), round(half, 3)
    (2.0, 2.484)
    """
    array = np.fromiter(values, dtype=float)
    deviation = array.std(ddof=1) if array.size > 1 else np.nan
    (half,) = _half(np.array([array.size]), np.array([deviation]))
    return float(array.mean()), float(half)


def _half(trials: Numbers, deviation: Numbers) -> Numbers:
    """Return half of the interval of each mean."""
    half: Numbers = scipy_stats.t.ppf((1 + CONFIDENCE) / 2, trials - 1) * deviation / np.sqrt(trials)
    return half


def spread(rows: pd.DataFrame, column: str, by: str | Sequence[str]) -> pd.DataFrame:
    """Mean of a column over the trials of each point, and the range of nine of ten of them.

    Parameters
    ----------
    rows, column, by
        As for `means`.

    Returns
    -------
    pandas.DataFrame
        A row for each point in the order in which they appear: ``by``, ``mean``, ``low`` and ``high`` (the quantiles of 5 %
        and 95 % of the trials, or the mean where it is beyond one) and ``trials``. Neither quantile is outside the range
        of the trials.

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
