"""Circuits between racks: schedulers beside their bound, and Table 2.1 and Figure 2.7 of Etalon.

``run.py schedulers`` runs ``cargo xtask bench circuit --json``. ``run.py buffers`` simulates scenarios/circuit.toml, with fixed queues and with queues that
grow before their day. ``run.py validation`` emulates Table 2.1, and ``run.py emulated`` the fixed queues of Figure 2.7, both under the time dilation that this
machine needs. Rows go to a folder, a file for each. ``run.py docs`` writes the tables of docs/circuit.md anew from the committed rows.
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
VALIDATION = ROOT / "scenarios/circuit-validation.toml"
#: Rate of a circuit, and the share of the week in which the pair of the scenario has one.
CIRCUIT_BPS = 80e9
DAY_SHARE = 180 / 1_400
#: Times before the day at which a queue of 16 packets grows to 128, in microseconds.
AHEAD_US = (200, 600, 1_000, 1_400)
#: Columns of an emulated run's clock and kernel.
CLOCK = ("dilation", "lateness_us_p99", "lateness_day_share", "trusted", "congestion_control", "unstretched", "why")
#: Quantities of Table 2.1: column, what the timetable and the rates say, and the thesis's mean and standard deviation.
TABLE_2_1 = (
    ("day, µs", "day_us", 180, "180.25 ± 0.04"),
    ("week, µs", "week_us", 1_400, "1,400.02 ± 0.05"),
    ("packet network, Gbit/s", "packet_gbps", 10, "9.93 ± 0.75"),
    ("circuit, Gbit/s", "circuit_gbps", 80, "79.99 ± 1.60"),
)


def use(row: Row) -> float:
    """Return the share of the circuit's capacity that a run used in the days of its pair."""
    seconds = float(row["simulated_s"] if "simulated_s" in row else row["emulated_s"])
    return float(row["circuit_bytes"]) * 8 / (seconds * DAY_SHARE * CIRCUIT_BPS)


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


def on_real_kernels(binary: Path, scenario: Path, columns: Sequence[str], *options: str) -> list[Row]:
    """Return a row for each emulated run of a scenario, with these columns and those of its clock."""
    found = json_lines([binary, "emulate", scenario, "--json", *options])
    shown = lambda value: "; ".join(value) if isinstance(value, list) else value
    return [{column: shown(row.get(column, "")) for column in (*columns, *CLOCK)} for row in found]


@LAB.verb(rows=LAB.runs, binary=BINARY)
def validation(args) -> int:
    """Emulates Table 2.1: TCP between all pairs of eight racks."""
    columns = [f"{column}_{figure}" for _, column, _, _ in TABLE_2_1 for figure in ("mean", "sd")]
    rows = on_real_kernels(args.binary, VALIDATION, ["emulated_s", "days", *columns, "goodput_mbps"])
    args.rows.mkdir(parents=True, exist_ok=True)
    write_csv(args.rows / "validation.csv", rows)
    return 0


@LAB.verb(rows=LAB.runs, binary=BINARY)
def emulated(args) -> int:
    """Emulates queues of 4 to 128 packets."""
    columns = ("emulated_s", "circuit_bytes", "packet_network_bytes", "dropped_queue_full", "goodput_mbps")
    rows = on_real_kernels(args.binary, SCENARIO, ["circuit.queue_packets", *columns])
    args.rows.mkdir(parents=True, exist_ok=True)
    write_csv(args.rows / "emulated.csv", rows)
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


def schedulers_table(rows: Sequence[Row], is_one_week: bool) -> str:
    """Return a line for each demand of 16 and more racks, with each scheduler's share of its bound and its time."""
    rows = [row for row in rows if (row["is_one_week"] == "True") == is_one_week and int(row["racks"]) >= 16]
    names = list(dict.fromkeys(row["scheduler"] for row in rows))
    lines = []
    for (racks, demand), of in grouped(rows, "racks", "demand").items():
        shown = {
            row["scheduler"]: f"{100 * float(row['served_bytes']) / float(row['bound_bytes']):.1f}"
            + (f" ({float(row['decision_us']):,.0f})" if is_one_week else "")
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


def on_time(rows: Sequence[Row]) -> str:
    """Return a sentence with the dilation and the lateness of emulated runs."""
    (dilation,) = {row["dilation"] for row in rows}
    (control,) = {row["congestion_control"] for row in rows}
    late, share = (max(float(row[name]) for row in rows) for name in ("lateness_us_p99", "lateness_day_share"))
    distrusted = sum(row["trusted"] not in ("True", "true") for row in rows)
    runs = "the run" if len(rows) == 1 else "each run"
    trust = f"{runs} is trusted" if not distrusted else f"{distrusted} of {len(rows)} runs are not trusted"
    (own,) = {row["unstretched"] for row in rows}
    return (
        f"Dilation {dilation}, measured; 99 % of the packets at most {late:.2f} µs late, {100 * share:.2f} % of a day, so {trust}. "
        f"Congestion control {control} of Linux; clocks not stretched: {own}."
    )


def validation_table(rows: Sequence[Row]) -> str:
    """Return Table 2.1 beside the emulated figures, and how late these were."""
    (row,) = rows
    lines = [
        [name, f"{wanted:,}", thesis, f"{float(row[f'{column}_mean']):,.2f} ± {float(row[f'{column}_sd']):.2f}"]
        for name, column, wanted, thesis in TABLE_2_1
    ]
    return f"{table(['quantity', 'set', 'thesis', 'emulated'], lines, 'lrrr')}\n\n{on_time(rows)}"


def emulated_table(simulated: Sequence[Row], rows: Sequence[Row]) -> str:
    """Return the use of the circuit by the size of a queue under both clocks, and how late the emulator was."""
    fixed = {row["queue_packets"]: row for row in simulated if row["ahead_us"] == ""}
    sizes = [row["circuit.queue_packets"] for row in rows]
    lines = [
        [name, *(f"{100 * use(row):.0f}" for row in of)]
        for name, of in (("simulated, %", [fixed[size] for size in sizes]), ("emulated, %", rows))
    ]
    return f"{table(['queue, packets', *sizes], lines, 'lr')}\n\n{on_time(rows)}"


def document() -> str:
    """Return docs/circuit.md with the tables of the committed rows."""
    (comparison,) = read_csv(MEASURED / "comparison.csv")
    draws, mean, least, below = (comparison[name] for name in ("draws", "ratio_mean", "ratio_min", "below"))
    compared = (
        f"On {draws} drawn demands of 8 to 32 racks `refit` served {100 * (float(mean) - 1):.1f} % more than Eclipse in the mean, less on {below} of them, and "
        f"{100 * (1 - float(least)):.1f} % less at the worst."
    )
    buffers, rows = read_csv(MEASURED / "buffers.csv"), read_csv(MEASURED / "schedulers.csv")
    texts = {
        "buffers": buffers_table(buffers),
        "validation": validation_table(read_csv(MEASURED / "validation.csv")),
        "emulated": emulated_table(buffers, read_csv(MEASURED / "emulated.csv")),
        "schedulers": f"{schedulers_table(rows, True)}\n\n{compared}",
        "other schedulers": schedulers_table(rows, False),
    }
    text = DOCUMENT.read_text()
    for name, new in texts.items():
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
