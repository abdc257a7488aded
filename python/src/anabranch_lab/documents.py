"""Numbers of documents that come from committed rows: each is followed by a marker that names its computation.

A marker is a comment of Markdown after the number: ``57 <!--= spray-p99 -->``. ``experiments/numbers.toml`` has for each
document the markers' names, with the file of the rows, an expression and a format. A table between the lines
``<!-- NAME: from ROWS -->`` and ``<!-- end of NAME -->`` is written by a ``run.py docs`` (`anabranch_lab.cells`). All other
numbers of the README, of docs/results.md and of the experiments' READMEs are counted, and those beside a marker in the
other documents: ``experiments/unmarked.tsv`` has the count and a hash of each document's, with the reason. Counts only
shrink. Leaves out: fenced blocks, code, link targets; options and limits in the other documents. Read `faults` first.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import operator
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from anabranch_lab.stats import interval

#: A marked number, and its marker's name.
MARKED = re.compile(r"(?P<number>-?[\d,]*\.?\d+) ?<!--= (?P<name>[a-z0-9-]+) -->")
MARKER = re.compile(r"<!--=.*?-->", re.DOTALL)
#: Text whose numbers are no figures, or are checked against rows in another way.
SKIPPED = re.compile(
    r"^<!-- (?P<name>[^:\n]+): from [^\n]*-->\n.*?^<!-- end of (?P=name) -->\n"
    r"|^ *```.*?^ *```\n|`[^`\n]*`|\]\([^)\n]*\)|<!--.*?-->|<[^>\n]+>",
    re.MULTILINE | re.DOTALL,
)
#: A number, also the second of ``5-10``; no part of a name such as ``ns-3`` or ``v8``.
NUMBER = re.compile(r"(?<![\w.,#])(?<![^\W\d][-/])\d[\d,]*(?:\.\d+)?")
#: Experiments whose README has all tables of ``run.py table``, and that command's further words.
TABLES = {
    "broker": (),
    "gather-fairness": ("--brief", "--rows", "experiments/gather-fairness/measured.csv"),
    "gather-paths": (),
    "spray-emulated": ("--rows", "experiments/spray-emulated/measured.csv"),
}
#: The list of marked numbers, from the root.
NUMBERS = Path("experiments/numbers.toml")
#: The list of unmarked numbers, from the root.
UNMARKED = Path("experiments/unmarked.tsv")


class MarkerError(ValueError):
    """A marker that cannot be computed; one line."""


def _of(rows: pd.DataFrame, column: str, by: str | None = None, **filters: object) -> pd.Series[float]:
    for name in (column, *filters, *([by] if by else [])):
        if name not in rows:
            raise MarkerError(f"no column `{name}`: there are {', '.join(rows.columns)}")
    for name, wanted in filters.items():
        is_equal = rows[name].map(lambda found, wanted=wanted: _equal(found, wanted))
        rows = rows[is_equal.astype(bool)]
    if rows.empty:
        raise MarkerError(f"no row with {filters}")
    values = rows.assign(**{column: pd.to_numeric(rows[column])})
    found = values.groupby(by, sort=False)[column].mean() if by else values[column].reset_index(drop=True)
    return found.dropna()


def _equal(found: str, wanted: object) -> bool:
    """Whether a cell has a value; numbers are equal in any notation."""
    try:
        return float(found) == float(str(wanted))
    except ValueError:
        return found == str(wanted)


#: Functions of an expression, beside ``of``.
REDUCE: dict[str, Callable[..., float]] = {
    "mean": lambda values: float(values.mean()),
    "median": lambda values: float(values.median()),
    "min": lambda values: float(values.min()),
    "max": lambda values: float(values.max()),
    "sum": lambda values: float(values.sum()),
    "count": lambda values: float(values.count()),
    "quantile": lambda values, share: float(values.quantile(share)),
    "ci95": lambda values: interval(values)[1],
}
OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value(expression: str, rows: pd.DataFrame) -> float:
    """Compute an expression of a marker.

    Parameters
    ----------
    expression
        Sums, products and quotients of numbers, of ``of(COLUMN, by=COLUMN, COLUMN=VALUE, ...)``, which are values of rows
        (with ``by``, their means by that column, so that two of them are paired), and of ``mean``, ``median``, ``min``,
        ``max``, ``sum``, ``count``, ``quantile(VALUES, SHARE)`` and ``ci95`` of values.
    rows
        Rows, all cells as text.

    Raises
    ------
    MarkerError
        The expression has other words, or names a row or column that does not exist.

    Examples
    --------
    >>> rows = pd.DataFrame({"scheme": ["a", "b", "a", "b"], "seed": ["1", "1", "2", "2"], "s": ["1", "2", "3", "4"]})
    >>> value('100 * mean(1 - of("s", by="seed", scheme="a") / of("s", by="seed", scheme="b"))', rows)
    37.5
    """

    def computed(node: ast.AST) -> Any:  # noqa: ANN401
        match node:
            case ast.Constant(value=found) if isinstance(found, int | float | str):
                return found
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](computed(left), computed(right))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                filters = {str(one.arg): computed(one.value) for one in keywords}
                if name == "of":
                    return _of(rows, *map(computed, args), **filters)
                if name in REDUCE and not filters:
                    return REDUCE[name](*map(computed, args))
        raise MarkerError(f"`{ast.unparse(node)}`: is none of {', '.join(['of', *REDUCE])}, numbers and + - * /")

    try:
        found = computed(ast.parse(expression, mode="eval").body)
    except (SyntaxError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise MarkerError(f"`{expression}`: {error}") from error
    if not isinstance(found, int | float):
        raise MarkerError(f"`{expression}`: has several values: take their mean, say")
    return float(found)


@functools.lru_cache(maxsize=1_024)
def _value(path: Path, expression: str) -> float:
    return value(expression, _rows(path))


@functools.lru_cache(maxsize=64)
def _rows(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False, comment="#")
    except (OSError, ValueError) as error:
        raise MarkerError(f"{path.name}: {error}") from error


def read_numbers(root: Path) -> dict[str, dict[str, list[str]]]:
    """Return file, expression and format of each marker, by document.

    Raises
    ------
    MarkerError
        The list cannot be read.
    """
    try:
        return tomllib.loads((root / NUMBERS).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise MarkerError(f"{NUMBERS}: {error}") from error


def marked(root: Path, name: str, text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Return each marked number of a document, and the number that its rows give.

    Raises
    ------
    MarkerError
        A marker without its number or its line in the list, a line that no marker needs, or a line that cannot be computed.
    """
    if strange := next((one[0] for one in MARKER.finditer(MARKED.sub("", text))), None):
        raise MarkerError(f"`{strange}`: must be NUMBER <!--= NAME -->, with NAME in {NUMBERS}")
    known = read_numbers(root).get(name, {})
    found = list(MARKED.finditer(text))
    if unused := sorted(set(known) - {match["name"] for match in found}):
        raise MarkerError(f"no marker {unused[0]}, which {NUMBERS} has")
    for match in found:
        try:
            file, expression, form = known[match["name"]]
            yield match, format(_value(root / "experiments" / file, expression), form)
        except (KeyError, ValueError) as error:
            raise MarkerError(f"marker {match['name']}: {error}") from error


