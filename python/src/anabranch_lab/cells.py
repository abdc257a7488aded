"""Harness of ``experiments/*/run.py``: the command line, cells and their rows, trials inside emulations, tables.

A ``run.py`` declares an `Experiment`, its verbs with their options, its cells, and a function that
measures one cell. Rows are appended to a CSV as soon as they are measured, and cells that have
rows are not measured again. Trials that the emulator does not trust are repeated.

Standard library only: ``make test`` runs the experiments without the lab's environment, and each
emulated trial starts this module in several sites. Verbs that draw or state intervals import the
rest of the package themselves. Read `Experiment`, `Rows` and `product` first;
`anabranch_lab.programs` has what trials start.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import dataclasses
import io
import itertools
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from anabranch_lab import records
from anabranch_lab.binary import BinaryNotFoundError, find
from anabranch_lab.programs import Failed, Skipped
from anabranch_lab.tree import ChangedTreeError, changed_sources, refuse_changes

ROOT = Path(__file__).resolve().parents[3]
#: Maximum number of emulations of one trial until one of them is trusted.
TRIES = 3

Row = dict[str, Any]
#: Result of a function that ran in a site.
Result = Any
Verb = TypeVar("Verb", bound=Callable[[argparse.Namespace], "int | None"])
Trial = TypeVar("Trial", bound=Callable[[Row], Any])
Measured = TypeVar("Measured")


class Untrusted(Failed):
    """A trial that the emulator did not trust.

    Attributes
    ----------
    rows
        Rows that the trial wrote nevertheless.
    """

    def __init__(self, why: str, rows: Sequence[Row] = ()) -> None:
        super().__init__(f"not trusted: {why}")
        self.rows = list(rows)


def trusted(rows: list[Row]) -> list[Row]:
    """Return the rows of an ``anabranch`` command, whose columns ``trusted`` and ``why`` are the emulator's verdict.

    Raises
    ------
    Untrusted
        The emulator does not trust a row.
    """
    reasons = {reason: None for row in rows if not row.get("trusted", True) for reason in row["why"]}
    if reasons:
        raise Untrusted("; ".join(reasons), rows)
    return rows


def until_trusted(trial: Callable[[], Measured], tries: int = TRIES, retried: type[Failed] = Untrusted) -> Measured:
    """Repeat a trial until the emulator trusts it, and return its result.

    Parameters
    ----------
    trial
        Called for each try; raises `Untrusted` with the emulator's reason.
    tries
        Largest number of tries.
    retried
        Failures after which the trial is repeated; any other failure ends the loop.

    Raises
    ------
    Failed
        The failure of the last try.
    """
    for left in reversed(range(tries)):
        try:
            return trial()
        except retried as error:
            if not left:
                raise
            print(f"run.py: {error}; again", file=sys.stderr)
    raise ValueError(f"{tries} tries: there must be one at least")


# ------------------------------------------------------------------------------------- command line


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a verb whose default does not describe it well enough.

    Attributes
    ----------
    default
        Value if the option is not given. A list takes several values, ``False`` makes a flag.
    help
        Text for ``--help``.
    kind
        Type of a value; the type of the default if left out.
    choices
        Allowed values.
    repeats
        Whether the option may be given several times; its value is a list then.
    positional
        Whether the argument is positional; optional if it has a default.
    """

    default: Any = None
    help: str | None = None
    kind: type | None = None
    choices: Collection[Any] | None = None
    repeats: bool = False
    positional: bool = False

    def add_to(self, parser: argparse.ArgumentParser, name: str) -> None:
        """Add the option to a parser."""
        given: dict[str, Any] = {"help": self.help}
        if self.default is False:
            parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", **given)
            return
        is_list = isinstance(self.default, list | tuple)
        first = next(iter(self.default), None) if is_list else self.default
        given |= {"type": self.kind or (str if first is None else type(first)), "default": self.default}
        given |= {"choices": list(self.choices)} if self.choices is not None else {}
        if self.repeats:
            given |= {"action": "append", "default": []}
        elif is_list:
            given["nargs"] = "*" if self.positional else "+"
        elif self.positional and self.default is not None:
            given["nargs"] = "?"
        parser.add_argument(name if self.positional else f"--{name.replace('_', '-')}", **given)


