"""TCP between two racks over circuits, simulated: the settings of Figures 2.6 to 2.11 of the thesis and of its second setting, and tables of their rows.

A *cell* is one run of scenarios/circuit.toml with certain sizes, times and congestion controls,
which are its columns; empty columns do not apply. Read `cells`, `measured` and `use` first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from anabranch_lab.captures import packets
from anabranch_lab.cells import ROOT, Row, table
from anabranch_lab.programs import json_lines

SCENARIO = ROOT / "scenarios/circuit.toml"
#: Rate of a circuit and of the packet network.
CIRCUIT_BPS, PACKET_BPS = 80e9, 10e9
#: Columns that identify a cell.
KEY = (
    "racks",
    "day_us",
    "night_us",
    "delay_us",
    "control",
    "queue",
    "resize",
    "ahead_us",
    "drops",
    "mark_us",
    "duration_ms",
    "also",
)
FIGURES = (
    "simulated_s",
    "circuit_bytes",
    "packet_network_bytes",
    "dropped_queue_full",
    "retransmitted_segments",
    "timeouts",
    "goodput_mbps",
    "latency_us_p50",
    "latency_us_p99",
    "circuit_latency_us_p50",
    "circuit_latency_us_p99",
    "packet_network_latency_us_p50",
    "packet_network_latency_us_p99",
    "event_hash",
)
SIZES = (4, 8, 16, 32, 64, 128)
#: Sizes of queues that grow: resize(s, b, tau) of section 2.4.2.
GROWTHS = ((16, 128), (4, 64))
AHEAD_US = tuple(range(0, 1_401, 200))
#: Delays of circuits in Figure 2.11.
DELAYS_US = (5, 10, 15, 20, 30, 40, 60, 80, 120)
#: Times ahead in the second setting; 150 us is the time in the authors' sweep of nights.
SECOND_AHEAD_US = (150, *range(0, 3_001, 300))
NIGHTS_US = tuple(4 << power for power in range(10))
RIVALS = ("newreno", "cubic", "dctcp", "bbr", "bbr1", "retcp", "retcp-cubic", "retcp-dctcp", "tdtcp")
#: Time before its day in which the original program marks acknowledgements if it resizes no queue.
ORIGINAL_MARK_US = 600
#: Time ahead of marks that replace the switch's messages, which TDTCP's hosts get at once: the
#: night and an acknowledgement's travel time.
PROMPT_MARK_US = 40
#: Further settings of a cell, in the form of its column `also`: loss detection by time, as Linux
#: has it, and a shorter timeout.
RACK = "transport.rack=true"
RACK_AND_SHORT_RTO = f'{RACK};transport.rto_min="1 ms"'
#: Settings that might explain the use of a fixed queue of 64 packets.
SUSPECTS = (
    RACK,
    'transport.delayed_ack="off"',
    "transport.abc_limit_segments=1000000",
    'transport.rto_min="200 ms"',
)
#: Seeds of runs in which each packet leaves its host up to the time of one packet on a circuit later, so that flows fall out of step.
SEEDS = (1, 2, 3, 4, 5)


def cell(control: str, queue: int, resize: int | str = "", ahead_us: int | str = "", **other: object) -> Row:
    """Return a cell of the first setting; `other` replaces columns."""
    marks = {"retcp": ahead_us if ahead_us != "" else 0, "tdtcp": 0}
    mark = marks.get(control.split("-")[0], "")
    columns = dict.fromkeys(KEY, "") | {"racks": 8, "day_us": 180, "night_us": 20, "delay_us": 30, "duration_ms": 2_000}
    columns |= {"control": control, "queue": queue, "resize": resize, "ahead_us": ahead_us, "mark_us": mark}
    return columns | other


def second(control: str, *sizes: int | str, **other: object) -> Row:
    """Return a cell of the second setting (NSDI 2020)."""
    return cell(control, *sizes, **({"racks": 25, "duration_ms": 2_400} | other))


def weeks_ms(night_us: int, weeks: int) -> int:
    """Return the length of some weeks of 8 racks with days of nine nights, in milliseconds."""
    return -(-7 * 10 * night_us * weeks // 1_000)


def headline(name: str) -> Row:
    """Return the cell of a headline, which other runs are compared with."""
    return {
        "16": cell("newreno", 16),
        "grown": cell("newreno", 16, 128, 1_000),
        "retcp": cell("retcp", 16),
        "retcp early": cell("retcp", 16, mark_us=ORIGINAL_MARK_US),
        "retcp grown": cell("retcp", 16, 128, 1_000),
        "retcp grown up": cell("retcp", 16, 128, 1_000, mark_us=0),
        "second": second("cubic", 16),
        "second retcp": second("retcp-cubic", 16, 50, 150),
        "second rack": second("cubic", 16, also=RACK),
        "second retcp rack": second("retcp-cubic", 16, 50, 150, also=RACK),
    }[name]


def jittered(row: Row, seed: int) -> Row:
    """Return a cell whose hosts are irregular, drawn from a seed."""
    drawn = f'network.jitter="900 ns";seed={seed}'
    return row | {"also": f"{row['also']};{drawn}" if row["also"] else drawn}


#: Headlines of the table of spreads: statement, dividend and divisor.
SPREADS = (
    ("use, queue grows 1,000 µs ahead, beside 16 packets", "grown", "16"),
    ("use of reTCP alone, beside Reno, 16 packets", "retcp", "16"),
    ("the same, marks 600 µs ahead", "retcp early", "16"),
    ("use of reTCP beside Reno, queue grows 1,000 µs ahead", "retcp grown", "grown"),
    ("the same, marks only while the circuit is up", "retcp grown up", "grown"),
    ("NSDI 2020: reTCP and 16 to 50 packets, beside 16", "second retcp", "second"),
    ("the same with RACK", "second retcp rack", "second rack"),
)


def rivals() -> Iterator[tuple[str, list[Row]]]:
    """Yield each congestion control's name and its cells: a fixed queue, a fixed queue with RACK,
    and a queue that grows."""
    for control in RIVALS:
        # BBR always has RACK.
        also = "" if control in ("bbr", "bbr1") else RACK
        yield f"`{control}`", [cell(control, 16), cell(control, 16, also=also), cell(control, 16, 128, 1_000)]
    ahead = {"mark_us": PROMPT_MARK_US}
    early = [cell("tdtcp", 16, **ahead), cell("tdtcp", 16, **ahead, also=RACK), cell("tdtcp", 16, 128, 1_000, **ahead)]
    yield f"`tdtcp`, marks {PROMPT_MARK_US} µs ahead", early


def cells() -> Iterator[Row]:
    """Yield all cells of `run.py tcp`."""
    for control in ("newreno", "retcp"):
        yield from (cell(control, size) for size in SIZES)
        yield from (cell(control, small, big, ahead) for small, big in GROWTHS for ahead in AHEAD_US)
    # Marks at the time of the original program, marks at the time of the thesis's text, and queues
    # that drop excess packets.
    yield from (cell("retcp", size, mark_us=ORIGINAL_MARK_US) for size in SIZES)
    yield from (cell("retcp", 16, 128, ahead, mark_us=0) for ahead in AHEAD_US)
    yield from (cell(control, 16, 128, ahead, drops="true") for control in ("newreno", "retcp") for ahead in AHEAD_US)
    for delay in DELAYS_US:
        yield from (cell("newreno", size, delay_us=delay) for size in SIZES)
        yield cell("newreno", 16, 128, 1_000, delay_us=delay)
    names = dict.fromkeys(name for _, *both in SPREADS for name in both)
    yield from (jittered(headline(name), seed) for name in names for seed in SEEDS)
    for _, row_cells in rivals():
        yield from row_cells
    for control in ("cubic", "retcp-cubic"):
        yield from (second(control, size) for size in (16, 50))
        yield from (second(control, 16, 50, ahead) for ahead in SECOND_AHEAD_US)
        yield second(control, 16, 50, 150, drops="true")
    yield second("newreno", 16)
    yield second("retcp", 16, 50, 150)
    yield second("retcp", 16, 50, 150, drops="true")
    yield second("cubic", 16, also=RACK)
    yield from (second("retcp-cubic", 16, 50, ahead, also=RACK) for ahead in SECOND_AHEAD_US)
    yield second("retcp-cubic", 16, 50, 150, also=RACK, drops="true")
    yield from (cell("newreno", 64, also=suspect) for suspect in SUSPECTS)
    for night in NIGHTS_US:
        duration = max(500, weeks_ms(night, 50))
        times = {"night_us": night, "day_us": 9 * night, "duration_ms": duration}
        for also in ("", RACK_AND_SHORT_RTO):
            yield cell("cubic", 16, **times, also=also)
            yield cell("retcp", 16, 50, 150, **times, also=also)


def settings(row: Row) -> dict[str, object]:
    """Return the settings of a cell, in the form of `anabranch simulate --set`."""
    found: dict[str, object] = {
        "sweep": "{}",
        "duration": f'"{row["duration_ms"]} ms"',
        "network.tors": row["racks"],
        "transport.control": f'"{row["control"]}"',
        "circuit.queue_packets": row["queue"],
    }
    for name, column in (("day", "day_us"), ("night", "night_us"), ("delay", "delay_us"), ("mark_ahead", "mark_us")):
        if row[column] != "":
            found[f"circuit.{name}"] = f'"{row[column]} us"'
    if row["resize"] != "":
        found |= {"circuit.resize.packets": row["resize"], "circuit.resize.ahead": f'"{row["ahead_us"]} us"'}
    if row["drops"]:
        found["circuit.resize.drops"] = row["drops"]
    if row["control"] in ("dctcp", "retcp-dctcp"):
        found |= {"transport.ecn": "true", "circuit.mark_packets": 4}
    if row["control"] in ("bbr", "bbr1"):
        found["transport.rack"] = "true"
    also = [setting.split("=", 1) for setting in row["also"].split(";") if setting]
    return found | dict(also)


def simulate(binary: Path, row: Row, *options: object) -> Row:
    """Run a cell, and return all figures of the run."""
    words = [word for key, value in settings(row).items() for word in ("--set", f"{key}={value}")]
    (found,) = json_lines([binary, "-q", "simulate", SCENARIO, "--json", *words, *options])
    return found


def measured(binary: Path, row: Row) -> Row:
    """Run a cell, and return the figures for its row."""
    found = simulate(binary, row)
    return {name: found.get(name, "") for name in FIGURES}


def day_share(row: Row) -> float:
    """Return the share of the week in which the pair has its circuit."""
    day, night = float(row["day_us"]), float(row["night_us"])
    return day / ((day + night) * (float(row["racks"]) - 1))


def use(row: Row) -> float:
    """Return the share of the circuit's capacity that a run used in the days of its pair."""
    return float(row["circuit_bytes"]) * 8 / (float(row["simulated_s"]) * day_share(row) * CIRCUIT_BPS)


