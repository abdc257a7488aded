"""Claims: strict files, values checked on both sides of their tolerance, and the command."""

from __future__ import annotations

import collections
import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from anabranch_lab import cells, claims, records, tree
from anabranch_lab.claims import Claim, ClaimError
from anabranch_lab.cli import main

ROOT = Path(__file__).resolve().parents[2]

SCENARIO = """\
[network]
topology = "star"
hosts = 9
delay = "25 us"
queue = "64 KiB"
[workload]
kind = "incast"
servers = 2
block = "16 KiB"
rounds = 2
"""
PLAN = """\
claim = "small"
title = "two servers are as good as one"
[[sweep]]
name = "servers"
scenario = "small.toml"
trials = 3
[sweep.over]
"workload.servers" = [1, 2]
[sweep.sample]
trials = 2
[[metric]]
name = "rounds_mean"
sweep = "servers"
column = "rounds"
reduce = "mean"
[[metric]]
name = "knee_servers"
sweep = "servers"
column = "goodput_mbps"
along = "workload.servers"
reduce = "first_below"
below = 1
[[figure]]
name = "goodput"
sweep = "servers"
x = "workload.servers"
y = "goodput_mbps"
line = "workload"
title = "Small"
x_label = "servers"
y_label = "goodput, Mbit/s"
[[figure.published]]
label = "somebody"
line = "incast"
points = [[1, 900]]
"""
EXPECTED = """\
metric,published,ours,tolerance,source,note
rounds_mean,2,,0,the scenario,
knee_servers,5-10,,0,nobody,there is none
"""


def write(folder: Path, plan: str = PLAN, expected: str = EXPECTED) -> Path:
    claim = folder / "experiments" / "small"
    claim.mkdir(parents=True, exist_ok=True)
    (claim / "small.toml").write_text(SCENARIO)
    (claim / "plan.toml").write_text(plan)
    (claim / "expected.csv").write_text(expected)
    return claim


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("trials = 3", "trails = 3", "small/plan.toml: sweep servers: trials: is missing"),
        ("trials = 3", "trials = 0", "trials: 0: must be a whole number from 1"),
        ("[sweep.sample]", "colour = 1\n[sweep.sample]", "sweep servers: over: "),
        ("below = 1", "below = 1\nabove = 2", "metric knee_servers: above: is not known here"),
        ('reduce = "mean"', 'reduce = "mode"', "reduce: 'mode': must be one of mean, median, min, max"),
        ('sweep = "servers"\ncolumn = "rounds"', 'sweep = "s"\ncolumn = "rounds"', "the name of a sweep: servers"),
        (
            'line = "workload"',
            'table = "links"\nline = "workload"',
            "figure goodput: table: 'links': must be rows or series",
        ),
        (
            "[[figure.published]]",
            '[[figure.curve]]\nlabel = "a"\nsweep = "s"\n[[figure.published]]',
            "the name of a sweep: servers",
        ),
        ('claim = "small"', 'claim = "big"', "must be the folder's name"),
        ("points = [[1, 900]]", "points = [[1]]", "must be a list of pairs"),
        ("title = ", "title ", "line 2"),
    ],
)
def test_invalid_plan_is_refused_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in PLAN
    with pytest.raises(ClaimError) as caught:
        Claim.read(write(tmp_path, PLAN.replace(old, new, 1)))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metric,published", "metric,expected", "small/expected.csv:1: must be metric,published,ours"),
        ("rounds_mean,2,,0,", "rounds_mean,two,,0,", "expected.csv:2: published `two`"),
        ("rounds_mean,2,,0,", "rounds_mean,2,,some,", "expected.csv:2: tolerance `some`"),
        ("rounds_mean,2,,0,", "rounds_mean,2,0,", "expected.csv:2: 5 values: must be 6"),
        ("rounds_mean,", "round_mean,", "must be the plan's, in its order"),
        ("knee_servers,", "rounds_mean,", "expected.csv:3: metric rounds_mean: is there twice"),
    ],
)
def test_invalid_expectations_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in EXPECTED
    with pytest.raises(ClaimError) as caught:
        Claim.read(write(tmp_path, expected=EXPECTED.replace(old, new, 1)))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("ours", "published", "tolerance", "ok"),
    [
        (90, "100", "10%", True),
        (89.9, "100", "10%", False),
        (110, "100", "10%", True),
        (110.1, "100", "10%", False),
        (4, "5-10", "1", True),
        (3.9, "5-10", "1", False),
        (11.1, "5-10", "1", False),
        (330, "<300", "10%", True),
        (331, "<300", "10%", False),
        (-5, "<300", "0", True),
        (855, ">900", "5%", True),
        (854, ">900", "5%", False),
        (None, "<300", "10%", False),
    ],
)
def test_tolerances_hold_to_their_edge(ours: float | None, published: str, tolerance: str, ok: bool) -> None:
    assert claims.is_within(ours, published, tolerance) is ok