def repeatable(choices: Collection[str], help: str | None = None) -> Option:
    """Make an option that may be given several times, with one choice each time."""
    return Option(help=help, choices=choices, repeats=True)


#: The ``anabranch`` command. `Experiment.main` replaces it by the path of a binary.
BINARY = Option(help="the anabranch command; else ANABRANCH_BIN, else target/release, else PATH", kind=Path)
#: The ``xtask`` command of the repository.
XTASK = Option(ROOT / "target/release/xtask", "the xtask command")


def find_binary(given: Path | None) -> Path:
    """Return the path of the ``anabranch`` command, as `anabranch_lab.binary.find` finds it.

    Raises
    ------
    Failed
        No binary was found.
    """
    try:
        # An absolute path, because trials run in other folders.
        return find(given).path.resolve()
    except BinaryNotFoundError as error:
        raise Failed(str(error)) from None


@dataclasses.dataclass(frozen=True)
class SiteTask:
    """A function of ``run.py`` that runs in a site of an emulation.

    Attributes
    ----------
    command
        Command that runs it.
    result
        Path of its result.
    """

    command: list[str]
    result: Path

    def __str__(self) -> str:
        return shlex.join(self.command)

    def read_result(self) -> Result:
        """Return what the function returned."""
        found: Result = json.loads(self.result.read_text())
        return found


@dataclasses.dataclass(frozen=True)
class Emulation:
    """An emulation that is trusted.

    Attributes
    ----------
    network
        The whole report: ``report``, ``links``.
    result
        Value that the function in the site returned.
    untrusted_before
        Number of earlier emulations of the trial that were not trusted.
    """

    network: Row
    result: Result
    untrusted_before: int

    @property
    def report(self) -> Row:
        """The emulator's own figures: drops, lateness, processor time."""
        found: Row = self.network["report"]
        return found

    def transfer(self, size_bytes: int, link_mbps: float) -> Row:
        """Return the figures of a transfer that `programs.timed` measured inside the site.

        Parameters
        ----------
        size_bytes
            Number of bytes transferred.
        link_mbps
            Rate of the narrowest link of the path.
        """
        goodput_mbps = 8.0 * size_bytes / self.result["took_s"] / 1e6
        return {
            "took_s": round(self.result["took_s"], 3),
            "goodput_mbps": round(goodput_mbps, 2),
            "of_link_share": round(goodput_mbps / link_mbps, 4),
            "cpu_s": round(self.result["cpu_s"], 3),
            "dropped_packets": self.report["drops"]["queue_full"],
            "lateness_us_p99": self.report["lateness_us_p99"],
        }


