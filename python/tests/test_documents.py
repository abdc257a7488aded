"""Numbers of documents: each marked one is as its rows give it, and the others are counted."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from anabranch_lab import documents
from anabranch_lab.documents import MarkerError, Unmarked

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tables() -> dict[str, frozenset[str]]:
    return documents.printed_tables(ROOT)


def test_every_number_comes_from_rows_or_is_counted(tables: dict[str, frozenset[str]]) -> None:
    """#52: thirteen figures in documents differed from their rows."""
    assert documents.faults(ROOT, tables) == []


def copy(root: Path) -> Path:
    """Copy the README, its lists and the rows that they name below another root."""
    for path in [documents.UNMARKED, documents.NUMBERS, Path("docs/results.md"), Path("README.md")]:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text((ROOT / path).read_text(encoding="utf-8"), encoding="utf-8")
    for numbers in documents.read_numbers(ROOT).values():
        for file, *_ in numbers.values():
            path = Path("experiments") / file
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes((ROOT / path).read_bytes())
    return root


def test_each_changed_digit_of_the_headline_table_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    begin, end = text.index("| problem |"), text.index("[Results](docs/results.md)")
    shown = documents.SKIPPED.sub(lambda match: " " * len(match[0]), text)
    digits = [at for at in range(begin, end) if shown[at].isdigit() and not _in_word(shown, at)]
    assert len(digits) > 60
    assert unnoticed(copy(tmp_path), "README.md", digits, monkeypatch) == []


@pytest.mark.parametrize("name", sorted(documents.read_numbers(ROOT)))
def test_each_changed_digit_beside_a_marker_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """#52: all digits with ANABRANCH_LONG=1, else some of each document."""
    text = (ROOT / name).read_text(encoding="utf-8")
    code = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)|<[^>\n]+>", re.DOTALL)
    shown = code.sub(lambda match: " " * len(match[0]), text)
    digits = []
    for part in re.finditer(r"(?:[^\n]+\n)+", text):
        if "<!--=" in part[0]:
            digits += [at for at in range(*part.span()) if shown[at].isdigit() and not _in_word(shown, at)]
    assert digits
    if not os.environ.get("ANABRANCH_LONG"):
        digits = random.Random(52).sample(digits, min(40, len(digits)))
    assert unnoticed(copy(tmp_path), name, digits, monkeypatch) == []


def unnoticed(root: Path, name: str, digits: list[int], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the texts around the digits of a document whose change is not found."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (ROOT / name).read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    generated = {name: documents.printed_tables(ROOT).get(name, frozenset())} if name in PRINTED else {}
    monkeypatch.setattr(documents, "all_documents", lambda root: [root / name])
    assert documents.faults(root, generated) == []
    found = []
    for at in digits:
        path.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :], encoding="utf-8")
        if not documents.faults(root, generated):
            found.append(text[max(0, at - 30) : at + 10])
    return found


#: Documents with all tables of a ``run.py table``.
PRINTED = {f"experiments/{name}/README.md" for name in documents.TABLES}


def _in_word(text: str, at: int) -> bool:
    """Whether a digit is part of a word, such as a version or a name."""
    before = re.search(r"[\d.,]*$", text[:at])
    assert before is not None
    return bool(re.search(r"(?:[^\W\d]|_|[^\W\d][-/]|#)$", text[: at - len(before[0])]))


#: Experiments whose ``run.py docs`` writes tables of a document.
WRITTEN = [
    *("circuit", "codedbulk-throughput", "datasets", "gather-small", "live", "live-browser", "live-emulated"),
    "live-speed",
    *("recipes", "rehdfs", "shuffle-trace", "spray"),
]


