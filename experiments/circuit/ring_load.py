"""Rings of large flows on circuits that follow demand: Table 2.2 and Figures 2.13 to 2.17 of
Etalon, and schedulers in the loop.

Each scheme is a set of settings for scenarios/rings.toml. A scheme may name a separate congestion
control (``control``). Read first: `SCHEMES`, `measured`.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from anabranch_lab.cells import ROOT, Row, rounded, table
from anabranch_lab.programs import children_cpu_s, json_lines

SCENARIO = ROOT / "scenarios/rings.toml"
#: Numbers by which the racks of the big flows follow each other, by the number of rings; 3 has no common factor with 8.
SHIFTS = {1: (1,), 2: (1, 3)}
RACKS = 8
CIRCUIT_BPS = 80e9
#: Workloads of the scenario, in its order.
FLOWS = ("big", "small")
RESIZE = ("circuit.resize.packets=128", 'circuit.resize.ahead="1 ms"')
#: The thesis's columns with reTCP also have the larger queues, and marks begin when the queues
#: grow.
MARKS = (*RESIZE, 'circuit.mark_ahead="1 ms"')


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Settings of the circuits, the queues and the transport.

    Attributes
    ----------
    scheduler, demand
        Scheduler and demand, as named in the scenario.
    sets
        Further settings, in the form of ``--set``.
    control
        Congestion control of all flows, if it is not TCP NewReno.
    thesis
        Table 2.2: median and 99th percentile of small flows, then of large ones, in ms.
    """

    scheduler: str
    demand: str = "queues"
    sets: tuple[str, ...] = ()
    control: str | None = None
    thesis: tuple[float, float, float, float] | None = None

    def options(self, rings: int) -> Iterator[str]:
        """Yield the settings of a run with this number of rings."""
        shifts = SHIFTS[rings]
        others = [shift for shift in range(1, RACKS) if shift not in shifts]
        yield "sweep={}"
        yield f'circuit.schedule={{ scheduler = "{self.scheduler}", demand = "{self.demand}" }}'
        yield f"workload[0].shifts={list(shifts)}"
        yield f"workload[1].shifts={others}"
        if self.scheduler == "fixed":
            yield f"circuit.shifts={list(shifts)}"
        if self.control is not None:
            yield f'transport.control="{self.control}"'
        yield from self.sets


def packet(rate_gbps: int, thesis: tuple[float, float, float, float]) -> Scheme:
    """Return a packet network without circuits."""
    return Scheme("none", sets=(f'circuit.packet_rate="{rate_gbps} Gbit/s"',), thesis=thesis)


#: Columns of Table 2.2.
SCHEMES = {
    "VOQ": Scheme("solstice", thesis=(1.52, 56.39, 1162.04, 1988.84)),
    "VOQ + resize": Scheme("solstice", sets=RESIZE, thesis=(1.57, 76.54, 737.64, 1917.55)),
    "VOQ + reTCP": Scheme("solstice", sets=MARKS, control="retcp", thesis=(1.60, 69.86, 660.19, 1869.50)),
    "ADU": Scheme("solstice", "announced", thesis=(1.51, 65.71, 644.01, 1815.74)),
    "ADU + resize": Scheme("solstice", "announced", RESIZE, thesis=(1.58, 79.07, 110.61, 432.50)),
    "ADU + reTCP": Scheme("solstice", "announced", MARKS, "retcp", (1.59, 77.80, 102.11, 406.44)),
    "Fixed": Scheme("fixed", thesis=(1.49, 64.99, 724.08, 1860.53)),
    "Packet 10": packet(10, (2.19, 36.34, 1680.35, 1998.27)),
    "Packet 20": packet(20, (1.05, 22.25, 1025.92, 1944.73)),
    "Packet 40": packet(40, (0.71, 14.50, 46.95, 134.29)),
    "Packet 80": packet(80, (0.65, 5.20, 45.30, 114.77)),
}
#: Schemes of Table 2.2 with an acknowledgement for eight segments, as if receivers merged segments
#: (GRO); two rings only.
SPARSE = {
    f"{name}, sparse ACKs": dataclasses.replace(scheme, sets=(*scheme.sets, "transport.ack_every=8"))
    for name, scheme in SCHEMES.items()
}
#: Schedulers in the loop, by the name of the scheme.
LOOP = {
    f"{scheduler}, {demand}{', resize' if sets else ''}": Scheme(scheduler, demand, sets)
    for scheduler in ("solstice", "eclipse", "refit")
    for demand in ("queues", "announced")
    for sets in ((), RESIZE)
} | {f"strobe{', resize' if sets else ''}": Scheme("strobe", sets=sets) for sets in ((), RESIZE)}
#: Schemes of the loop, with their name in Table 2.2.
SAME = {
    "solstice, queues": "VOQ",
    "solstice, queues, resize": "VOQ + resize",
    "solstice, announced": "ADU",
    "solstice, announced, resize": "ADU + resize",
}
ALL = SCHEMES | SPARSE | {name: scheme for name, scheme in LOOP.items() if name not in SAME}

