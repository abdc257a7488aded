"""The rings of `ring_load` with programs on real kernels, compared with the simulator: announced
demand against queues (Table 2.2, Figures 2.13 to 2.16 of Etalon).

A cell is one scheme and one number of rings under one clock. Its flows are the load of
scenarios/rings.toml, sent by the emulator's programs of hosts. These do not announce: a preloaded
library announces the bytes that they write. Both clocks run the same settings. Cells that have a
row are not measured again.

`fetch` uses existing programs: nginx servers in each rack, from which curl in the next rack fetches
files one after another.

Read first: `CELLS`, `measured`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import ring_load
from anabranch_lab.cells import Row, rounded, table
from anabranch_lab.programs import Failed, json_lines, quantile

#: Settings that the emulator needs: its hosts open their connections, and flows begin with their SYN.
COMMON = ("transport.handshake=true",)
#: Seconds of the network. Half the thesis's: the programs of hosts have ports for 10,000 flows.
SECONDS = 1
FIGURES = (
    *(column for column in ring_load.FIGURES if column not in ("simulated_s", "event_hash")),
    "simulated_s",
    "emulated_s",
    "scheduled_days",
    "demand_bytes_mean",
    "announcements",
    "announcements_refused",
    "unknown_reports",
    "dilation",
    "lateness_us_p99",
    "lateness_day_share",
    "start_lateness_us_p99",
    "trusted",
    "why",
    "congestion_control",
    "unstretched",
)
KEY = ("clock", "scheme", "rings")


#: Runs, the most valuable first: the clock, the scheme of `ring_load.SCHEMES`, the number of rings.
CELLS: list[Row] = [
    {"clock": clock, "scheme": scheme, "rings": rings}
    for rings, schemes in ((1, ("ADU", "VOQ", "Fixed")), (2, ("ADU + resize", "VOQ", "ADU", "VOQ + resize", "Fixed", "Packet 10")))
    for scheme in schemes
    for clock in ("simulated", "emulated")
]


def command(binary: Path, library: Path, cell: Row, seconds: float, dilation: int) -> list[object]:
    """Return the command of a cell; a dilation of zero is measured by the emulator."""
    verb: list[object] = ["simulate"] if cell["clock"] == "simulated" else ["emulate", "--preload", library]
    if cell["clock"] == "emulated" and dilation:
        verb += ["--dilation", dilation]
    sets = [*ring_load.SCHEMES[cell["scheme"]].options(cell["rings"]), *COMMON, f'duration="{seconds * 1e3:g} ms"']
    return [binary, "-q", *verb, ring_load.SCENARIO, "--json", *(word for option in sets for word in ("--set", option))]


def measured(binary: Path, library: Path, cell: Row, seconds: float, dilation: int) -> list[Row]:
    """Run a cell, and return the figures of its big flows and of its small flows."""
    found = json_lines(command(binary, library, cell, seconds, dilation))
    if len(found) != len(ring_load.FLOWS):
        raise Failed(f"{len(found)} rows in place of {len(ring_load.FLOWS)}")
    shown = lambda value: "; ".join(value) if isinstance(value, list) else rounded(value)
    return [
        {"flows_of": flows} | {column: shown(row.get(column, "")) for column in FIGURES}
        for flows, row in zip(ring_load.FLOWS, found)
    ]


def of(rows: Sequence[Row], cell: Row, flows: str) -> list[Row]:
    """Return the rows of a cell and of one kind of flows."""
    wanted = [*map(str, cell.values()), flows]
    return [row for row in rows if [str(row[column]) for column in (*KEY, "flows_of")] == wanted]


def milliseconds(rows: Sequence[Row], column: str) -> str:
    """Return a column in ms; "beyond" if the flow of this rank was not complete."""
    return ring_load.milliseconds(rows, column) if not rows or column in rows[0] else ring_load.NO_RUN


def share(rows: Sequence[Row], column: str, capacity_bps: float) -> str:
    """Return the share of all racks' capacity that the bytes of a column took, in per cent."""
    if not rows:
        return ring_load.NO_RUN
    seconds = float(rows[0]["emulated_s"] or rows[0]["simulated_s"])
    return f"{100 * float(rows[0][column]) * 8 / seconds / capacity_bps / ring_load.RACKS:.1f}"


def document(rows: Sequence[Row]) -> str:
    """Return the table of docs/circuit.md: a line for each cell with a row, with the emulator's lateness."""
    lines = []
    for cell in CELLS:
        big, small = of(rows, cell, "big"), of(rows, cell, "small")
        if not big:
            continue
        clock, scheme, rings = cell.values()
        thesis = ring_load.SCHEMES[scheme].thesis if rings == 2 else None
        line = [str(rings), scheme, clock]
        for index, (kind, rank) in enumerate((kind, p) for kind in (small, big) for p in ("p50", "p99")):
            here = milliseconds(kind, f"fct_us_{rank}")
            line.append(f"{here} ({thesis[index]:,.2f})" if thesis and clock == "emulated" else here)
        line += [ring_load.unfinished(small), ring_load.unfinished(big)]
        line += [share(big, "circuit_bytes", ring_load.CIRCUIT_BPS), share(big, "packet_network_bytes", ring_load.packet_bps(scheme))]
        if clock == "emulated":
            late = f"{100 * float(big[0]['lateness_day_share']):.2f}" + ("" if big[0]["trusted"] in ("True", "true") else " (not trusted)")
            line += [big[0]["dilation"], late]
        else:
            line += ["", ""]
        lines.append(line)
    heads = ("rings", "scheme", "clock", "small p50, ms", "small p99, ms", "big p50, ms", "big p99, ms", "small not whole, %", "big not whole, %")
    return table([*heads, "circuit use, %", "packet use, %", "F", "late, % of a day"], lines, "lllr")