class Measured:
    """Rows by cell."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = {self._key(row): row for row in rows}

    @staticmethod
    def _key(row: Row) -> tuple[str, ...]:
        return tuple(str(row[column]) for column in KEY)

    def __getitem__(self, of: Row) -> Row:
        return self._rows[self._key(of)]


# --------------------------------------------------------------------------------------- Figure 2.6

#: Phases of the week for which the table of Figure 2.6 shows the bytes sent.
PHASES_US = (20, 60, 100, 200, 600, 1_000, 1_400)
#: Weeks left out at the beginning of a run.
WARMUP_WEEKS = 20


def sequence(binary: Path, row: Row, step_us: int = 20) -> list[Row]:
    """Run a cell; return the mean over weeks of the bytes by which the flows' next expected
    sequence numbers advance from the week's beginning.

    Sequence numbers are taken from packets as they leave the switch, as in the thesis. Each flow
    sends less than 2 GB.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        simulate(binary, row, "--out", out, "--pcap", "spine-0-tor-1")
        sent = list(packets(out / "packets.pcapng"))
    week_us = (int(row["day_us"]) + int(row["night_us"])) * (int(row["racks"]) - 1)
    steps = week_us // step_us
    weeks = int(row["duration_ms"]) * 1_000 // week_us
    expected: dict[bytes, int] = {}
    totals, total, slot = [0] * (weeks * steps + 1), 0, 0
    for packet in sent:
        head = packet.head
        while slot < len(totals) and packet.time_ns >= slot * step_us * 1_000:
            totals[slot] = total
            slot += 1
        size, flow = int.from_bytes(head[2:4], "big"), head[12:24]
        end = int.from_bytes(head[24:28], "big") + size - 20 - 4 * (head[32] >> 4)
        before = expected.get(flow, end)
        expected[flow] = max(end, before)
        total += expected[flow] - before
    totals[slot:] = [total] * (len(totals) - slot)
    counted = range(WARMUP_WEEKS, weeks)
    rows = []
    for step in range(steps + 1):
        gains = [totals[week * steps + step] - totals[week * steps] for week in counted]
        rows.append({"phase_us": step * step_us, "sent_bytes": round(sum(gains) / len(gains))})
    return rows