def filled(root: Path, path: Path) -> str:
    """Return a document with all marked numbers as their rows give them."""
    text = path.read_text(encoding="utf-8")
    parts, at = [], 0
    for match, number in marked(root, str(path.relative_to(root)), text):
        parts += [text[at : match.start()], number]
        at = match.end("number")
    return "".join([*parts, text[at:]])


@dataclasses.dataclass(frozen=True)
class Unmarked:
    """Numbers of a document that no marker computes.

    Attributes
    ----------
    count
        Number of such numbers.
    digest
        Hash of the sorted numbers: a changed digit changes the hash, a moved sentence does not.
    """

    count: int
    digest: str

    @classmethod
    def of(cls, text: str, generated: frozenset[str] = frozenset()) -> Unmarked:
        """Count the unmarked numbers of a document; lines of tables that a ``run.py table`` prints are left out.

        Examples
        --------
        >>> Unmarked.of("57 <!--= took --> ms of `12`, 3 to 4 ([1](x2.md))").count
        3
        """
        lines = [line for line in MARKED.sub("", text).splitlines() if line not in generated]
        numbers = sorted(NUMBER.findall(SKIPPED.sub(" ", "\n".join(lines) + "\n")))
        return cls(len(numbers), hashlib.sha256(" ".join(numbers).encode()).hexdigest()[:12])