#: One nginx in a host: it hands each file to the kernel in one call.
NGINX = """user root; daemon off; master_process off; worker_processes 1;
events { worker_connections 64; }
http { access_log off; sendfile on; sendfile_max_chunk 0; server { listen 80; root FOLDER; } }
"""
HOSTS = 16
#: Pairs of hosts that move files between a rack and the next: their rate is above a circuit's mean
#: rate over a week.
STREAMS = 3
#: Sizes of the files: all sizes of the big flows.
FILES_BYTES = [8_948 * 1_000 * number for number in range(1, 11)]
#: Source of the demand that circuits follow, and whether programs preload the library.
FETCHES = {"VOQ": ("queues", False), "ADU": ("announced", True), "ADU, no library": ("announced", False)}


def fetch(binary: Path, library: Path, name: str, seconds: float, dilation: int) -> Row:
    """Return the figures of files that curl fetched from nginx over a ring of racks."""
    for program in ("nginx", "curl"):
        if not shutil.which(program):
            raise Failed(f"no {program} on this machine")
    demand, is_announced = FETCHES[name]
    with tempfile.TemporaryDirectory(prefix="anabranch-rings-", dir="/dev/shm") as folder:
        for number, size in enumerate(FILES_BYTES):
            with open(f"{folder}/{number}", "wb") as file:
                file.truncate(size)
        Path(folder, "nginx.conf").write_text(NGINX.replace("FOLDER", folder))
        words: list[str] = []
        for rack in range(ring_load.RACKS):
            for stream in range(STREAMS):
                server, client = rack * HOSTS + stream, (rack + 1) % ring_load.RACKS * HOSTS + STREAMS + stream
                own = f"{folder}/{server}"
                words += ["--run", f"{server}=exec nginx -c {folder}/nginx.conf -e {own}.log -g 'pid {own}.pid; error_log {own}.log;'"]
                get = f"curl -so /dev/null -w 'fetched %{{http_code}} %{{size_download}} %{{time_total}}\\n' http://{{@{server}}}/$((i % {len(FILES_BYTES)}))"
                words += ["--run", f"{client}=sleep 2; i={server}; while :; do {get}; i=$((i + 3)); done"]
        sets = ["sweep={}", *COMMON, f'circuit.schedule={{ scheduler = "solstice", demand = "{demand}" }}']
        options = [word for setting in sets for word in ("--set", setting)]
        if is_announced:
            options += ["--preload", str(library)]
        command = [binary, "emulate", ring_load.SCENARIO, "--json", "--settle", "1 s", "--dilation", dilation, *options, *words]
        command += ["--", "sleep", f"{2 + seconds * dilation:g}"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    reports = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not reports:
        raise Failed(f"{name}: {done.stderr.strip().splitlines()[-1:]}")
    report = json.loads(reports[-1])
    found = re.findall(r"fetched 200 (\d+) ([\d.]+)", done.stderr)
    times_ms = [float(took) / dilation * 1e3 for _, took in found]
    circuits, late = report["circuits"], report["report"]["lateness_us_p99"]
    return {
        "flows": len(found) + ring_load.RACKS * STREAMS,
        "finished": len(found),
        "fetched_bytes": sum(int(size) for size, _ in found),
        "fct_ms_p50": f"{quantile(times_ms, 0.5):.2f}" if times_ms else "",
        "fct_ms_p99": f"{quantile(times_ms, 0.99):.2f}" if times_ms else "",
        "emulated_s": seconds,
        **{column: circuits[column] for column in ("circuit_bytes", "packet_network_bytes", "scheduled_days", "weeks", "announcements", "announcements_refused")},
        "dilation": dilation,
        "lateness_us_p99": f"{late:.3f}",
        "trusted": report["trusted"],
        "why": "; ".join(report["report"]["why"]),
    }


def fetch_table(rows: Sequence[Row]) -> str:
    """Return a line for each row of `fetch`."""
    lines = [
        [
            row["scheme"],
            row["finished"],
            int(row["flows"]) - int(row["finished"]),
            row["fct_ms_p50"],
            row["fct_ms_p99"],
            f"{int(row['circuit_bytes']) / 1e9:.2f}",
            f"{int(row['packet_network_bytes']) / 1e9:.2f}",
            f"{int(row['announcements']):,}",
            f"{row['dilation']}, {row['lateness_us_p99']} µs" + ("" if row["trusted"] in ("True", "true", True) else " (not trusted)"),
        ]
        for row in rows
    ]
    heads = ("nginx and curl", "files", "not whole", "p50, ms", "p99, ms", "circuits, GB", "packet network, GB", "announcements", "F, 99 % late by")
    return table(list(heads), lines, "lr")
