"""Runs and sweeps: scenarios in, results out, here or on a Dask cluster.

A sweep is cut into batches of some trials of one point. Each is a call of the binary, stored by
content as soon as it is complete, so that a stopped sweep continues from there. Read `run`
and `sweep` first.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from anabranch_lab import binary as binaries
from anabranch_lab.batches import ROWS, RUN, Batch, Children, RunError, Stopped, execute
from anabranch_lab.cache import Cache
from anabranch_lab.results import TABLES, Result, facts, parse_rows, parse_table, rows_frame
from anabranch_lab.scenario import Scenario, inline

#: Trials of a batch. The number is fixed, so that a sweep of more trials can use the batches of a
#: sweep of fewer trials.
BATCH_TRIALS = 10
#: Maximum number of points of a sweep, as in the binary.
POINTS_MAX = 10_000

Outcome = dict[str, bytes]
#: Numbers of batches with their outcomes, as they end.
Outcomes = Generator[tuple[int, Outcome], None, None]


def run(
    scenario: Scenario,
    trials: int = 1,
    out: str | Path | None = None,
    *,
    tables: bool = True,
    binary: str | Path | None = None,
    jobs: int | None = None,
    cache: bool = True,
) -> Result:
    """Run a scenario once for each trial and each combination of its swept values, in one call.

    Parameters
    ----------
    scenario
        Scenario to run.
    trials
        Number of runs of each combination, with seeds that count up from the scenario's.
    out
        Path of the run directory, which must not exist; no directory is kept if left out.
    tables
        Whether flows, links and series are kept beside the rows.
    binary
        Path of the binary; if left out, `anabranch_lab.binary.find` finds it.
    jobs
        Number of threads; the number of processors if left out.
    cache
        Whether the result of an equal earlier run may be returned, and this one is kept.

    Returns
    -------
    Result
        Rows and tables of the run.

    Raises
    ------
    ScenarioError
        The binary refused the scenario.
    """
    found = binaries.find(binary)
    if trials < 1:
        raise ValueError(f"trials {trials}: must be at least 1")
    if out is not None and Path(out).exists():
        raise FileExistsError(f"{out}: exists already: name a new folder")
    batch = Batch(
        name=scenario.name,
        text=scenario.text,
        sets=scenario.sets,
        files=tuple(scenario.files().items()),
        seed=scenario.seed,
        trials=trials,
        first=0,
        tables=tables,
        digest=found.digest,
    )
    store = Cache() if cache else None
    outcome = store.load(batch.key) if store else None
    if outcome is None:
        try:
            outcome = execute(batch, str(found.path), jobs)
        except Stopped:
            raise KeyboardInterrupt from None
        if store:
            store.store(batch.key, outcome)
    if out is not None:
        Path(out).mkdir(parents=True)
        for name in sorted(outcome, key=lambda name: name == RUN):
            (Path(out) / name).write_bytes(outcome[name])
    rows = rows_frame(parse_rows(outcome[ROWS]), scenario.swept)
    kept = {name: parse_table(outcome[f"{name}.parquet"]) for name in TABLES if f"{name}.parquet" in outcome}
    about = facts(json.loads(outcome[RUN])) | {"binary": found.digest}
    return Result(rows, kept, about, Path(out) if out is not None else None)


def sweep(
    scenario: Scenario,
    over: Mapping[str, Sequence[Any]] | None = None,
    trials: int = 1,
    cluster: str | None = None,
    *,
    out: str | Path | None = None,
    tables: bool = False,
    binary: str | Path | None = None,
    jobs: int | None = None,
    cache: bool = True,
    progress: bool | None = None,
) -> Result:
    """Run a scenario over all combinations of some settings, many times each, on this machine or on a cluster.

    The rows and their order do not depend on the machines used: the point changes slowest, then the
    trial. Ctrl-C ends the running trials; the same call later continues from there.

    Parameters
    ----------
    scenario
        Scenario to run. Values that it sweeps itself are swept, too.
    over
        Values by setting, as `Scenario.set` names it; the first changes slowest.
    trials
        Number of runs of each combination; trial ``t`` has the scenario's seed plus ``t``.
    cluster
        ``None``: processes on this machine. The address of a Dask scheduler, such as
        ``tcp://host:8786``: its workers, which need this package with the same binary. ``"local"``:
        a Dask cluster on this machine, for the duration of the call.
    out
        Folder for the result, which must not exist; no folder is kept if left out.
    tables
        Whether flows, links and series are kept beside the rows.
    binary
        Path of the binary; if left out, `anabranch_lab.binary.find` finds it.
    jobs
        Number of processes at a time on this machine; the number of processors if left out.
    cache
        Whether results of earlier batches may be used, and new results are kept.
    progress
        Whether a bar is shown on stderr; if left out, it is shown on a terminal.

    Returns
    -------
    Result
        Rows of the sweep and, if asked for, tables.

    Raises
    ------
    ScenarioError
        The binary refused the scenario, at any of its points.
    """
    found = binaries.find(binary)
    if trials < 1:
        raise ValueError(f"trials {trials}: must be at least 1")
    if out is not None and Path(out).exists():
        raise FileExistsError(f"{out}: exists already: name a new folder")
    swept = scenario.swept | scenario.set({"sweep": dict(over or {})}).swept
    points = _points(swept)
    files = tuple(scenario.files().items())
    batches = [
        batch
        for point in points
        for batch in _batches(scenario, files, point, trials, tables=tables, digest=found.digest)
    ]
    store = Cache() if cache else None
    outcomes: list[Outcome | None] = [store.load(batch.key) if store else None for batch in batches]
    missing = [number for number, outcome in enumerate(outcomes) if outcome is None]
    with _bar(len(points) * trials, progress) as advance:
        advance(sum(batch.trials for batch, outcome in zip(batches, outcomes, strict=True) if outcome is not None))
        work = [batches[number] for number in missing]
        runner = _local(work, found, jobs) if cluster is None else _dask(work, found, cluster)
        with contextlib.closing(runner):
            for index, outcome in runner:
                outcomes[missing[index]] = outcome
                if store:
                    store.store(work[index].key, outcome)
                advance(work[index].trials)
    whole = [outcome for outcome in outcomes if outcome is not None]
    about: dict[str, Any] = facts(json.loads(whole[0][RUN])) | {"binary": found.digest}
    about |= {
        "command": "sweep",
        "seed": scenario.seed,
        "trials": trials,
        "over": swept,
        "scenario": scenario.to_toml(),
    }
    del about["config"]
    result = Result(
        rows_frame(list(_rows(batches, whole)), swept),
        {name: table for name in TABLES if (table := _table(batches, whole, name)) is not None},
        about,
    )
    return result if out is None else result.save(out)


def _points(swept: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    for key, values in swept.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"sweep over {key}: must be a list of at least one value")
    count = 1
    for values in swept.values():
        count *= len(values)
    if count > POINTS_MAX:
        raise ValueError(f"{count} combinations: at most {POINTS_MAX}")
    return [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]


def _batches(
    scenario: Scenario,
    files: tuple[tuple[str, bytes], ...],
    point: dict[str, Any],
    trials: int,
    *,
    tables: bool,
    digest: str,
) -> Iterator[Batch]:
    # A sweep of one value for each setting: the binary then checks it as a sweep, and its rows
    # begin with the setting.
    one = {key: [value] for key, value in point.items()}
    sets = (*scenario.sets, f"sweep={inline(one)}") if one else scenario.sets
    for first in range(0, trials, BATCH_TRIALS):
        yield Batch(
            name=scenario.name,
            text=scenario.text,
            sets=sets,
            files=files,
            seed=scenario.seed + first,
            trials=min(BATCH_TRIALS, trials - first),
            first=first,
            tables=tables,
            digest=digest,
        )


def _rows(batches: Sequence[Batch], outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    for batch, outcome in zip(batches, outcomes, strict=True):
        for row in parse_rows(outcome[ROWS]):
            row["trial"] += batch.first
            yield row


def _table(batches: Sequence[Batch], outcomes: Sequence[Outcome], name: str) -> pa.Table | None:
    tables = []
    for batch, outcome in zip(batches, outcomes, strict=True):
        data = outcome.get(f"{name}.parquet")
        if data is None:
            continue
        table = parse_table(data)
        at = table.column_names.index("trial")
        trial = pa.array([value + batch.first for value in table.column("trial").to_pylist()], table.field(at).type)
        tables.append(table.set_column(at, table.field(at), trial))
    return pa.concat_tables(tables, promote_options="permissive") if tables else None


@contextlib.contextmanager
def _bar(trials: int, wanted: bool | None) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of further trials that are done."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda count: None
        return
    columns = (
        TextColumn("trials"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("so far,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("trials", total=trials)
        yield lambda count: bar.advance(task, count)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _local(
    batches: Sequence[Batch], binary: binaries.Binary, jobs: int | None
) -> Generator[tuple[int, Outcome], None, None]:
    """Run batches as processes of this machine. The threads only wait for these processes."""
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs {jobs}: must be at least 1")
    children = Children()
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=jobs or _processors())
    try:
        futures = {
            pool.submit(execute, batch, str(binary.path), 1, children): number for number, batch in enumerate(batches)
        }
        for future in concurrent.futures.as_completed(futures):
            try:
                yield futures[future], future.result()
            except Stopped:
                raise KeyboardInterrupt from None
    finally:
        children.stop()
        pool.shutdown(wait=True, cancel_futures=True)


def _dask(
    batches: Sequence[Batch], binary: binaries.Binary, cluster: str
) -> Generator[tuple[int, Outcome], None, None]:
    """Run batches on the workers of a Dask cluster."""
    try:
        import distributed
    except ImportError:
        raise RunError("a cluster needs Dask: pip install 'anabranch-lab[dask]'") from None
    with contextlib.ExitStack() as stack:
        if cluster == "local":
            # One process is enough: its threads only wait for the binary's processes, and a
            # script needs no `__main__` guard.
            local = distributed.LocalCluster(  # type: ignore[no-untyped-call]
                n_workers=1, threads_per_worker=_processors(), processes=False, dashboard_address=None
            )
            cluster = stack.enter_context(local).scheduler_address
        try:
            client = stack.enter_context(distributed.Client(cluster, timeout="20s"))  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as error:
            raise RunError(f"{cluster}: no Dask scheduler answers there: {error}") from error
        futures: dict[Any, int] = {
            client.submit(execute, batch, str(binary.path), pure=False): number for number, batch in enumerate(batches)
        }
        try:
            for future in distributed.as_completed(list(futures)):  # type: ignore[no-untyped-call]
                yield futures[future], future.result()
                future.release()
        finally:
            client.cancel(list(futures))