@pytest.mark.parametrize("name", WRITTEN)
def test_written_tables_match_their_rows(name: str) -> None:
    """#52: nothing compared the tables of live-speed with its rows."""
    command = [sys.executable, f"experiments/{name}/run.py", "docs", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_document_with_written_tables_has_its_check() -> None:
    checked = "".join((ROOT / f"experiments/{name}/run.py").read_text(encoding="utf-8") for name in WRITTEN)
    for path in documents.all_documents(ROOT):
        if re.search(r"^<!-- [^:\n]+: from experiments/\S+ -->$", path.read_text(encoding="utf-8"), re.MULTILINE):
            name = path.parent.name if path.name == "README.md" else f"docs/{path.name}"
            assert name in WRITTEN or f'{name}"' in checked, path


def test_changed_rows_change_the_numbers(tmp_path: Path) -> None:
    root = copy(tmp_path)
    path = root / "experiments/spray-emulated/measured.csv"
    path.write_text(path.read_text().replace("60.448", "160.448"))
    found = documents.faults(root, {})
    assert [fault for fault in found if fault.startswith("README.md:") and ": 57: its rows give 107" in fault]
    assert "takes 107 <!--= spray-p99 -->" in documents.filled(root, root / "README.md")


def test_unmarked_number_must_be_in_the_list(tmp_path: Path) -> None:
    root = copy(tmp_path)
    path = root / "README.md"
    text = path.read_text(encoding="utf-8")
    path.write_text(text + "\nIt takes 4711 s.\n", encoding="utf-8")
    assert any("numbers without a marker" in fault for fault in documents.faults(root, {}))
    assert documents.accept(root, {}) == ["README.md"], "the list does not grow"
    assert documents.faults(root, {})
    path.write_text(text.replace("six minutes on two cores; leave it 5 GB", "minutes"), encoding="utf-8")
    assert documents.accept(root, {}) == []
    assert documents.faults(root, {}) == []


def test_code_and_links_have_no_figures() -> None:
    text = "```text\n1 2 3\n```\n`4` [a](b5.md) <!-- 6 --> <img src=7> v8 #9 x-10 and 11 or 1,200.5\n"
    assert Unmarked.of(text) == Unmarked.of("1,200.5 11")
    generated = "<!-- use: from rows -->\n\n5 %\n\n<!-- end of use -->\n"
    assert Unmarked.of(generated).count == 0
    assert Unmarked.of("| 1 | 2 |\n3\n", frozenset({"| 1 | 2 |"})) == Unmarked.of("3")


ROWS = pd.DataFrame({"scheme": ["a", "b", "a", "b"], "seed": ["1", "1", "2", "2"], "s": ["1", "2", "3.0", "4"]})


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ('mean(of("s", scheme="a"))', 2),
        ('quantile(of("s"), 0.5) - min(of("s"))', 1.5),
        ('count(of("s", seed=1.0)) * 3', 6),
        ('sum(of("s")) / max(of("s"))', 2.5),
        ('median(of("s", by="seed", scheme="b") - of("s", by="seed", scheme="a"))', 1),
    ],
)
def test_expressions_reduce_rows(expression: str, found: float) -> None:
    assert documents.value(expression, ROWS) == pytest.approx(found)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('of("s")', "has several values"),
        ('mean(of("t"))', "no column `t`: there are scheme, seed, s"),
        ('mean(of("s", scheme="c"))', "no row with {'scheme': 'c'}"),
        ("__import__('os')", "is none of of, mean"),
        ("rows.shape", "is none of of, mean"),
        ("mean(", "never closed"),
        ("mean(1)", "has no attribute"),
        ("1 / 0", "division by zero"),
    ],
)
def test_unsupported_expressions_are_refused(expression: str, message: str) -> None:
    with pytest.raises(MarkerError, match=re.escape(message)):
        documents.value(expression, ROWS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("some <!--= one --> ms", "must be NUMBER"),
        ("1 <!--= one --> 2 <!--= two --> ms", "marker two: 'two'"),
        ("nothing", "no marker one, which experiments/numbers.toml has"),
    ],
)
def test_marker_without_number_or_line_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "a.csv").write_text("s\n1\n")
    (tmp_path / documents.NUMBERS).write_text("[\"a.md\"]\none = ['a.csv', 'sum(of(\"s\"))', '.0f']\n")
    assert [number for _, number in documents.marked(tmp_path, "a.md", "5 <!--= one -->")] == ["1"]
    with pytest.raises(MarkerError, match=message):
        list(documents.marked(tmp_path, "a.md", text))
