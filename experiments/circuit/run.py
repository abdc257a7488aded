"""Circuits between racks: schedulers compared with their bound, and TCP over circuits in the
simulator (Figures 2.6 to 2.11 of Etalon, and its second setting).

``run.py schedulers`` runs ``cargo xtask bench circuit --json``. ``run.py tcp`` simulates
scenarios/circuit.toml with queues of many sizes, queues that grow before their day, delays, nights
and congestion controls; ``run.py sequence`` captures its packets. ``run.py validation`` emulates
Table 2.1, and ``run.py emulated`` the fixed queues of Figure 2.7, both under the time dilation that
this machine needs. ``run.py rings`` simulates scenarios/rings.toml: circuits that follow demand;
``run.py rings-emulated`` has programs announce that demand on real kernels. ``run.py jobs`` runs
``cargo xtask bench jobs``. Rows go to a folder, a file for each verb. ``run.py draw`` draws the week
from the rows of ``sequence``. ``run.py docs`` writes the tables of docs/circuit.md from the
committed rows. ``run.py smoke`` checks these tables and simulates short runs.

Read first: `tcp.cells`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
import jobs
import ring_emulated
import ring_load
import tcp
import week_figure
from anabranch_lab.cells import BINARY, ROOT, XTASK, Experiment, Option, Row, Rows, filled, grouped, measure, read_csv, rounded, table, write_csv
from anabranch_lab.programs import Failed, json_lines

LAB = Experiment(__file__, __doc__)
MEASURED = LAB.folder / "measured"
DOCUMENT = ROOT / "docs/circuit.md"
VALIDATION = ROOT / "scenarios/circuit-validation.toml"
#: Columns of an emulated run's clock and kernel.
CLOCK = ("dilation", "lateness_us_p99", "lateness_day_share", "trusted", "congestion_control", "unstretched", "why")
#: Quantities of Table 2.1: column, value by the timetable and the rates, and the thesis's mean and
#: standard deviation.
TABLE_2_1 = (
    ("day, µs", "day_us", 180, "180.25 ± 0.04"),
    ("week, µs", "week_us", 1_400, "1,400.02 ± 0.05"),
    ("packet network, Gbit/s", "packet_gbps", 10, "9.93 ± 0.75"),
    ("circuit, Gbit/s", "circuit_gbps", 80, "79.99 ± 1.60"),
)


@LAB.verb("tcp", rows=LAB.runs, binary=BINARY, jobs=2)
def tcp_runs(args) -> int:
    """Simulates TCP over circuits, in all cells that have no row."""
    rows, cells = Rows(args.rows / "tcp.csv", tcp.KEY, line_end="\n"), list(tcp.cells())
    code = measure(rows, cells, lambda cell: tcp.measured(args.binary, cell), args.jobs)
    order = {rows.cell(cell): number for number, cell in reversed(list(enumerate(cells)))}
    kept = [row for row in rows.read() if rows.cell(row) in order]
    rows.write(sorted(kept, key=lambda row: order[rows.cell(row)]))
    return code


@LAB.verb("jobs", rows=LAB.runs, xtask=XTASK, only=Option(help="kind of rows; all without it", choices=tuple(jobs.FILES)))
def jobs_runs(args) -> int:
    """Runs the bench of training jobs on parallel switches."""
    jobs.measure(args.xtask, args.rows, args.only)
    return 0


@LAB.verb(rows=LAB.runs, binary=BINARY)
def sequence(args) -> int:
    """Simulates Figure 2.6: bytes sent by phase of the week."""
    names = ("control", "queue", "resize", "ahead_us")
    found = [
        {name: cell[name] for name in names} | row
        for cell in tcp.sequence_cells()
        for row in tcp.sequence(args.binary, cell)
    ]
    args.rows.mkdir(parents=True, exist_ok=True)
    write_csv(args.rows / "sequence.csv", found)
    return 0


@LAB.verb(rows=MEASURED, folder=LAB.folder)
def draw(args) -> int:
    """Draws Figure 2.6, and the rate of both networks over the week, in two themes."""
    print(*week_figure.draw(read_csv(args.rows / "sequence.csv"), args.folder), sep="\n")
    return 0


@LAB.verb(rows=LAB.runs, binary=BINARY)
def rotor(args) -> int:
    """Simulates circuits alone, with TCP between all pairs of hosts."""
    args.rows.mkdir(parents=True, exist_ok=True)
    write_csv(args.rows / "rotor.csv", tcp.rotor(args.binary))
    return 0


@LAB.verb(rows=LAB.runs, binary=BINARY, jobs=2)
def figures(args) -> int:
    """Runs `tcp`, `sequence` and `rotor`."""
    return tcp_runs(args) or sequence(args) or rotor(args)


@LAB.verb(
    rows=LAB.runs,
    binary=BINARY,
    seeds=Option(1, "runs of each scheme; runs that have rows are not repeated"),
    duration=Option("2 s", "simulated time of a run"),
    only=Option([], "schemes to run; all without it"),
)
def rings(args) -> int:
    """Simulates rings of big flows on circuits that follow demand."""
    rows = Rows(args.rows / "rings.csv", ring_load.KEY, ring_load.COLUMNS, line_end="\n")
    cells = [cell for cell in ring_load.cells(args.seeds) if not args.only or cell["scheme"] in args.only]
    return measure(rows, cells, lambda cell: ring_load.measured(args.binary, cell, args.duration))


@LAB.verb(
    "rings-emulated",
    rows=LAB.runs,
    binary=BINARY,
    library=Option(ROOT / "target/release/libanabranch_preload.so", "library that announces what programs send", kind=Path),
    seconds=Option(float(ring_emulated.SECONDS), "time of the network in a run"),
    dilation=Option(0, "dilation of emulated runs; 0 measures it in each", kind=int),
    cells=Option(0, "runs at the most; 0 for all that have no row", kind=int),
)
def rings_emulated(args) -> int:
    """Emulates and simulates rings of big flows on circuits that follow demand, cell by cell."""
    rows = Rows(args.rows / "rings-emulated.csv", ring_emulated.KEY, line_end="\n")
    cells = rows.missing(ring_emulated.CELLS)[: args.cells or None]
    return measure(rows, cells, lambda cell: ring_emulated.measured(args.binary, args.library, cell, args.seconds, args.dilation))


@LAB.verb(
    rows=LAB.runs,
    binary=BINARY,
    library=Option(ROOT / "target/release/libanabranch_preload.so", "library that announces what programs send", kind=Path),
    seconds=Option(0.4, "time of the network in a run"),
    dilation=Option(300, "dilation of the runs"),
)
def fetches(args) -> int:
    """Emulates a ring of files that nginx sends and curl fetches."""
    rows = Rows(args.rows / "fetches.csv", ("scheme",), line_end="\n")
    cells = [{"scheme": name} for name in ring_emulated.FETCHES]
    return measure(rows, cells, lambda cell: ring_emulated.fetch(args.binary, args.library, cell["scheme"], args.seconds, args.dilation))


def on_real_kernels(binary: Path, scenario: Path, columns: Sequence[str], *options: str) -> list[Row]:
    """Return a row for each emulated run of a scenario, with these columns and the columns of its
    clock."""
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
    rows = on_real_kernels(args.binary, tcp.SCENARIO, ["circuit.queue_packets", *columns])
    args.rows.mkdir(parents=True, exist_ok=True)
    write_csv(args.rows / "emulated.csv", rows)
    return 0


@LAB.verb(rows=LAB.runs, xtask=XTASK)
def schedulers(args) -> int:
    """Runs the schedulers' bench."""
    found = json_lines([args.xtask, "bench", "circuit", "--json", "--racks", 128])
    args.rows.mkdir(parents=True, exist_ok=True)
    rows = [{key: rounded(value) for key, value in row.items()} for row in found]
    write_csv(args.rows / "schedulers.csv", [row for row in rows if "scheduler" in row])
    write_csv(args.rows / "comparison.csv", [row for row in rows if "draws" in row])
    return 0