def test_a_claim_is_run_checked_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tree.VARIABLE, "1")
    claim = write(tmp_path)
    folder = ["--experiments", str(claim.parent), "--quiet"]
    assert main(["check", "small", "--json", *folder]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    keys = ["claim", "metric", "published", "ours", "tolerance", "ok", "note", "own", "was_ok", "recorded"]
    assert [list(row) for row in rows] == [keys] * 2
    assert [(row["ours"], row["ok"]) for row in rows] == [(2.0, True), (None, False)]
    assert rows[0]["note"] == "the scenario; sample of 2 trials"

    assert main(["check", "--accept", *folder]) == 2
    assert "needs --record" in capsys.readouterr().err
    assert main(["check", "--known", *folder]) == 1, "nothing is known yet"
    assert main(["check", "--full", "--record", *folder]) == 1
    assert [one.ours for one in Claim.read(claim).expected.values()] == ["2", "none"]
    assert "1 of 2 as published" in capsys.readouterr().err
    assert main(["check", "--full", "--known", *folder]) == 0
    assert main(["check", "--full", *folder]) == 1, "one value is not as published"
    # The sample is not compared with the record of all trials.
    assert main(["check", "--known", *folder]) == 1
    main(["check", "--record", *folder])
    assert Claim.read(claim).sample == {"rounds_mean": "2", "knee_servers": "none"}
    assert main(["check", "--known", *folder]) == 0
    assert main(["check", "--full", "--known", *folder]) == 0


#: Edits of a record that hide something, or nothing: file, before, after.
EDITS = [
    ("expected.csv", "rounds_mean,2,2,0", "rounds_mean,2-9,2,0"),
    ("expected.csv", "rounds_mean,2,2,0", "rounds_mean,2,2,50%"),
    ("expected.csv", "rounds_mean,2,2,0", "rounds_mean,2,,0"),
    ("expected.csv", "rounds_mean,2,2,0", "rounds_mean,2,2.0,0"),
    ("expected.csv", "rounds_mean,2,2,0", "rounds_mean,2,3,0"),
    ("expected.csv", "the scenario", "ours"),
    ("sample.csv", "rounds_mean,2", "rounds_mean,3"),
    ("sample.csv", "rounds_mean,2", "rounds_mean,"),
]


def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """Return the folder of a claim with records, and the options that name it."""
    monkeypatch.setenv(tree.VARIABLE, "1")
    claim = write(tmp_path)
    folder = ["--experiments", str(claim.parent), "--quiet"]
    main(["check", "--full", "--record", *folder])
    main(["check", "--record", *folder])
    return claim, folder


@pytest.mark.parametrize(("name", "old", "new"), EDITS)
def test_an_edited_record_fails_the_check(
    name: str, old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """#52: five of six kinds of edit passed."""
    claim, folder = recorded(tmp_path, monkeypatch)
    text = (claim / name).read_text()
    assert old in text
    (claim / name).write_text(text.replace(old, new, 1))
    for words in (["--known"], ["--full", "--known"], ["--record"]):
        assert main(["check", *words, *folder]) == 1, words
        assert f"small/{name}: was edited since it was recorded" in capsys.readouterr().err
    assert main(["check", "--full", "--record", "--accept", *folder]) in (0, 1)
    main(["check", "--record", *folder])
    assert records.edited(claim) == []


def test_a_value_that_drifts_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """#52: a value drifted within its tolerance unnoticed, and the sample was compared with the record of all trials."""
    claim, folder = recorded(tmp_path, monkeypatch)
    expected = (claim / "expected.csv").read_text().replace("rounds_mean,2,2,0", "rounds_mean,2,2.1,50%")
    (claim / "expected.csv").write_text(expected)
    records.write(claim)
    assert main(["check", "--full", "--known", *folder]) == 1
    assert "rounds_mean: recorded 2.1, now 2" in capsys.readouterr().err
    assert main(["check", "--known", *folder]) == 0, "the sample is as it was recorded"


def digits(text: str) -> list[int]:
    """Positions of the digits of a text."""
    return [at for at, character in enumerate(text) if character.isdigit()]


def copy_of_records(root: Path) -> Path:
    """A copy of all claims, without pictures."""
    for plan in (ROOT / "experiments").glob("*/plan.toml"):
        for path in plan.parent.iterdir():
            if path.suffix in (".toml", ".csv", ".sha256") or path.name == "run.py":
                (root / path.parent.name).mkdir(exist_ok=True)
                (root / path.parent.name / path.name).write_bytes(path.read_bytes())
    return root


def test_any_edited_digit_of_a_record_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """#52: all digits of plans and values with ANABRANCH_LONG=1, else a few of each file."""
    root = copy_of_records(tmp_path)
    assert claims.edited(root) == []
    drawn = random.Random(52)
    files = [path for hashes in root.glob("*/recorded.sha256") for path in hashes.parent.iterdir()]
    files = [path for path in files if path.name in (*records.records(path.parent), records.HASHES)]
    assert len(files) > 30
    for path in files:
        text = path.read_text(encoding="utf-8")
        places = digits(text)
        is_whole = bool(os.environ.get("ANABRANCH_LONG")) and not text.startswith(records.POINTS)
        for at in places if is_whole else drawn.sample(places, min(5, len(places))):
            path.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :], encoding="utf-8")
            assert main(["check", path.parent.name, "--known", "--experiments", str(root)]) == 1, (path, at)
            assert "since it was recorded" in capsys.readouterr().err
        path.write_text(text, encoding="utf-8")
    assert claims.edited(root) == []


