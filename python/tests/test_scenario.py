"""Scenarios: their contents, and that settings mean the same as to the binary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import anabranch_lab as lab
from anabranch_lab.scenario import Scenario

TRACE = "start_s,from,to,size_bytes\n0,h0,h1,{}\n"


def traced(folder: Path, size_bytes: int) -> Scenario:
    (folder / "flows.csv").write_text(TRACE.format(size_bytes))
    (folder / "traced.toml").write_text(
        '[network]\ntopology = "star"\nhosts = 3\n[workload]\nkind = "trace"\nfile = "flows.csv"\n'
    )
    return Scenario.from_file(folder / "traced.toml")


def test_settings_change_a_copy_only(star: Scenario) -> None:
    other = star.set({"network.queue": "128 KiB", "workload[0].servers": 4})
    assert other.table["network"]["queue"] == "128 KiB"
    assert other.table["workload"]["servers"] == 4
    assert star.table["network"]["queue"] == "64 KiB"
    assert other != star
    assert other.digest() != star.digest()


def test_changed_settings_give_the_rows_of_changed_text(star: Scenario) -> None:
    changed = star.set({"network.rate": "2 Gbit/s", "workload.servers": 3, "seed": 7, "transport.sack": False})
    pd.testing.assert_frame_equal(lab.run(changed).rows, lab.run(Scenario(changed.to_toml())).rows)


def test_single_workload_needs_no_index(star: Scenario) -> None:
    table = star.table
    listed = Scenario(table | {"workload": [table["workload"]]}).set({"workload.servers": 3})
    assert listed.table["workload"][0]["servers"] == 3
    pd.testing.assert_frame_equal(lab.run(listed).rows, lab.run(star.set({"workload.servers": 3})).rows)


@pytest.mark.parametrize("path", ["", "a..b", "workload[0]", "workload[3].servers", "network.hosts.x", "a.b]"])
def test_paths_to_no_setting_are_refused(star: Scenario, path: str) -> None:
    with pytest.raises(ValueError, match="`"):
        star.set({path: 1})


def test_numbers_of_numpy_and_ranges_are_accepted(star: Scenario) -> None:
    other = star.set({"workload.servers": np.int64(3), "sweep": {"seed": range(1, 3)}})
    assert other.sets == ("workload.servers=3", 'sweep={ "seed" = [1, 2] }')
    with pytest.raises(ValueError, match="finite"):
        star.set({"seed": float("nan")})
    with pytest.raises(ValueError, match="no value of a setting"):
        star.set({"seed": object()})


def test_wrong_toml_names_its_place(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[network\n")
    with pytest.raises(ValueError, match=r"bad\.toml: .*line 1"):
        Scenario.from_file(tmp_path / "bad.toml")


def test_named_files_are_included_and_hashed(tmp_path: Path) -> None:
    short = traced(tmp_path, 1_000)
    before, key = lab.run(short).rows, short.digest()
    long = traced(tmp_path, 1_000_000)
    after = lab.run(long).rows
    assert long.digest() != key
    assert after["fct_us_mean"].iloc[0] > 10 * before["fct_us_mean"].iloc[0]


def test_files_outside_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    scenario = traced(tmp_path / "inner", 1_000)
    (tmp_path / "flows.csv").write_text(TRACE.format(1))
    with pytest.raises(ValueError, match="beside the scenario"):
        lab.run(scenario.set({"workload.file": "../flows.csv"}))