def schedulers_table(rows: Sequence[Row], is_one_week: bool) -> str:
    """Return a line for each demand of 16 and more racks, with each scheduler's share of its bound and its time."""
    rows = [row for row in rows if (row["is_one_week"] == "True") == is_one_week and int(row["racks"]) >= 16]
    # Plans for several switches have no column: their demand fits the week.
    rows = [row for row in rows if row["scheduler"] != "parallel"]
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
    """Return Table 2.1 beside the emulated figures, with the emulator's lateness."""
    (row,) = rows
    lines = [
        [name, f"{wanted:,}", thesis, f"{float(row[f'{column}_mean']):,.2f} ± {float(row[f'{column}_sd']):.2f}"]
        for name, column, wanted, thesis in TABLE_2_1
    ]
    return f"{table(['quantity', 'set', 'thesis', 'emulated'], lines, 'lrrr')}\n\n{on_time(rows)}"


def emulated_use(row: Row) -> float:
    """Return the share of the circuit's capacity that an emulated run used in the days of its pair."""
    return tcp.use(tcp.cell("newreno", 16) | row | {"simulated_s": row["emulated_s"]})


def emulated_table(of: tcp.Measured, rows: Sequence[Row]) -> str:
    """Return the use of the circuit by the size of a queue under both clocks, with the emulator's lateness."""
    sizes = [int(row["circuit.queue_packets"]) for row in rows]
    lines = [
        ["simulated, %", *(tcp.percent(of[tcp.cell("newreno", size)]) for size in sizes)],
        ["emulated, %", *(f"{100 * emulated_use(row):.0f}" for row in rows)],
    ]
    return f"{table(['queue, packets', *map(str, sizes)], lines, 'lr')}\n\n{on_time(rows)}"