def test_a_removed_added_or_unreadable_record_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of_records(tmp_path)
    expected = (root / "incast" / "expected.csv").read_text(encoding="utf-8")
    contents = {
        "expected.csv": expected.replace("10%", "ten", 1),
        "sample.csv": None,
        "recorded.sha256": None,
        "lttp.csv": None,
        "other.csv": "# points: seed=1\n",
    }
    for name, text in contents.items():
        path = root / "incast" / name
        kept = path.read_bytes() if path.is_file() else None
        path.unlink(missing_ok=True) if text is None else path.write_text(text, encoding="utf-8")
        assert main(["check", "incast", "--known", "--experiments", str(root)]) == 1, name
        assert f"incast/{name}: " in capsys.readouterr().err
        path.unlink(missing_ok=True) if kept is None else path.write_bytes(kept)
    assert claims.edited(root) == []


def test_committed_records_match_their_hashes() -> None:
    assert claims.edited(ROOT / "experiments") == []
    found = claims.read_all(ROOT / "experiments").values()
    runnable = [claim for claim in found if claim.command is None]
    assert [claim.name for claim in runnable if not claim.sample] == []
    assert all(one.ours for claim in runnable for one in claim.expected.values())


#: Rows of a changed tree by experiment, and files of points; each README has the reason. Counts
#: only shrink.
CHANGED_TREES = {"codedbulk-throughput": 24, "lttp": 18}


def test_committed_rows_name_a_commit() -> None:
    """#52: rows of a commit with changes cannot be made again."""
    found: collections.Counter[str] = collections.Counter()
    for path in (ROOT / "experiments").glob("**/*.csv"):
        lines = path.read_text(encoding="utf-8").splitlines()
        changed = sum(bool(re.search(r"\b[0-9a-f]{7,40}(?:\+|-dirty)", line)) for line in lines)
        found[path.relative_to(ROOT / "experiments").parts[0]] += changed
    assert {name: count for name, count in found.items() if count} == CHANGED_TREES


def test_rows_of_a_changed_tree_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """#52: all points of two claims name a commit with changes, which cannot be built again."""
    monkeypatch.delenv(tree.VARIABLE, raising=False)
    claim = write(tmp_path)
    (tmp_path / "crates").mkdir()
    source = tmp_path / "crates" / "lib.rs"
    source.write_text("one")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    tree.refuse_changes(claim)
    source.write_text("two")
    folder = ["--experiments", str(claim.parent), "--quiet"]
    for words in (["figures", "--full"], ["check", "--record"]):
        assert main([*words, *folder]) == 1
        assert "rows of a changed tree (crates/lib.rs)" in capsys.readouterr().err
    cells.write_csv(tmp_path / "runs.csv", [{"a": 1}])
    with pytest.raises(tree.ChangedTreeError):
        cells.write_csv(claim / "measured.csv", [{"a": 1}])
    monkeypatch.setattr(cells, "ROOT", tmp_path)
    assert cells.commit(dirty=True).endswith("-dirty")
    # Changed rows do not count as a changed tree, so several claims can be recorded in turn.
    source.write_text("one")
    (claim / "expected.csv").write_text(EXPECTED + "\n")
    tree.refuse_changes(claim)
    assert "dirty" not in cells.commit(dirty=True)


def test_figures_and_run_directories_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claim = write(tmp_path)
    arguments = ["figures", "small", "--experiments", str(claim.parent), "--quiet"]
    assert main(arguments) == 0
    sample = tmp_path / "runs" / "lab" / "small" / "sample"
    assert (sample / "servers" / "sweep.json").is_file()
    names = {"goodput.svg", "goodput-dark.svg", "goodput.png", "goodput-dark.png"}
    assert names <= {path.name for path in sample.iterdir()}
    first = (sample / "goodput.svg").read_bytes()
    # A second run replaces the output of the first, and equal figures are equal files.
    assert main(arguments) == 0
    assert (sample / "goodput.svg").read_bytes() == first
    assert main([*arguments, "--full"]) == 0
    assert names <= {path.name for path in claim.iterdir()}
    assert "goodput-dark.png" in capsys.readouterr().out