class Experiment:
    """A folder of ``experiments/`` and its ``run.py``.

    Parameters
    ----------
    file, doc
        ``__file__`` and ``__doc__`` of the ``run.py``.
    """

    def __init__(self, file: str, doc: str | None) -> None:
        self.script = Path(file).resolve()
        self.folder = self.script.parent
        self.name = self.folder.name
        #: Folder of rows that are not committed.
        self.runs = ROOT / "runs" / self.name
        self._functions: dict[str, Callable[[Row], Any]] = {}
        self._written: list[tuple[Path, Callable[[], str]]] = []
        self._verbs: dict[str, Callable[[argparse.Namespace], int | None]] = {}
        self._parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._sub = self._parser.add_subparsers(dest="verb", required=True)

    def verb(self, *names: str, **options: object) -> Callable[[Verb], Verb]:
        """Make a function a verb of the command line.

        Parameters
        ----------
        names
            Names of the verb; the function's name if left out.
        options
            Defaults of the options, or `Option` values.
        """

        def add(function: Verb) -> Verb:
            for name in names or (function.__name__,):
                text = (function.__doc__ or "").split("\n", 1)[0].replace("%", "%%")
                parser = self._sub.add_parser(name, help=text, description=text)
                for key, value in options.items():
                    (value if isinstance(value, Option) else Option(value)).add_to(parser, key)
                self._verbs[name] = function
            return function

        return add

    def tables_of(self, document: Path, text: Callable[[], str]) -> Callable[[], None]:
        """Make ``docs`` a verb that writes or checks the tables of a document, and return the check for ``smoke``.

        Parameters
        ----------
        document
            Document below the repository's root; several calls name several documents.
        text
            Function that returns the document with the tables of the committed rows.
        """

        def docs(args: argparse.Namespace) -> None:
            if args.check:
                return check()
            for path, made in self._written:
                path.write_text(made())

        def check() -> None:
            for path, made in self._written:
                if made() != path.read_text():
                    name = path.relative_to(ROOT)
                    raise Failed(
                        f"{name}: other tables than its rows make: run `python3 experiments/{self.name}/run.py docs`"
                    )

        if not self._written:
            docs.__doc__ = f"Writes the tables of {document.relative_to(ROOT)} anew from the committed rows."
            self.verb("docs", check=Option(False, "write nothing; fail if a table is not as its rows make it"))(docs)
        self._written.append((document, text))
        return check

    def inside(self, function: Trial) -> Trial:
        """Register a function that runs inside a site; it takes its task, and returns the contents of its result."""
        self._functions[function.__name__] = function
        return function

    def task(self, function: Callable[[Row], Any], folder: Path, /, label: str = "", **task: object) -> SiteTask:
        """Write a task of an `inside` function to a folder.

        Parameters
        ----------
        function
            Function to run.
        folder
            Folder of the task and its result.
        label
            Name of both files; default: the function's name.
        task
            Arguments of the function. ``folder`` and ``words``, the words after its command, are added
            to them.
        """
        path = folder / f"{label or function.__name__}.task"
        path.write_text(json.dumps({"folder": folder} | task, default=str))
        command = [sys.executable, str(self.script), "inside", function.__name__, str(path)]
        return SiteTask(command, path.with_suffix(".json"))

    def emulate(
        self,
        binary: Path,
        folder: Path,
        network: str,
        inside: SiteTask,
        *options: object,
        site: str,
        programs: Iterable[tuple[str, object]] = (),
        tries: int = TRIES,
        prepare: Callable[[], object] = lambda: None,
    ) -> Emulation:
        """Emulate a network, and run a function in one of its sites.

        Parameters
        ----------
        binary
            The ``anabranch`` command.
        folder
            Scratch folder.
        network
            Network as TOML, or the name of a network that the binary knows.
        inside, site
            Function that runs, and its site.
        options
            Further words for ``anabranch emulate``.
        programs
            Sites and command lines of programs that run in them.
        tries
            Maximum number of emulations until one is trusted; with 0, untrusted emulations count.
        prepare
            Function called before each emulation.

        Raises
        ------
        Untrusted
            No emulation was trusted.
        Failed
            The emulation ended with an exit code other than 0.
        """
        report = folder / "report.json"
        if "\n" in network:
            (folder / "network.toml").write_text(network)
            network = str(folder / "network.toml")
        command = [str(binary), "-q", "emulate", network, "--site", site, "--report", str(report), *map(str, options)]
        for where, line in programs:
            command += ["--run", f"{where}={line}"]
        begun = itertools.count()

        def trial() -> Emulation:
            untrusted = next(begun)
            prepare()
            inside.result.unlink(missing_ok=True)
            done = subprocess.run([*command, "--", *inside.command], check=False, stdin=subprocess.DEVNULL)
            if done.returncode:
                raise Failed(f"the emulation ended with {done.returncode}: see above")
            network_report = json.loads(report.read_text())
            if network_report["report"]["trusted"] or not tries:
                return Emulation(network_report, inside.read_result() if inside.result.exists() else None, untrusted)
            raise Untrusted("; ".join(network_report["report"]["why"]))

        return until_trusted(trial, max(tries, 1))

    def main(self) -> int:
        """Do what the command line says; returns the exit code."""
        if sys.argv[1:2] == ["inside"]:
            return self._run_inside(*sys.argv[2:])
        args = self._parser.parse_args()
        try:
            if "binary" in args:
                args.binary = find_binary(args.binary)
            return self._verbs[args.verb](args) or 0
        except Skipped as why:
            # Only the sample of `make test` may be skipped.
            if args.verb == "smoke":
                print(f"{self.name}: skipped: 1 ({why})")
                return 0
            print(f"run.py: {why}", file=sys.stderr)
        except (Failed, ChangedTreeError) as error:
            print(f"run.py: {error}", file=sys.stderr)
        except subprocess.CalledProcessError as error:
            print(f"run.py: {error.cmd[0]} ended with {error.returncode}: see above", file=sys.stderr)
        except KeyboardInterrupt:
            return 130
        return 1

    def _run_inside(self, name: str, path: str, *words: str) -> int:
        """Run a function in its site; the file of its result appears only once it is complete."""
        task = json.loads(Path(path).read_text())
        try:
            result = self._functions[name](task | {"words": list(words)})
        except Failed as error:
            print(f"run.py: {error}", file=sys.stderr)
            return 1
        partial = Path(path).with_suffix(".partial")
        partial.write_text(json.dumps(result))
        partial.rename(Path(path).with_suffix(".json"))
        return 0


