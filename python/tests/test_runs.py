"""Runs and sweeps: the same rows wherever and however they ran."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import anabranch_lab as lab
from anabranch_lab import binary as binaries
from anabranch_lab import runs
from anabranch_lab.batches import Batch, execute

OVER: dict[str, list[Any]] = {"workload.block": ["8 KiB", "16 KiB"], "workload.servers": [8, 1, 2]}


def test_sweep_gives_the_rows_of_one_call(star: lab.Scenario) -> None:
    whole = lab.run(star.set({"sweep": OVER}), trials=23).rows
    swept = lab.sweep(star, OVER, trials=23, jobs=3).rows
    pd.testing.assert_frame_equal(whole, swept)
    assert list(swept.columns[:5]) == ["workload.block", "workload.servers", "trial", "seed", "workload"]
    assert list(swept["trial"][:23]) == list(range(23))
    assert list(swept["seed"][:23]) == list(range(1, 24))
    assert swept["event_hash"].nunique() > 100


def test_a_dask_cluster_gives_the_same_rows(star: lab.Scenario) -> None:
    distributed = pytest.importorskip("distributed")
    here = lab.sweep(star, {"workload.servers": [2]}, trials=200, cache=False)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        there = lab.sweep(star, {"workload.servers": [2]}, trials=200, cluster=cluster.scheduler_address, cache=False)
        with pytest.raises(lab.ScenarioError, match=r"workload\[0\]\.servers"):
            lab.sweep(star, {"workload.servers": [1, 99]}, cluster=cluster.scheduler_address)
    brief = lab.sweep(star, {"workload.servers": [2]}, trials=20, cluster="local", cache=False)
    pd.testing.assert_frame_equal(brief.rows, here.rows.head(20))
    assert len(here.rows) == 200
    pd.testing.assert_frame_equal(here.rows, there.rows)


def test_missing_cluster_is_reported() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(lab.RunError, match="no Dask scheduler answers"):
        next(runs._dask([], binaries.find(), "nonsense://"))


def test_another_build_on_a_worker_is_refused(star: lab.Scenario) -> None:
    batch = Batch("s.toml", star.text, (), (), 1, 1, 0, tables=False, digest="0" * 32)
    with pytest.raises(lab.RunError, match="install the same wheel"):
        execute(batch)


def test_sweeps_of_the_scenario_file_are_run(star: lab.Scenario) -> None:
    rows = lab.sweep(star.set({"sweep": {"workload.servers": [1, 2]}}), {"workload.block": ["8 KiB"]}).rows
    assert rows[["workload.servers", "workload.block"]].to_numpy().tolist() == [[1, "8 KiB"], [2, "8 KiB"]]


def test_stored_batches_do_not_run_again(star: lab.Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    star = star.set({"seed": 1_000})
    calls = []

    def counted(batch: Batch, *rest: object) -> dict[str, bytes]:
        calls.append(batch.trials)
        return execute(batch, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "execute", counted)
    first = lab.sweep(star, trials=20)
    assert calls == [10, 10]
    again = lab.sweep(star, trials=20)
    assert calls == [10, 10]
    pd.testing.assert_frame_equal(first.rows, again.rows)
    # With more trials, only the new batches run. With another setting, a changed binary or
    # `cache=False`, all batches run.
    lab.sweep(star, trials=25)
    assert calls == [10, 10, 5]
    lab.sweep(star.set({"workload.rounds": 3}), trials=1)
    lab.sweep(star, trials=20, cache=False)
    assert calls == [10, 10, 5, 1, 10, 10]


def test_key_depends_on_the_binary(star: lab.Scenario, tmp_path: Path) -> None:
    other = tmp_path / "anabranch"
    shutil.copy(binaries.find().path, other)
    with other.open("ab") as file:
        file.write(b"another build")
    assert binaries.find(other).digest != binaries.find().digest


def test_refused_scenario_raises_the_binarys_line(star: lab.Scenario) -> None:
    with pytest.raises(lab.ScenarioError) as caught:
        lab.run(star.set({"network.queue": "1 lightyear"}))
    assert "\n" not in caught.value.message
    assert "network.queue" in caught.value.message
    with pytest.raises(lab.ScenarioError, match=r"at workload\.servers = 99"):
        lab.sweep(star, {"workload.servers": [1, 99]})


@pytest.mark.parametrize(
    ("options", "message"),
    [({"trials": 0}, "at least 1"), ({"over": {"seed": []}}, "at least one"), ({"jobs": 0}, "at least 1")],
)
def test_wrong_arguments_are_refused(star: lab.Scenario, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lab.sweep(star, **options, cache=False)


def test_results_are_kept_and_read_back(star: lab.Scenario, tmp_path: Path) -> None:
    one = lab.run(star, out=tmp_path / "run")
    assert one.path == tmp_path / "run"
    assert (tmp_path / "run" / "run.json").is_file()
    pd.testing.assert_frame_equal(lab.Result.read(tmp_path / "run").rows, one.rows)
    many = lab.sweep(star, OVER, trials=2, out=tmp_path / "sweep")
    back = lab.Result.read(tmp_path / "sweep")
    pd.testing.assert_frame_equal(back.rows, many.rows)
    assert back.about == many.about
    assert back.about["seed"] == 1
    assert lab.Scenario(back.about["scenario"]) == star
    with pytest.raises(FileExistsError, match="name a new folder"):
        lab.sweep(star, out=tmp_path / "sweep")
    with pytest.raises(FileNotFoundError, match="no run that ended"):
        lab.Result.read(tmp_path)


def test_tables_are_joined_in_the_order_of_the_rows(star: lab.Scenario, tmp_path: Path) -> None:
    # A binary that also writes flows, whether or not the real one does.
    fake = tmp_path / "anabranch"
    fake.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import json, pathlib, subprocess, sys
        code = subprocess.call(["{binaries.find().path}", *sys.argv[1:]])
        if "--out" in sys.argv and code == 0:
            import pyarrow as pa, pyarrow.parquet as pq
            out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
            rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
            flows = [
                {{"workload.servers": r["workload.servers"], "trial": r["trial"], "seed": r["seed"], "from": f"h{{n}}",
                  "size_bytes": n or None, "fct_us": r["trial"] / 2 if r["seed"] > 10 else None}}
                for r in rows for n in range(2)
            ]
            table = pa.Table.from_pylist(flows)
            # The real binary gives a column without values the type string.
            if table.schema.field("fct_us").type == pa.null():
                table = table.set_column(5, "fct_us", pa.nulls(len(flows), pa.string()))
            pq.write_table(table, out / "flows.parquet")
        sys.exit(code)
        """)
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    over: dict[str, list[Any]] = {"workload.servers": [2, 1]}
    result = lab.sweep(star, over, trials=12, tables=True, binary=fake)
    keys = ["workload.servers", "trial", "seed"]
    assert result.flows[keys].iloc[::2].to_numpy().tolist() == result.rows[keys].to_numpy().tolist()
    assert str(result.flows["size_bytes"].dtype) == "Int64"
    assert str(result.flows["fct_us"].dtype) == "float64"
    assert list(result.flows["fct_us"].isna()) == list(result.flows["seed"] <= 10)
    result.save(tmp_path / "kept")
    pd.testing.assert_frame_equal(lab.Result.read(tmp_path / "kept").flows, result.flows)
    rows_only = lab.sweep(star, over, trials=12, binary=fake)
    with pytest.raises(lab.NoTableError, match="tables=True"):
        _ = rows_only.flows