#: Text in place of a figure without rows.
NO_RUN = "–"
QUANTILES = ("p5", "p10", "p25", "p50", "p75", "p90", "p99")
FIGURES = (
    "flows",
    "finished",
    "fct_us_p50",
    "fct_us_p99",
    *(f"all_fct_us_{quantile}" for quantile in QUANTILES),
    *(f"all_flow_mbps_{quantile}" for quantile in QUANTILES),
    "goodput_mbps",
    "timeouts",
    "retransmitted_segments",
    "simulated_s",
    "circuit_bytes",
    "packet_network_bytes",
    "dropped_queue_full",
    "weeks",
    "days",
    "event_hash",
)


#: Columns that identify a run, and all columns of a row.
KEY = ("scheme", "rings", "seed")
COLUMNS = ("scheme", "rings", "flows_of", "seed", *FIGURES, "cpu_s")


def cells(seeds: int) -> Iterator[Row]:
    """Yield the runs of each scheme, seed by seed."""
    for seed in range(1, seeds + 1):
        for rings in reversed(SHIFTS):
            yield from ({"scheme": name, "rings": rings, "seed": seed} for name in ALL if rings > 1 or name not in SPARSE)


def measured(binary: Path, cell: Row, duration: str) -> list[Row]:
    """Run a cell, and return the figures of its big flows and of its small flows. `cpu_s` is
    correct only if no other run is going on."""
    options = [*ALL[cell["scheme"]].options(cell["rings"]), f'duration="{duration}"', f"seed={cell['seed']}"]
    before_s = children_cpu_s()
    command = [binary, "-q", "simulate", SCENARIO, "--json"]
    found = json_lines([*command, *(word for option in options for word in ("--set", option))])
    cpu_s = children_cpu_s() - before_s
    return [
        {"flows_of": FLOWS[number % len(FLOWS)]}
        | {column: rounded(row.get(column, ""), 7) for column in FIGURES}
        | {"cpu_s": f"{cpu_s:.1f}"}
        for number, row in enumerate(found)
    ]


def milliseconds(rows: Sequence[Row], column: str) -> str:
    """Return the mean of a column over seeds in ms; "beyond" if in a seed the flow of this rank was not complete."""
    values = [row[column] for row in rows]
    if not values:
        return NO_RUN
    if "" in values:
        return "beyond"
    return f"{statistics.mean(float(value) for value in values) / 1e3:,.2f}"


def use(rows: Sequence[Row], column: str, capacity_bps: float) -> str:
    """Return the share of all racks' capacity that the bytes of a column took, in per cent and in the mean over seeds."""
    if not rows:
        return NO_RUN
    mean_bps = statistics.mean(float(row[column]) * 8 / float(row["simulated_s"]) for row in rows)
    return f"{100 * mean_bps / capacity_bps / RACKS:.1f}"


def unfinished(rows: Sequence[Row]) -> str:
    """Return the share of flows that were not complete at the end, in per cent."""
    if not rows:
        return NO_RUN
    flows, finished = (sum(int(row[column]) for row in rows) for column in ("flows", "finished"))
    return f"{100 * (flows - finished) / flows:.1f}"


def days(rows: Sequence[Row]) -> str:
    """Return the days of a week, in the mean."""
    if not rows:
        return NO_RUN
    return f"{sum(int(row['days']) for row in rows) / sum(int(row['weeks']) for row in rows):.1f}"