# -------------------------------------------------------------------------------------------- cells


def product(**axes: Iterable[Any]) -> Iterator[Row]:
    """Return all cells of some axes; the last axis changes fastest.

    Examples
    --------
    >>> list(product(trial=range(2), method=["a", "b"]))[1]
    {'trial': 0, 'method': 'b'}
    """
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


class Rows:
    """The rows of an experiment: a CSV with columns that identify its cells.

    Parameters
    ----------
    path
        The file, which need not exist.
    key
        Columns of a cell. Numbers are equal in any notation.
    columns
        All columns; if left out, the columns of the file, or of the first row.
    line_end
        Line ending.
    defaults
        Values of columns that older files lack.
    """

    def __init__(
        self,
        path: Path,
        key: Sequence[str],
        columns: Sequence[str] | None = None,
        line_end: str = "\r\n",
        defaults: Mapping[str, str] | None = None,
    ) -> None:
        self.path, self.key, self.columns = path, list(key), columns
        self.line_end, self.defaults = line_end, defaults or {}

    def read(self) -> list[dict[str, str]]:
        """Return the rows as text; no rows if the file does not exist."""
        return read_csv(self.path, self.defaults)

    def cell(self, row: Mapping[str, Any]) -> tuple[object, ...]:
        """Return the values that identify the row's cell."""
        return tuple(_canonical(row.get(column, "")) for column in self.key)

    def missing(self, cells: Iterable[Row]) -> list[Row]:
        """Return the cells that have no row, each once."""
        done = {self.cell(row) for row in self.read()}
        by_key = {self.cell(cell): cell for cell in cells}
        return [cell for key, cell in by_key.items() if key not in done]

    def add(self, *rows: Row) -> None:
        """Append rows in one write, so that an interrupted cell leaves no row."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            self.write(rows)
            return
        with self.path.open(newline="") as file:
            header = next(csv.reader(file))
        if self.columns is not None and header != list(self.columns):
            if set(self.columns) != set(header) | set(self.defaults):
                raise Failed(f"{self.path}: has other columns: name another file, or move it away")
            self.write([*self.read(), *rows])
            return
        text = io.StringIO(newline="")
        csv.DictWriter(text, header, lineterminator=self.line_end).writerows(rows)
        with self.path.open("a", newline="") as file:
            file.write(text.getvalue())

    def write(self, rows: Iterable[Row]) -> None:
        """Replace the file by one with these rows, once the new file is complete."""
        write_csv(self.path, rows, self.columns, self.line_end)


def read_csv(path: Path, defaults: Mapping[str, str] | None = None) -> list[dict[str, str]]:
    """Return the rows of a CSV as text; no rows if the file does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [{**(defaults or {}), **row} for row in csv.DictReader(file)]


def write_csv(path: Path, rows: Iterable[Row], columns: Sequence[str] | None = None, line_end: str = "\n") -> None:
    """Write a complete CSV; its columns are the first row's if none are given.

    Raises
    ------
    ChangedTreeError
        The rows are to be published, and the working tree has changes.
    """
    refuse_changes(path)
    rows = list(rows)
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(rows[0] if rows else ()), lineterminator=line_end)
        writer.writeheader()
        writer.writerows(rows)
    partial.rename(path)


def write_expected(folder: Path, rows: Iterable[Row]) -> None:
    """Write an experiment's complete ``expected.csv``, and its hash."""
    write_csv(folder / records.EXPECTED, rows)
    records.write(folder)


def rounded(value: object, digits: int = 6) -> object:
    """Return a float as text with significant digits, and any other value as it is.

    Examples
    --------
    >>> rounded(1234567.89), rounded(0.5), rounded(7), rounded("refit")
    ('1.23457e+06', '0.5', 7, 'refit')
    """
    return f"{value:.{digits}g}" if isinstance(value, float) else value


