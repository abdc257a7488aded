"""The harness of ``experiments/*/run.py``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scipy import stats as scipy_stats

from anabranch_lab.cells import (
    BINARY,
    TRIES,
    Experiment,
    Option,
    Row,
    Rows,
    Untrusted,
    measure,
    product,
    repeatable,
    trusted,
    until_trusted,
)
from anabranch_lab.programs import Failed, Skipped, json_lines
from anabranch_lab.stats import interval

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
RUNS = sorted(EXPERIMENTS.glob("*/run.py"))
#: An emulator whose first runs are not trusted.
EMULATOR = """\
#!{python}
import json, pathlib, subprocess, sys
words = sys.argv
count = pathlib.Path("{folder}/count")
runs = len(count.read_text()) + 1 if count.exists() else 1
count.write_text("." * runs)
at = words.index("--")
subprocess.run(words[at + 1:], check=True)
report = {{"report": {{"trusted": runs > {late}, "why": ["late"]}}}}
pathlib.Path(words[words.index("--report") + 1]).write_text(json.dumps(report))
"""
RUN_PY = """\
import sys
sys.path.insert(0, "{source}")
from anabranch_lab.cells import Experiment
LAB = Experiment(__file__, "A test.")

@LAB.inside
def add(task):
    return sum(task["numbers"]) + len(task["words"])

if __name__ == "__main__":
    sys.exit(LAB.main())
