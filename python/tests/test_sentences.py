"""Sentences of documents: at most 25 words, outside code, tables and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Maximum number of words of a sentence.
WORDS_MAX = 25

#: Text that is not prose: fenced code, HTML comments (markers of numbers included), tags and indented code.
SKIPPED = re.compile(
    r"^ *```.*?^ *```[^\n]*$|<!--.*?-->|</?[a-z][^>\n]*>|(?<=\n\n) {4}[^\n]*(?:\n {4}[^\n]*)*",
    re.MULTILINE | re.DOTALL,
)
#: A line that begins a new paragraph: a list item or a quotation.
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+|^\s*>\s?")
#: A line without prose: a heading, a row of a table, the target of a link, a rule.
BARE = re.compile(r"^\s*(?:#{1,6} |\||\[[^\]]+\]: |---+\s*$)")
CODE = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
EMPHASIS = re.compile(r"\*+|(?<!\w)_+|_+(?!\w)")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|vs|et al|approx)\.", re.IGNORECASE)
END = re.compile(r"(?<=[.!?])[)\"'”]*\s+(?=[(\"'“]*[A-Z0-9])|(?<=[\w%)]\.)\s+(?=[a-z])")


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each paragraph and list item."""
    text = SKIPPED.sub(lambda found: "\n" * found[0].count("\n"), text)
    start, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        item = ITEM.match(line)
        if lines and (item or not line.strip() or BARE.match(line)):
            yield start, " ".join(lines)
            lines = []
        if line.strip() and not BARE.match(line):
            if not lines:
                start = number
            lines.append((line[item.end() :] if item else line).strip())


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a Markdown text, with the line number of their paragraphs.

    A piece of code is one word; a link is its text. A colon or a semicolon ends no sentence.
    """
    for number, paragraph in paragraphs(text):
        plain = LINK.sub(r"\1", CODE.sub("Code", paragraph))
        plain = ABBREVIATION.sub(r"\1", EMPHASIS.sub("", plain))
        yield from ((number, part) for part in END.split(plain))


def words(sentence: str) -> int:
    """Count words: texts between spaces that have a letter or a digit."""
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


def long_sentences(text: str) -> list[tuple[int, str]]:
    """Return the sentences that have more than `WORDS_MAX` words."""
    return [(number, sentence) for number, sentence in sentences(text) if words(sentence) > WORDS_MAX]


def documents() -> list[str]:
    """Return the paths of the documents that are checked."""
    found = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    found += [*(ROOT / "docs").glob("*.md"), *(ROOT / "experiments").glob("*/README.md"), ROOT / "python/README.md"]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def test_no_document_has_long_sentences() -> None:
    found = []
    for path in documents():
        text = (ROOT / path).read_text(encoding="utf-8")
        found += [f"{path}:{number}: {words(long)} words: {long[:90]}" for number, long in long_sentences(text)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two. Three four!\nFive six? `a. B` seven.", ["One two.", "Three four!", "Five six?", "Code seven."]),
        ("Rates (in Mbit/s). [See here](a. B.md), **bold**.", ["Rates (in Mbit/s).", "See here, bold."]),
        (
            "It takes 1.5 s, e.g. at home. 64 KiB take 2. curl, 3.",
            ["It takes 1.5 s, e.g at home.", "64 KiB take 2.", "curl, 3."],
        ),
        ("- one\n- two\n  three\n\n> four\n", ["one", "two three", "four"]),
        ("# Title\n\n| a | b |\n\n```text\nno\n```\n\nYes <!-- no --> it <br> is.\n\n    code\n", ["Yes  it  is."]),
    ],
)
def test_sentences_end_at_full_stops_outside_code(text: str, expected: list[str]) -> None:
    assert [sentence for _, sentence in sentences(text)] == expected


def test_a_sentence_of_26_words_is_long() -> None:
    assert long_sentences(" ".join(["word"] * 25) + ".") == []
    assert long_sentences("First.\n\n" + " ".join(["word"] * 26) + " - .") == [(3, " ".join(["word"] * 26) + " - .")]