def test_sweep_has_the_tables_of_one_call() -> None:
    scenario = lab.Scenario(
        {
            "duration": "20 ms",
            "network": {"topology": "star", "hosts": 4},
            "workload": {"kind": "poisson", "load": 0.5, "sizes": "100 kB"},
        }
    )
    over = {"workload.sizes": ["100 kB", "20 kB"]}
    swept = lab.sweep(scenario, over, trials=12, tables=True)
    whole = lab.run(scenario.set({"sweep": over}), trials=12)
    pd.testing.assert_frame_equal(swept.rows, whole.rows)
    try:
        pd.testing.assert_frame_equal(swept.flows, whole.flows)
        pd.testing.assert_frame_equal(swept.links, whole.links)
    except lab.NoTableError as error:
        pytest.skip(f"this binary writes no tables: {error}")


def test_named_file_that_is_no_binary_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(lab.BinaryNotFoundError, match="cargo build --release"):
        binaries.find(tmp_path / "none")
    monkeypatch.setenv("ANABRANCH_BIN", str(tmp_path / "none"))
    with pytest.raises(lab.BinaryNotFoundError, match="ANABRANCH_BIN"):
        binaries.find()


SLOW = """\
import anabranch_lab as lab, sys
star = lab.Scenario({
    "seed": 5_000, "duration": "1000 s",
    "network": {"topology": "star", "hosts": 3},
    "workload": {"kind": "long", "pairs": [["h0", "h1"]]},
})
short = star.set({"duration": "1 ms"})
lab.sweep(short, trials=1)
print("ready", flush=True)
try:
    lab.sweep(star, trials=40, jobs=2)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_an_interrupt_ends_all_processes(cache: Path) -> None:
    # The tests may run in the background with SIGINT ignored, which child processes inherit.
    program = subprocess.Popen(
        [sys.executable, "-c", SLOW],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 60
        while not children_of(program.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        running = children_of(program.pid)
        assert running
        program.send_signal(signal.SIGINT)
        assert program.wait(timeout=60) == 130
        assert not [pid for pid in running if Path(f"/proc/{pid}").exists()]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.stdout.close() if program.stdout else None


def children_of(pid: int) -> list[str]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [child for task in tasks for child in (task / "children").read_text().split()]
    except FileNotFoundError:
        return []
