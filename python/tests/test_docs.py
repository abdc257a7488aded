"""The pages that show Python: each code block runs, in order, in one session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anabranch_lab.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["docs/lab.md"])
def test_the_examples_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text(encoding="utf-8")
    # A TOML block that begins with a file's name as a comment is that file.
    for name, body in re.findall(r"^```toml\n# ([\w.-]+\.toml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(body)
    session: dict[str, object] = {"__name__": "__main__"}
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        line = text[: text.index(block)].count("\n")
        exec(compile("\n" * line + block, page, "exec"), session)
    assert (tmp_path / "incast.svg").stat().st_size > 10_000


def test_the_claims_scenarios_can_be_read() -> None:
    for path in (ROOT / "experiments" / "incast").glob("*.toml"):
        if path.name != "plan.toml":
            assert Scenario.from_file(path).seed == 1