def _canonical(value: object) -> object:
    try:
        return float(str(value))
    except ValueError:
        return str(value)


def format_row(row: Mapping[str, Any]) -> str:
    """Return a row in one line."""
    return " ".join(f"{column}={value}" for column, value in row.items())


def measure(
    rows: Rows,
    cells: Iterable[Row],
    function: Callable[[Row], Row | list[Row] | None],
    jobs: int = 1,
    show: Callable[[list[Row]], str] = lambda rows: "\n".join(map(format_row, rows)),
) -> int:
    """Measure the cells that have no row, and write each row as soon as it is measured.

    Parameters
    ----------
    rows
        File of the rows.
    cells
        Cells to measure.
    function
        Function that measures a cell. It returns the figures of the cell's row or rows, which follow
        the cell's columns; nothing for no row.
    jobs
        Number of cells measured at a time.
    show
        Function that formats each cell's rows for printing.

    Returns
    -------
    int
        The exit code: 1 if a cell raised `Failed`. Such a cell gets no row; the remaining cells are
        measured.
    """
    refuse_changes(rows.path)
    adding = threading.Lock()

    def measure_cell(cell: Row) -> None:
        # A worker adds its rows itself: after Ctrl-C, running cells still end and keep their
        # rows.
        figures = function(cell) or []
        complete = [cell | one for one in (figures if isinstance(figures, list) else [figures])]
        if complete:
            with adding:
                rows.add(*complete)
                print(show(complete), flush=True)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        cells_of = {pool.submit(measure_cell, cell): cell for cell in rows.missing(cells)}
        try:
            for done in concurrent.futures.as_completed(cells_of):
                try:
                    done.result()
                except Failed as error:
                    print(f"run.py: {format_row(cells_of[done])}: {error}", file=sys.stderr)
                    failed += 1
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return 1 if failed else 0


# ------------------------------------------------------------------------------------------- tables


def grouped(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """Return rows by the values of some columns, in the order in which the values appear."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def numbers(rows: Iterable[Row], column: str) -> list[float]:
    """Return the values of a column, without empty ones."""
    return [float(row[column]) for row in rows if row.get(column) not in ("", None)]


def table(head: Sequence[str], lines: Iterable[Sequence[object]], align: str = "l") -> str:
    """Write a table in Markdown.

    Parameters
    ----------
    head
        Names of the columns.
    lines
        A cell for each column.
    align
        ``l`` or ``r`` for each column; the last letter applies to all further columns.

    Examples
    --------
    >>> print(table(["method", "s"], [["curl", 1.5]], "lr"))
    | method | s |
    | --- | ---: |
    | curl | 1.5 |
    """
    rules = ["---:" if align[min(at, len(align) - 1)] == "r" else "---" for at in range(len(head))]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (head, rules, *lines))


def filled(text: str, source: str, blocks: Mapping[str, str]) -> str:
    r"""Return a document with new text between the markers of its blocks.

    Parameters
    ----------
    text
        The document.
    source
        Folder of the rows, as the markers name it.
    blocks
        New text by the name of its block.

    Raises
    ------
    Failed
        The document has no such block, or two of them.

    Examples
    --------
    >>> old = "<!-- use: from rows -->\n\n1 %\n\n<!-- end of use -->\n"
    >>> filled(old, "rows", {"use": "2 %"}) == old.replace("1", "2")
    True
    """
    for name, new in blocks.items():
        begin, end = f"<!-- {name}: from {source} -->\n", f"<!-- end of {name} -->\n"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise Failed(f"the document needs the lines `{begin.strip()}` and `{end.strip()}`, once each")
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{new}\n\n{end}{rest.split(end)[1]}"
    return text


def commit(*paths: str, dirty: bool = False) -> str:
    """Return the last commit that changed the given files, or any file; empty without git.

    Parameters
    ----------
    paths
        Files or folders, from the root of the repository.
    dirty
        Whether to return twelve digits of the last commit, with a mark if sources of rows differ from it.
    """
    command = ["git", "log", "-1", "--format=%h", "--", *paths]
    if dirty:
        command = ["git", "describe", "--always", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()
    except FileNotFoundError:
        return ""
    return f"{found}-dirty" if dirty and changed_sources(ROOT) else found
