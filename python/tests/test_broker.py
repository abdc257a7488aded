"""The broker's optimiser beside HiGHS, which solves the same program exactly."""

from __future__ import annotations

import json
import os
import random
import subprocess
from typing import Any

import pytest
from oracle_highs import model, oracle

from anabranch_lab.binary import find

#: Number of instances: all with `ANABRANCH_LONG=1`, otherwise some of them.
INSTANCES = 100 if os.environ.get("ANABRANCH_LONG") else 25


def market(arguments: list[str]) -> dict[str, Any]:
    """A round's program with our answer."""
    command = [str(find().path), "-q", "broker", "market", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def oracle_costs(of: dict[str, Any], seconds: float) -> tuple[float, float]:
    """HiGHS's bound and the cost of its best answer."""
    found = oracle(model(of), seconds)
    return found.bound, found.cost


def check_capacities(of: dict[str, Any]) -> None:
    """Check that no cluster exceeds its capacity, and that every client is counted once."""
    used = [0] * len(of["clusters"])
    placed = [0] * len(of["groups"])
    for group, candidate, sessions in of["placed"]:
        place, bitrate_bps, _ = of["groups"][group]
        placed[group] += sessions
        if candidate is not None:
            used[of["places"][place][candidate][0]] += bitrate_bps * sessions
    assert all(use <= capacity for use, (capacity, _) in zip(used, of["clusters"], strict=True))
    assert placed == [sessions for _, _, sessions in of["groups"]]


def test_answers_are_within_their_certified_gaps() -> None:
    """Capacities range from ample to far too small; both solvers have a bound and an answer of each program."""
    draw = random.Random(1)
    exact = 0
    for seed in range(INSTANCES):
        capacity = 10 ** draw.uniform(-2.2, 0)
        networks = [str(draw.randint(2, 12)) for _ in range(draw.randint(2, 6))]
        sessions = draw.choice([20, 60, 150, 300])
        arguments = ["--seed", str(seed), "--sessions", str(sessions), "--capacity", f"{capacity:.4f}"]
        of = market([*arguments, "--networks", *networks])
        check_capacities(of)
        below, above = oracle_costs(of, 2.0)
        small = 1e-6 * of["cost"]
        assert of["bound"] <= above + small, f"{seed}: a bound above an answer"
        assert of["cost"] >= below - small, f"{seed}: cheaper than can be"
        gap = of["cost"] - of["bound"]
        assert of["cost"] - above <= gap + small, f"{seed}: farther from HiGHS than certified"
        exact += above - below <= small
    assert exact > INSTANCES / 2


def test_small_programs_are_solved_exactly() -> None:
    """A dozen clients are searched completely, also with capacity for only half of them."""
    for seed in range(10):
        of = market(["--seed", str(seed), "--sessions", "12", "--capacity", "0.02", "--networks", "4", "3"])
        _, best = oracle_costs(of, 10.0)
        assert of["cost"] == pytest.approx(best, rel=1e-6)
        assert of["bound"] == pytest.approx(best, rel=1e-6)
