"""Circuits between racks: schedulers beside their bound, and Figure 2.7 of Etalon in the simulator.

``run.py schedulers`` runs ``cargo xtask bench circuit --json``. ``run.py buffers`` simulates scenarios/circuit.toml, with fixed queues and with queues that
grow before their day. Rows go to a folder, a file for each. ``run.py docs`` writes the tables of docs/circuit.md anew from the committed rows.
``run.py smoke`` checks these tables and simulates one short run.

Read first: `use`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, ROOT, XTASK, Experiment, Row, grouped, read_csv, table, write_csv
from anabranch_lab.programs import Failed, json_lines

LAB = Experiment(__file__, __doc__)
MEASURED = LAB.folder / "measured"
DOCUMENT = ROOT / "docs/circuit.md"
SCENARIO = ROOT / "scenarios/circuit.toml"
#: Rate of a circuit, and the share of the week in which the pair of the scenario has one.
CIRCUIT_BPS = 80e9
DAY_SHARE = 180 / 1_400
#: Times before the day at which a queue of 16 packets grows to 128, in microseconds.
AHEAD_US = (200, 600, 1_000, 1_400)


def use(row: Row) -> float:
    """Return the share of the circuit's capacity that a run used in the days of its pair."""
    return float(row["circuit_bytes"]) * 8 / (float(row["simulated_s"]) * DAY_SHARE * CIRCUIT_BPS)


def simulated(binary: Path, *options: str) -> list[Row]:
    """Return a row for each run of the scenario."""
    found = json_lines(
        [binary, "-q", "simulate", SCENARIO, "--json", *(word for option in options for word in ("--set", option))]
    )
    columns = (
        "simulated_s",
        "circuit_bytes",
        "packet_network_bytes",
        "dropped_queue_full",
        "goodput_mbps",
        "event_hash",
    )
    return [
        {
            "queue_packets": row.get("circuit.queue_packets", ""),
            "ahead_us": "",
            **{column: row[column] for column in columns},
        }
        for row in found
    ]


@LAB.verb(rows=LAB.runs, binary=BINARY)
def buffers(args) -> int:
    """Simulates queues of 4 to 128 packets, and queues that grow before their day."""
    rows = simulated(args.binary)
    for ahead in AHEAD_US:
        grown = simulated(
            args.binary,
            "sweep={}",
            "circuit.queue_packets=16",
            "circuit.resize_packets=128",
            f'circuit.resize_ahead="{ahead} us"',
        )
        rows += [row | {"queue_packets": "16 to 128", "ahead_us": ahead} for row in grown]
    args.rows.mkdir(parents=True, exist_ok=True)
    write_csv(args.rows / "buffers.csv", rows)
    return 0


@LAB.verb(rows=LAB.runs, xtask=XTASK)
def schedulers(args) -> int:
    """Runs the schedulers' bench."""
    found = json_lines([args.xtask, "bench", "circuit", "--json", "--racks", 128])
    args.rows.mkdir(parents=True, exist_ok=True)
    rounded = [
        {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()} for row in found
    ]
    write_csv(args.rows / "schedulers.csv", [row for row in rounded if "scheduler" in row])
    write_csv(args.rows / "comparison.csv", [row for row in rounded if "draws" in row])
    return 0


def schedulers_table(rows: Sequence[Row]) -> str:
    """Return a line for each demand of 16 and more racks, with each scheduler's share of the bound and its time."""
    names = list(dict.fromkeys(row["scheduler"] for row in rows))
    lines = []
    for (racks, demand), of in grouped(rows, "racks", "demand").items():
        if int(racks) < 16:
            continue
        shown = {
            row[
                "scheduler"
            ]: f"{100 * float(row['served_bytes']) / float(row['bound_bytes']):.1f} ({float(row['decision_us']):,.0f})"
            for row in of
        }
        lines.append([racks, demand, *(shown[name] for name in names)])
    return table(["racks", "demand", *(f"`{name}`" for name in names)], lines, "llr")


def buffers_table(rows: Sequence[Row]) -> str:
    """Return the use of the circuit by the size of a queue, and by the time before the day at which it grows."""
    fixed = [row for row in rows if row["ahead_us"] == ""]
    grown = [row for row in rows if row["ahead_us"] != ""]
    line = lambda rows: [["use of the circuit, %", *(f"{100 * use(row):.0f}" for row in rows)]]
    sizes = table(["queue, packets", *(row["queue_packets"] for row in fixed)], line(fixed), "lr")
    times = table(
        ["queue grows from 16 to 128 packets, µs ahead", *(f"{int(row['ahead_us']):,}" for row in grown)],
        line(grown),
        "lr",
    )
    return f"{sizes}\n\n{times}"


def document() -> str:
    """Return docs/circuit.md with the tables of the committed rows."""
    (comparison,) = read_csv(MEASURED / "comparison.csv")
    draws, mean, least, below = (comparison[name] for name in ("draws", "ratio_mean", "ratio_min", "below"))
    compared = (
        f"On {draws} drawn demands of 8 to 32 racks `refit` served {100 * (float(mean) - 1):.1f} % more than Eclipse in the mean, less on {below} of them, and "
        f"{100 * (1 - float(least)):.1f} % less at the worst."
    )
    texts = [
        buffers_table(read_csv(MEASURED / "buffers.csv")),
        f"{schedulers_table(read_csv(MEASURED / 'schedulers.csv'))}\n\n{compared}",
    ]
    text = DOCUMENT.read_text()
    for name, new in zip(("buffers", "schedulers"), texts, strict=True):
        begin, end = f"<!-- {name}: from experiments/circuit/measured -->\n", f"<!-- end of {name} -->\n"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{new}\n\n{end}{rest.split(end)[1]}"
    return text


@LAB.verb()
def docs(args) -> int:
    """Writes the tables of docs/circuit.md anew from the committed rows."""
    DOCUMENT.write_text(document())
    return 0


@LAB.verb(binary=BINARY)
def smoke(args) -> int:
    """Checks the tables of docs/circuit.md and simulates one short run."""
    if document() != DOCUMENT.read_text():
        raise Failed("docs/circuit.md: other tables than its rows make: run `python3 experiments/circuit/run.py docs`")
    (row,) = simulated(args.binary, "sweep={}", 'duration="14 ms"', "circuit.queue_packets=128")
    if not 0 < use(row) <= 1:
        raise Failed(f"the circuit carries something, and at most its rate: {row}")
    print(f"circuit: {100 * use(row):.0f} % of the circuit in 14 ms")
    return 0


if __name__ == "__main__":
    sys.exit(LAB.main())