def document() -> str:
    """Return docs/circuit.md with the tables of the committed rows."""
    (comparison,) = read_csv(MEASURED / "comparison.csv")
    draws, mean, least, below = (comparison[name] for name in ("draws", "ratio_mean", "ratio_min", "below"))
    compared = (
        f"On {draws} drawn demands of 8 to 32 racks `refit` served {100 * (float(mean) - 1):.1f} % more than Eclipse on average. "
        f"On {below} of them it served less,\nby {100 * (1 - float(least)):.1f} % at the worst."
    )
    rows, of = read_csv(MEASURED / "schedulers.csv"), tcp.Measured(read_csv(MEASURED / "tcp.csv"))
    texts = {
        "claims": tcp.claims_table(of),
        "spreads": tcp.spreads_table(of),
        "sequence": tcp.sequence_table(read_csv(MEASURED / "sequence.csv")),
        "buffers": tcp.buffers_tables(of),
        "causes": tcp.causes_table(of),
        "delays": tcp.delays_table(of),
        "second": tcp.second_table(of),
        "nights": tcp.nights_table(of),
        "rivals": tcp.rivals_table(of),
        "rotor": tcp.rotor_table(read_csv(MEASURED / "rotor.csv")),
        "schedulers": f"{schedulers_table(rows, True)}\n\n{compared}",
        "other schedulers": schedulers_table(rows, False),
        **ring_load.document(read_csv(MEASURED / "rings.csv")),
        **jobs.document(MEASURED),
    }
    # Emulated rows may be missing, because they need a quiet machine.
    of_kernels = {
        "validation": validation_table,
        "emulated": lambda rows: emulated_table(of, rows),
        "rings-emulated": ring_emulated.document,
        "fetches": ring_emulated.fetch_table,
    }
    for name, shown in of_kernels.items():
        if rows := read_csv(MEASURED / f"{name}.csv"):
            texts[name] = shown(rows)
    return filled(DOCUMENT.read_text(), "experiments/circuit/measured", texts)


check_tables = LAB.tables_of(DOCUMENT, document)


@LAB.verb(binary=BINARY)
def smoke(args) -> int:
    """Checks the tables of docs/circuit.md and simulates short runs."""
    check_tables()
    grown = tcp.cell("retcp", 16, 128, 1_000, duration_ms=14)
    shown = grown | tcp.measured(args.binary, grown)
    if not 0 < tcp.use(shown) <= 1:
        raise Failed(f"the circuit carries something, and at most its rate: {shown}")
    sent = tcp.sequence(args.binary, tcp.cell("newreno", 128, duration_ms=42))
    if not 0 < sent[-1]["sent_bytes"] <= 1e3 * tcp.optimal_kb(1_400):
        raise Failed(f"a week carries something, and at most what both networks can: {sent[-1]}")
    print(f"circuit: {100 * tcp.use(shown):.0f} % of the circuit in 14 ms")
    return 0


if __name__ == "__main__":
    sys.exit(LAB.main())
