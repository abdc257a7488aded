"""Tables of experiments/circuit from rows in which no fixed queue reaches a use of the circuit."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from anabranch_lab.cells import read_csv

FOLDER = Path(__file__).resolve().parents[2] / "experiments/circuit"
SPEC = importlib.util.spec_from_file_location("circuit_tcp", FOLDER / "tcp.py")
assert SPEC is not None
assert SPEC.loader is not None
tcp = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tcp)


def test_claims_report_a_use_without_fixed_queue() -> None:
    rows = tcp.Measured(read_csv(FOLDER / "measured/tcp.csv"))
    for size in tcp.SIZES:
        rows[tcp.cell("newreno", size)]["circuit_bytes"] = "1"
    assert "| no fixed queue has its use |" in tcp.claims_table(rows)