def sequence_cells() -> list[Row]:
    """Return the cells of Figure 2.6: queues of fixed size, and queues that grow from 16 to 128 packets."""
    fixed = [cell("newreno", size) for size in SIZES]
    return fixed + [cell("newreno", 16, 128, ahead) for ahead in AHEAD_US]


def optimal_kb(phase_us: float) -> float:
    """Return the kilobytes that both networks carry until a phase of the week, which begins with the night before the day."""
    circuit_us, packet_us = min(max(phase_us - 20, 0), 180), max(phase_us - 200, 0)
    return (CIRCUIT_BPS * circuit_us + PACKET_BPS * packet_us) / 8e9


def sequence_table(rows: Sequence[Row]) -> str:
    """Return kilobytes sent by phase of the week, for each queue."""
    lines: dict[str, dict[int, float]] = {}
    for row in rows:
        name = row["queue"] if not row["resize"] else f"16 to 128, {int(row['ahead_us']):,} µs ahead"
        lines.setdefault(name, {})[int(row["phase_us"])] = float(row["sent_bytes"]) / 1e3
    body = [[name, *(f"{of[phase]:,.0f}" for phase in PHASES_US)] for name, of in lines.items()]
    body.append(["optimal", *(f"{optimal_kb(phase):,.0f}" for phase in PHASES_US)])
    head = [f"{phase:,} µs" for phase in PHASES_US]
    return table(["queue, packets", *head], body, "lr")