def packet_bps(name: str) -> float:
    """Return the rate of a rack's link to the packet network."""
    return float(name.split()[1].rstrip(",")) * 1e9 if name.startswith("Packet") else 10e9


def completion_table(rows: Sequence[Row], rings: int, schemes: Mapping[str, Scheme] = SCHEMES) -> str:
    """Return a line for each column of Table 2.2: completion times here and in the thesis."""
    lines = []
    for name, scheme in schemes.items():
        of = {flows: [row for row in rows if is_of(row, name, rings, flows)] for flows in FLOWS}
        line = [name]
        for index, (flows, quantile) in enumerate((flows, p) for flows in ("small", "big") for p in ("p50", "p99")):
            here = milliseconds(of[flows], f"fct_us_{quantile}")
            line.append(f"{here} ({scheme.thesis[index]:,.2f})" if rings == 2 and scheme.thesis else here)
        line += [milliseconds(of["big"], "all_fct_us_p50"), unfinished(of["small"]), unfinished(of["big"])]
        lines.append([*line, *uses(name, of["big"])])
    return table(
        [
            f"{rings} ring{'s' if rings > 1 else ''}",
            "small p50, ms",
            "small p99, ms",
            "big p50, ms",
            "big p99, ms",
            "big p50 of all, ms",
            "small not whole, %",
            "big not whole, %",
            "circuit use, %",
            "packet use, %",
            "days a week",
        ],
        lines,
        "lr",
    )


def uses(name: str, rows: Sequence[Row]) -> list[str]:
    """Return the use of circuits and of the packet network in per cent, and the days of a week."""
    circuit = use(rows, "circuit_bytes", CIRCUIT_BPS)
    return [circuit, use(rows, "packet_network_bytes", packet_bps(name)), days(rows)]


def loop_table(rows: Sequence[Row]) -> str:
    """Return a line for each scheduler in the loop: big flows of one ring and of two."""
    lines = []
    for name in LOOP:
        line = [f"`{name.split(',')[0]}`{name.partition(',')[1]}{name.partition(',')[2]}"]
        for rings in SHIFTS:
            big = [row for row in rows if is_of(row, SAME.get(name, name), rings, "big")]
            small = [row for row in rows if is_of(row, SAME.get(name, name), rings, "small")]
            line += [milliseconds(big, "all_fct_us_p50"), unfinished(big), milliseconds(small, "all_fct_us_p50")]
            line += [use(big, "circuit_bytes", CIRCUIT_BPS), days(big)]
        lines.append(line)
    heads = ("big p50 of all, ms", "big not whole, %", "small p50 of all, ms", "circuit use, %", "days a week")
    return table(["scheduler in the loop", *(f"{rings}: {head}" for rings in SHIFTS for head in heads)], lines, "lr")


def figures_table(rows: Sequence[Row]) -> str:
    """Return the quantiles of Figures 2.13 to 2.16: one ring, completion times and rates of flows."""
    lines = []
    for flows in ("small", "big"):
        for said, prefix, shown in (
            ("completion, ms", "all_fct_us_", milliseconds),
            ("rate, Mbit/s", "all_flow_mbps_", mbps),
        ):
            for name in ("VOQ", "ADU", "Fixed"):
                of = [row for row in rows if is_of(row, name, 1, flows)]
                lines.append([f"{flows}: {said}", name, *(shown(of, prefix + quantile) for quantile in QUANTILES)])
    return table(["one ring, all flows", "scheme", *QUANTILES], lines, "llr")


def mbps(rows: Sequence[Row], column: str) -> str:
    """Return the mean of a column over seeds in Mbit/s."""
    return f"{statistics.mean(float(row[column] or 0) for row in rows):,.0f}" if rows else NO_RUN


def is_of(row: Row, name: str, rings: int, flows: str) -> bool:
    """Return whether a row is of this scheme, these rings and these flows."""
    return (row["scheme"], int(row["rings"]), row["flows_of"]) == (name, rings, flows)


def document(rows: Sequence[Row]) -> dict[str, str]:
    """Return the tables of docs/circuit.md, by the name of their markers."""
    tables = [completion_table(rows, 2), completion_table(rows, 2, SPARSE), completion_table(rows, 1), figures_table(rows)]
    return {"rings": "\n\n".join(tables), "loop": loop_table(rows)}