def test_figures_are_redrawn_from_their_stored_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """#17: a change of style needed an hour of runs, because rows of figures were not kept."""
    claim = write(tmp_path)
    arguments = ["figures", "small", "--experiments", str(claim.parent), "--quiet"]
    again = [*arguments, "--redraw", "--binary", "/nowhere"]
    assert main(again) == 2
    assert "goodput.csv: no points of this figure: run `anabranch-lab figures small`" in capsys.readouterr().err
    assert main([*again, "--full"]) == 2
    assert main([*arguments, "--full"]) == 0
    drawn = {path: path.read_bytes() for path in claim.glob("goodput*.*g")}
    for path in drawn:
        path.unlink()
    assert main(again) == 0
    assert len(drawn) == 4
    assert all(path.read_bytes() == picture for path, picture in drawn.items())
    points = claim / "goodput.csv"
    points.write_text(points.read_text().replace("mean", "average"))
    assert main(again) == 2
    assert "no column `mean`" in capsys.readouterr().err
    # A user's data under that name are neither read as points nor replaced by points.
    points.write_text("transfer,took_s\n1,2.5\n")
    for command in (again, [*arguments, "--full"]):
        assert main(command) == 2
        assert "no points of a figure" in capsys.readouterr().err
    assert points.read_text() == "transfer,took_s\n1,2.5\n"


def test_figure_may_have_curves_of_several_sweeps(tmp_path: Path) -> None:
    again = PLAN.split("[[sweep]]")[1].split("[[metric]]")[0].replace('"servers"', '"others"')
    plan = PLAN.replace("[[metric]]", f"[[sweep]]{again}[[metric]]", 1).split("[[figure]]", maxsplit=1)[0]
    plan += """[[figure]]
name = "time"
table = "series"
x = "time_s"
y = "goodput_mbps"
to = 0.001
title = "Over time"
x_label = "time, s"
y_label = "goodput, Mbit/s"
[[figure.curve]]
label = "one"
sweep = "servers"
where = { "what" = "flow 0", "workload.servers" = 2 }
[[figure.curve]]
label = "other"
sweep = "others"
where = { "what" = "flow 1", "trial" = 0 }
[[figure.curve]]
label = "nowhere"
sweep = "others"
where = { "what" = "flow 7" }
"""
    folder = write(tmp_path, plan)
    (folder / "small.toml").write_text(SCENARIO + '[probe]\ninterval = "100 us"\nflows = 2\n')
    claim = Claim.read(folder)
    shown = claim.figures[0].rows(claim.run(full=True, progress=False))
    assert set(shown[claims.CURVE]) == {"one", "other"}
    assert 0 < shown["time_s"].max() <= 0.001
    assert set(shown["what"]) == {"flow 0", "flow 1"}


@pytest.mark.skipif(not os.environ.get("ANABRANCH_LONG"), reason="takes minutes: set ANABRANCH_LONG=1")
def test_the_sample_of_codedbulk_is_as_recorded() -> None:
    folder = ["--experiments", str(ROOT / "experiments")]
    assert main(["check", "codedbulk-full-rate", "--known", "--quiet", *folder]) == 0


def test_samples_are_as_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["check", "incast", "lttp", "--known", "--json", "--quiet", "--experiments", str(ROOT / "experiments")])
        == 0
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ours = [row for row in rows if "counted" in row["metric"]]
    assert len(ours) > 10
    assert [row["metric"] for row in ours if not row["ok"]] == []
    assert all(row["own"] for row in ours)
    falls = [row for row in rows if row["metric"].endswith("fall_share")]
    assert falls
    assert all(row["ok"] for row in falls)


def test_the_repositorys_claims_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    known = claims.read_all(ROOT / "experiments")
    assert known["incast"].command is None
    assert known["replicate-peers"].command == "python3 experiments/replicate-peers/run.py"
    assert all(one.ours for one in known["incast"].expected.values())
    assert main(["list", "--json", "--experiments", str(ROOT / "experiments")]) == 0
    listed = [json.loads(line)["claim"] for line in capsys.readouterr().out.splitlines()]
    assert {"incast", "codedbulk-throughput", "replicate-peers"} <= set(listed)


def test_unknown_claim_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    assert main(["check", "big", "--experiments", str(tmp_path / "experiments")]) == 2
    assert capsys.readouterr().err == "anabranch-lab: no claim `big`: there are small\n"
    assert main(["list", "--experiments", str(tmp_path / "none")]) == 2
    assert main(["check", "--experiments", str(tmp_path / "experiments"), "--jobs", "0", "--quiet"]) == 2
    assert capsys.readouterr().err.endswith("anabranch-lab: jobs 0: must be at least 1\n")