# ------------------------------------------------------------------------------------------- tables


def percent(row: Row) -> str:
    """Return the use of the circuit in percent."""
    return f"{100 * use(row):.0f}"


def figure(name: str) -> Callable[[Row], str]:
    """Return a function that shows a figure of a row; an empty text if the row does not have it."""

    def shown(row: Row) -> str:
        return f"{float(row[name]):,.0f}" if row[name] not in ("", None) else ""

    return shown


#: A line of a table: its name, and the function that shows its figure of a row.
Line = tuple[str, Callable[[Row], str]]
#: Lines of the tables of latency.
LATENCY_LINES = (
    ("use of the circuit, %", percent),
    ("median latency, packet network, µs", figure("packet_network_latency_us_p50")),
    ("median latency, circuit, µs", figure("circuit_latency_us_p50")),
    ("median latency, all, µs", figure("latency_us_p50")),
    ("99th percentile, all, µs", figure("latency_us_p99")),
)
BRIEF_LINES = (LATENCY_LINES[0], LATENCY_LINES[3], LATENCY_LINES[4])


def lines(of: Measured, name: str, row_cells: Sequence[Row], shown: Sequence[Line] = BRIEF_LINES) -> list[list[str]]:
    """Return lines of a table: a cell in each column."""
    return [[f"{name}: {what}" if name else what, *(show(of[one]) for one in row_cells)] for what, show in shown]