def counted(root: Path, path: Path) -> str:
    """Return the text of a document whose unmarked numbers are counted.

    For each of `documents` this is the whole text, for other documents the paragraphs with a marker.
    """
    text = path.read_text(encoding="utf-8")
    if path in documents(root):
        return text
    return "\n\n".join(part for part in re.split(r"\n{2,}", text) if MARKED.search(part))


def documents(root: Path) -> list[Path]:
    """Return the documents whose unmarked numbers are all counted."""
    return [root / "README.md", root / "docs/results.md", *sorted((root / "experiments").glob("*/README.md"))]


def all_documents(root: Path) -> list[Path]:
    """Return the documents whose marked numbers are computed: those of `documents`, and all of docs."""
    return sorted({*documents(root), *(root / "docs").glob("*.md")})


def printed_tables(root: Path) -> dict[str, frozenset[str]]:
    """Return the lines of the tables that each experiment's ``run.py table`` prints, by its README.

    Raises
    ------
    MarkerError
        A ``run.py table`` fails.
    """
    found = {}
    for name, words in TABLES.items():
        command = [sys.executable, str(root / "experiments" / name / "run.py"), "table", *words]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MarkerError(f"experiments/{name}/run.py table: {(done.stderr.splitlines() or ['failed'])[-1]}")
        lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
        found[f"experiments/{name}/README.md"] = frozenset(lines)
    return found


def read_unmarked(root: Path) -> dict[str, tuple[Unmarked, str]]:
    """Return the list of unmarked numbers: counts, hashes and reasons by document."""
    found = {}
    for line in (root / UNMARKED).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, count, digest, reason = line.split("\t")
            found[name] = (Unmarked(int(count), digest), reason)
    return found


def faults(root: Path, generated: dict[str, frozenset[str]]) -> list[str]:
    """Return what is wrong with the numbers of all documents, a line each.

    Parameters
    ----------
    root
        Root of the repository.
    generated
        Lines of tables by the document that has them, as ``run.py table`` prints them now.
    """
    found = []
    for path in all_documents(root):
        name = str(path.relative_to(root))
        text = path.read_text(encoding="utf-8")
        try:
            for match, number in marked(root, name, text):
                if match["number"] != number:
                    line = text[: match.start()].count("\n") + 1
                    found.append(f"{name}:{line}: {match['number']}: its rows give {number}: `anabranch-lab numbers`")
        except MarkerError as error:
            found.append(f"{name}: {error}")
        found += [
            f"{name}: has no line `{line}`" for line in sorted(generated.get(name, set()) - set(text.splitlines()))
        ]
    allowed = read_unmarked(root)
    for path in all_documents(root):
        name = str(path.relative_to(root))
        now = Unmarked.of(counted(root, path), generated.get(name, frozenset()))
        was, reason = allowed.get(name, (Unmarked(0, Unmarked.of("").digest), ""))
        if now != was or (now.count and not reason):
            found.append(
                f"{name}: {now.count} numbers without a marker, hash {now.digest}; {UNMARKED} has {was.count}, "
                f"{was.digest}: mark what is new or changed; `anabranch-lab numbers --accept` takes no higher count"
            )
    return found


def accept(root: Path, generated: dict[str, frozenset[str]]) -> list[str]:
    """Rewrite the list of unmarked numbers; return the documents that have more of them than their line, which stays."""
    head = [line for line in (root / UNMARKED).read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    lines, grown = [], []
    for path in all_documents(root):
        name = str(path.relative_to(root))
        now = Unmarked.of(counted(root, path), generated.get(name, frozenset()))
        was, reason = read_unmarked(root).get(name, (Unmarked(0, ""), ""))
        if now.count > was.count:
            grown.append(name)
            now = was
        if now.count:
            lines.append(f"{name}\t{now.count}\t{now.digest}\t{reason}")
    (root / UNMARKED).write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    return grown