"""


def rows_of(folder: Path) -> Rows:
    return Rows(folder / "deep" / "rows.csv", ["method", "trial"], ["method", "trial", "took_s"])


def test_measured_cells_are_not_measured_again(tmp_path: Path) -> None:
    asked: list[Row] = []

    def took(cell: Row) -> Row:
        asked.append(cell)
        return {"took_s": 1.5}

    cells = list(product(trial=[0, 1.0], method=["a", "b"]))
    assert measure(rows_of(tmp_path), cells[:3], took) == 0
    assert measure(rows_of(tmp_path), cells, took, jobs=2) == 0
    assert asked == cells
    assert rows_of(tmp_path).read()[0] == {"method": "a", "trial": "0", "took_s": "1.5"}


def test_repeated_cell_is_measured_once(tmp_path: Path) -> None:
    cells = [{"trial": 1, "method": "a"}, {"trial": 1.0, "method": "a"}]
    assert measure(rows_of(tmp_path), cells, lambda cell: {"took_s": 1}) == 0
    assert len(rows_of(tmp_path).read()) == 1


def test_failed_cell_leaves_other_cells_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def took(cell: Row) -> Row | None:
        if cell["trial"] == 1:
            raise Failed("too late")
        return None if cell["trial"] == 2 else {"took_s": 2}

    assert measure(rows_of(tmp_path), product(trial=range(4), method=["a"]), took) == 1
    assert [row["trial"] for row in rows_of(tmp_path).read()] == ["0", "3"]
    assert "trial=1 method=a: too late" in capsys.readouterr().err


def test_cell_that_raises_leaves_no_row(tmp_path: Path) -> None:
    def took(cell: Row) -> list[Row]:
        if cell["trial"]:
            raise RuntimeError
        return [{"took_s": 1}, {"took_s": 2}]

    with pytest.raises(RuntimeError):
        measure(rows_of(tmp_path), product(trial=range(3), method=["a"]), took)
    assert [row["took_s"] for row in rows_of(tmp_path).read()] == ["1", "2"]


def test_older_rows_get_missing_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("loss\n0.1\n")
    rows = Rows(path, ["loss", "burst"], ["loss", "burst"], defaults={"burst": "1"})
    assert rows.missing(product(loss=[0.1], burst=[1, 8])) == [{"loss": 0.1, "burst": 8}]
    rows.add({"loss": 0.1, "burst": 8})
    assert path.read_text() == "loss,burst\n0.1,1\n0.1,8\n"
    with pytest.raises(Failed, match="other columns"):
        Rows(path, ["loss"], ["loss", "queue"]).add({"loss": 1, "queue": 1})


def test_error_has_the_last_untrusted_rows() -> None:
    verdicts = iter([[{"trusted": False, "why": ["late"], "trial": n}] for n in range(TRIES)])
    with pytest.raises(Untrusted, match="not trusted: late") as error:
        until_trusted(lambda: trusted(next(verdicts)))
    assert [row["trial"] for row in error.value.rows] == [TRIES - 1]
    assert trusted([{"goodput_mbps": 1.0}]) == [{"goodput_mbps": 1.0}]


def test_failures_without_a_verdict_are_not_repeated() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise Failed("no answer")

    with pytest.raises(Failed):
        until_trusted(fail)
    assert len(calls) == 1
    with pytest.raises(Failed):
        until_trusted(fail, 2, Failed)
    assert len(calls) == 3


@pytest.mark.parametrize("late", [0, TRIES - 1, TRIES])
def test_untrusted_trials_are_repeated(tmp_path: Path, late: int) -> None:
    emulator = tmp_path / "anabranch"
    emulator.write_text(EMULATOR.format(python=sys.executable, folder=tmp_path, late=late))
    emulator.chmod(0o755)
    script = tmp_path / "run.py"
    script.write_text(RUN_PY.format(source=EXPERIMENTS.parent / "python" / "src"))
    lab = Experiment(str(script), "")

    def add(task: Row) -> int:
        raise AssertionError("runs in another process")

    inside = lab.task(add, tmp_path, numbers=[1, 2])
    inside.command.append("word")
    if late == TRIES:
        with pytest.raises(Untrusted):
            lab.emulate(emulator, tmp_path, "butterfly", inside, site="a")
        return
    emulated = lab.emulate(emulator, tmp_path, "butterfly", inside, site="a")
    assert (emulated.result, emulated.untrusted_before) == (4, late)


def test_defaults_give_options_their_types(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[argparse.Namespace] = []
    lab = Experiment(str(EXPERIMENTS / "none" / "run.py"), "A test.")

    @lab.verb(
        "all", rates=[1.0], trials=3, only=repeatable(["a", "b"]), verbose=False, what=Option("x", positional=True)
    )
    def every(args: argparse.Namespace) -> None:
        seen.append(args)

    @lab.verb(binary=BINARY)
    def smoke(args: argparse.Namespace) -> None:
        raise Skipped("no network")

    monkeypatch.setattr(sys, "argv", ["run.py", "all", "y", "--rates", "2", "3", "--only", "b", "--verbose"])
    assert lab.main() == 0
    monkeypatch.setattr(sys, "argv", ["run.py", "all"])
    assert lab.main() == 0
    given, default = (vars(args) | {"verb": ""} for args in seen)
    assert given == {"verb": "", "rates": [2.0, 3.0], "trials": 3, "only": ["b"], "verbose": True, "what": "y"}
    assert default == {"verb": "", "rates": [1.0], "trials": 3, "only": [], "verbose": False, "what": "x"}
    monkeypatch.setattr(sys, "argv", ["run.py", "smoke", "--binary", sys.executable])
    assert lab.main() == 0
    monkeypatch.setattr(sys, "argv", ["run.py", "smoke", "--binary", "/no/such"])
    assert lab.main() == 1
    output = capsys.readouterr()
    assert output.out == "none: skipped: 1 (no network)\n"
    assert output.err.startswith("run.py: /no/such: no program")


def test_failed_program_reports_its_reason() -> None:
    with pytest.raises(Failed, match="no such luck"):
        json_lines([sys.executable, "-c", "import sys; sys.exit('no such luck')"])
    with pytest.raises(Failed, match=r"no answer in 0\.1 s"):
        json_lines(["sleep", 9], timeout_s=0.1)


@pytest.mark.parametrize("trials", [2, 7, 20, 41])
def test_interval_equals_scipys(trials: int) -> None:
    values = [float(value * value % 7) for value in range(trials)]
    low, high = scipy_stats.t.interval(0.95, trials - 1, *_mean_and_error(values))
    mean, half = interval(values)
    assert (mean - half, mean + half) == pytest.approx((low, high))


def _mean_and_error(values: list[float]) -> tuple[float, float]:
    return sum(values) / len(values), float(scipy_stats.sem(values))


@pytest.mark.parametrize("script", RUNS, ids=[path.parent.name for path in RUNS])
def test_experiments_start_without_the_labs_environment(script: Path, tmp_path: Path) -> None:
    for name in ("numpy", "pandas", "scipy", "matplotlib", "rich"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the standard library alone')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, script, "--help"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