def buffers_tables(of: Measured) -> str:
    """Return Figures 2.7 to 2.10: queues of fixed size, and queues that grow."""
    fixed = lines(of, "", [cell("newreno", size) for size in SIZES], LATENCY_LINES)
    fixed += lines(of, "reTCP", [cell("retcp", size) for size in SIZES])
    fixed += lines(of, "reTCP, marks 600 µs ahead", [cell("retcp", size, mark_us=ORIGINAL_MARK_US) for size in SIZES])
    sizes = table(["queue, packets", *map(str, SIZES)], fixed, "lr")
    grown = []
    for control, name in (("newreno", ""), ("retcp", "reTCP")):
        row_cells = [cell(control, 16, 128, ahead) for ahead in AHEAD_US]
        grown += lines(of, name, row_cells, BRIEF_LINES if name else LATENCY_LINES)
    heads = [f"{ahead:,}" for ahead in AHEAD_US]
    times = table(["queue grows from 16 to 128 packets, µs ahead", *heads], grown, "lr")
    small = []
    for control, name in (("newreno", ""), ("retcp", "reTCP")):
        small += lines(of, name, [cell(control, 4, 64, ahead) for ahead in AHEAD_US])
    less = table(["queue grows from 4 to 64 packets, µs ahead", *heads], small, "lr")
    return f"{sizes}\n\n{times}\n\n{less}"


def causes_table(of: Measured) -> str:
    """Return runs that isolate a cause: the time when marks begin, the treatment of excess packets,
    and settings of TCP."""
    heads = [f"{ahead:,}" for ahead in AHEAD_US]
    grown = [cell("retcp", 16, 128, ahead, mark_us=0) for ahead in AHEAD_US]
    body = lines(of, "reTCP, marks only while the circuit is up", grown)
    for control, name in (("newreno", "excess dropped"), ("retcp", "reTCP, excess dropped")):
        body += lines(of, name, [cell(control, 16, 128, ahead, drops="true") for ahead in AHEAD_US])
    first = table(["queue grows from 16 to 128 packets, µs ahead", *heads], body, "lr")
    suspects = [cell("newreno", 64, also=also) for also in ("", *SUSPECTS)]
    names = ["as above", *(f"`{suspect.removeprefix('transport.')}`" for suspect in SUSPECTS)]
    second = table(["fixed queue of 64 packets", *names], lines(of, "", suspects, LATENCY_LINES[:1]), "lr")
    return f"{first}\n\n{second}"


def spreads_table(of: Measured) -> str:
    """Return headlines with irregular hosts: the mean over seeds, the least and the most, of use and of the 99th percentile."""
    body = []
    for statement, ours, theirs in SPREADS:
        line = [statement]
        for value in (use, lambda row: float(row["latency_us_p99"])):
            ratios = [
                value(of[jittered(headline(ours), seed)]) / value(of[jittered(headline(theirs), seed)])
                for seed in SEEDS
            ]
            line.append(f"{sum(ratios) / len(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        body.append(line)
    return table(["irregular hosts, five seeds", "use, times", "99th percentile, times"], body, "lr")


def static_at(of: Measured, wanted: float, delay_us: int) -> float | None:
    """Return the least median latency with which fixed queues reach a use of the circuit,
    interpolated between sizes; `None` if no queue reaches it."""
    rows = [of[cell("newreno", size, delay_us=delay_us)] for size in SIZES]
    low, before = 0.0, 0.0
    for high, after in ((use(row), float(row["latency_us_p50"])) for row in rows):
        if high >= wanted:
            return before + (after - before) * (wanted - low) / (high - low)
        # A larger queue with less use than a smaller one is left out of the interpolation.
        if high > low:
            low, before = high, after
    return None


def delays_table(of: Measured) -> str:
    """Return Figure 2.11: the gain in median latency at the same use, by round trips in a day."""
    body = []
    for delay in DELAYS_US:
        grown = of[cell("newreno", 16, 128, 1_000, delay_us=delay)]
        fixed, ours = static_at(of, use(grown), delay), float(grown["latency_us_p50"])
        gain = "beyond all" if fixed is None else f"{100 * (1 - ours / fixed):.0f}"
        body.append(
            [
                delay,
                f"{180 / (2 * delay):.1f}",
                percent(grown),
                f"{ours:.0f}",
                "" if fixed is None else f"{fixed:.0f}",
                gain,
            ]
        )
    head = ["delay, µs", "round trips in a day", "use, %", "median, µs", "fixed queue's at this use, µs", "gain, %"]
    return table(head, body, "r")


def second_table(of: Measured) -> str:
    """Return the second setting: use and tail latency, with multiples of a fixed queue of 16 packets with CUBIC."""
    sizes: list[tuple[str, tuple[int, ...], Row]] = [("16, fixed", (16,), {}), ("50, fixed", (50,), {})]
    sizes += [(f"16 to 50, {ahead:,} µs ahead", (16, 50, ahead), {}) for ahead in sorted(SECOND_AHEAD_US)]
    sizes += [("16 to 50, 150 µs ahead, excess dropped", (16, 50, 150), {"drops": "true"})]
    body = []
    for name, queue, other in sizes:
        line = [name]
        for control, also in (("cubic", ""), ("retcp-cubic", ""), ("retcp-cubic", RACK)):
            if also and len(queue) == 1:
                line += ["", ""]
                continue
            row, base = of[second(control, *queue, **other, also=also)], of[second("cubic", 16, also=also)]
            tails = [float(one["latency_us_p99"]) for one in (row, base)]
            line += [f"{percent(row)} ({use(row) / use(base):.2f})", f"{tails[0]:,.0f} ({tails[0] / tails[1]:.2f})"]
        body.append(line)
    head = [
        f"{name}{what}"
        for name in ("CUBIC: ", "reTCP: ", "reTCP, RACK: ")
        for what in ("use, %", "99th percentile, µs")
    ]
    return table(["queue, packets", *head], body, "lr")


def nights_table(of: Measured) -> str:
    """Return use and tail latency by the length of nights, with days of nine nights."""
    body = []
    for night in NIGHTS_US:
        times = {"night_us": night, "day_us": 9 * night, "duration_ms": max(500, weeks_ms(night, 50))}
        line = [f"{night:,}"]
        for also in ("", RACK_AND_SHORT_RTO):
            fixed, grown = of[cell("cubic", 16, **times, also=also)], of[cell("retcp", 16, 50, 150, **times, also=also)]
            tails = [f"{float(row['latency_us_p99']):,.0f}" for row in (fixed, grown)]
            line += [percent(fixed), percent(grown), f"{use(grown) / use(fixed):.2f}", *tails]
        body.append(line)
    names = ("CUBIC, 16: use, %", "reTCP, 16 to 50: use, %", "times", "CUBIC: 99th, µs", "reTCP: 99th, µs")
    return table(["night, µs", *names, *(f"RACK, 1 ms: {name}" for name in names)], body, "r")


def rivals_table(of: Measured) -> str:
    """Return the congestion controls over a fixed queue, without and with RACK, and over a growing queue."""
    body = []
    for name, row_cells in rivals():
        line = [name]
        for row in (of[one] for one in row_cells):
            line += [percent(row), f"{float(row['goodput_mbps']) / 1e3:.1f}", f"{float(row['latency_us_p99']):,.0f}"]
        body.append(line)
    queues = ("16 packets", "the same with RACK", "16 to 128, 1,000 µs ahead")
    head = [f"{queue}: {what}" for queue in queues for what in ("use, %", "Gbit/s", "99th, µs")]
    return table(["control", *head], body, "lr")


def claims_table(of: Measured) -> str:
    """Return the statements of the thesis and of NSDI 2020 that have a number, with our numbers."""

    def figures(row: Row) -> tuple[float, float, float]:
        return use(row), float(row["latency_us_p50"]), float(row["latency_us_p99"])

    fixed = {size: figures(of[cell("newreno", size)]) for size in SIZES}
    grown = {ahead: figures(of[cell("newreno", 16, 128, ahead)]) for ahead in AHEAD_US}
    jumps = {ahead: figures(of[cell("retcp", 16, 128, ahead)]) for ahead in AHEAD_US}
    alone, early = figures(of[cell("retcp", 16)]), figures(of[cell("retcp", 16, mark_us=ORIGINAL_MARK_US)])
    up = {ahead: figures(of[cell("retcp", 16, 128, ahead, mark_us=0)]) for ahead in AHEAD_US}
    worse = {
        name: sum(tails[ahead][2] > grown[ahead][2] for ahead in AHEAD_US[1:])
        for name, tails in (("early", jumps), ("up", up))
    }
    same_use = static_at(of, grown[1_000][0], 30)
    full = next((str(size) for size in SIZES if fixed[size][0] > 0.95), "none")
    base = figures(of[second("cubic", 16)])
    both = figures(of[second("retcp-cubic", 16, 50, 150)])
    rack_base, rack = (
        figures(of[second("cubic", 16, also=RACK)]),
        figures(of[second("retcp-cubic", 16, 50, 150, also=RACK)]),
    )

    def change(ours: float, theirs: float) -> str:
        return f"{100 * (ours / theirs - 1):+.0f} %"

    body = [
        ["packets of a fixed queue that uses the circuit fully", "64 and more", full],
        [
            "use, queue grows 1,000 µs ahead, beside 16 packets",
            "about 2 times",
            f"{grown[1_000][0] / fixed[16][0]:.2f} times",
        ],
        [
            "median latency of it, beside a fixed queue of the same use",
            "-36 % (64 packets)",
            "no fixed queue has its use" if same_use is None else change(grown[1_000][1], same_use),
        ],
        ["median latency of it, beside 16 packets", "about the same", change(grown[1_000][1], fixed[16][1])],
        ["use of reTCP alone, beside Reno, 16 packets", "no help", f"{alone[0] / fixed[16][0]:.2f} times"],
        ["the same, marks 600 µs ahead as in the authors' program", "no help", f"{early[0] / fixed[16][0]:.2f} times"],
        [
            "use of reTCP, queue grows 1,000 µs ahead, beside Reno there",
            "slightly more",
            f"{jumps[1_000][0] / grown[1_000][0]:.2f} times",
        ],
        [
            "99th percentile of reTCP above Reno's, queue grows",
            "mostly",
            f"at {worse['early']} of {len(AHEAD_US) - 1} times ahead",
        ],
        ["the same, marks only while the circuit is up", "", f"at {worse['up']} of {len(AHEAD_US) - 1} times ahead"],
        ["NSDI 2020: use of reTCP and 16 to 50 packets, beside 16", "1.91 times", f"{both[0] / base[0]:.2f} times"],
        ["NSDI 2020: 99th percentile of it", "1.20 times", f"{both[2] / base[2]:.2f} times"],
        ["the same with RACK, as Linux has it: use", "1.91 times", f"{rack[0] / rack_base[0]:.2f} times"],
        ["the same with RACK: 99th percentile", "1.20 times", f"{rack[2] / rack_base[2]:.2f} times"],
    ]
    return table(["statement", "authors", "here"], body, "ll")


# ----------------------------------------------------------------------------------- circuits alone

ROTOR = ROOT / "scenarios/rotor.toml"
#: Rate of each host's link, share of time in which circuits are up, and share of data in a packet.
HOST_MBPS, STANDING, DATA = 10e3, 0.9, 1_448 / 1_500


def rotor(binary: Path, *options: str) -> list[Row]:
    """Return a row for each run of scenarios/rotor.toml."""
    words = [word for option in options for word in ("--set", option)]
    columns = ("goodput_mbps", "retransmitted_segments", "timeouts", "dropped_queue_full", "simulated_s", "event_hash")
    found = json_lines([binary, "-q", "simulate", ROTOR, "--json", *words])
    return [{"hosts": row["network.tors"], **{column: row[column] for column in columns}} for row in found]


def rotor_share(row: Row) -> float:
    """Return the data received as a share of the capacity of the hosts' links while circuits are
    up."""
    return float(row["goodput_mbps"]) / (float(row["hosts"]) * HOST_MBPS * STANDING * DATA)


def rotor_table(rows: Sequence[Row]) -> str:
    """Return the share of the links that plain TCP uses, by the number of hosts."""
    shares = [f"{100 * rotor_share(row):.1f}" for row in rows]
    return table(
        ["hosts", *(row["hosts"] for row in rows)], [["use of the links while circuits stand, %", *shares]], "lr"
    )
