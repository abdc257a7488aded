"""reHDFS: HDFS whose blocks go round a ring of racks, on emulated circuits (Figures 2.20 to 2.23 of Etalon).

``run.py setup`` fetches Hadoop's jars with Maven, 90 MB. ``run.py all`` writes files from all racks at once, for each
placement of blocks and each timetable of circuits; cells that have rows are not run again. ``run.py docs`` writes the
table of docs/circuit.md from the committed rows, ``run.py table`` prints it. ``run.py smoke`` writes three files on
three racks and checks all laws.

Read first: `CELLS`, `measured`, and `cluster.run_job`.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
import cluster
from anabranch_lab.cells import (
    BINARY,
    ROOT,
    Emulation,
    Experiment,
    Option,
    Row,
    Rows,
    Untrusted,
    filled,
    measure,
    read_csv,
    table,
    until_trusted,
)
from anabranch_lab.programs import Failed, Skipped, quantile, require_emulator, running, toml

LAB = Experiment(__file__, __doc__)
MEASURED = LAB.folder / "measured"
DOCUMENT = ROOT / "docs/circuit.md"
HADOOP = LAB.runs / "hadoop"
LIBRARY = "libanabranch_preload_dilate.so"
#: Name of reTCP in the kernel during a run.
RETCP = "rehdfs"
MIB = 1 << 20
#: Rates of a circuit and of a rack's link to the packet network.
CIRCUIT_BPS, PACKET_BPS = 80e9, 10e9
#: Lateness of packets, in emulated time, above which a run is not trusted: 1 % of the strobe's day in all cells.
LATENESS = "1.8 us"
#: Idle share of the processors below which programs may have waited for a processor, and not for
#: the network.
IDLE_SHARE_MIN = 0.1
#: Timetables of circuits: each pair of racks once in 1,400 us, and the ring of racks once in 2,000 us.
SCHEDULES: dict[str, Row] = {"strobe": {}, "ring": {"shifts": [1], "day": "1980 us", "night": "20 us"}}
#: Queues of the switch, as in Figures 2.21 to 2.23; both growing queues grow 1,000 us ahead.
GROWN: Row = {"resize": {"packets": 128, "ahead": "1 ms"}}
METHODS: dict[str, Row] = {"static": {}, "resize": GROWN, "reTCP": {**GROWN, "mark_ahead": "1 ms"}}
#: Placement, timetable, method: the thesis's six bars, each placement on the other's circuits, a ring that rotates.
CELLS = (
    *(("default", "strobe", method) for method in METHODS),
    *(("next rack", "ring", method) for method in METHODS),
    ("next rack", "strobe", "static"),
    ("default", "ring", "static"),
    ("rotating", "strobe", "static"),
)
#: The thesis's figures by placement and method: 99th percentile of writes in ms and throughput in Gbit/s.
THESIS = {
    ("default", "static"): (1369, 72),
    ("default", "resize"): (1101, 87),
    ("default", "reTCP"): (999, 86),
    ("next rack", "static"): (173, 381),
    ("next rack", "resize"): (128, 565),
    ("next rack", "reTCP"): (127, 600),
}
KEY = ("placement", "schedule", "method", "trial", "racks", "writers", "blocks", "block_mib", "dilation")
SHARES = {"p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99}


@LAB.inside
def job(task: Row) -> Row:
    """Write, read and check files in the emulated racks."""
    return cluster.run_job(task)


def scenario(cell: Row) -> str:
    """Return the network of a cell: one host stands for a rack, without a limit of hosts' links, as in the thesis."""
    star = {"topology": "star", "hosts": cell["racks"], "rate": "160 Gbit/s", "delay": "0 s", "queue": "10 MB"}
    circuit = {"switch": "hub", **SCHEDULES[cell["schedule"]], **METHODS[cell["method"]]}
    lines = {key: value for key, value in circuit.items() if not isinstance(value, dict)}
    tables = {f"circuit.{key}": value for key, value in circuit.items() if isinstance(value, dict)}
    transport = {"mss": 8_948, "rto_min": "10 ms", "receive_buffer": "16 MiB"}
    kernel = {'"ipv4/tcp_orphan_retries"': "1"}
    parts = {"network": star, "circuit": lines, **tables, "transport": transport, "kernel": kernel}
    return toml({"name": "rehdfs", "duration": "1 s", **parts, "workload": [{"kind": "long", "pairs": "all"}]})


def library(binary: Path) -> Path:
    """Return the library that stretches programs' time, which cargo puts beside the command or into ``deps``."""
    for path in (binary.with_name(LIBRARY), binary.parent / "deps" / LIBRARY):
        if path.exists():
            return path
    raise Failed(f"no {LIBRARY} beside {binary}: cargo build --package anabranch-preload-dilate")


@contextlib.contextmanager
def retcp(binary: Path, cell: Row) -> Iterator[Sequence[str]]:
    """Register reTCP in the kernel if the cell needs it, and yield the options of ``emulate`` that choose it."""
    if cell["method"] != "reTCP":
        yield ()
        return
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    words = ["--name", RETCP, "--base", "reno", "--mark", "ece", "--dilation", cell["dilation"]]
    with running([[binary, "circuit", "retcp", *words]]) as (program,):
        while RETCP not in available.read_text().split():
            if program.poll() is not None:
                raise Failed(f"`anabranch circuit retcp` ended with {program.returncode}: see above")
            time.sleep(0.05)
        yield ("--congestion-control", RETCP)


def class_path(hadoop: Path) -> str:
    """Compile the policy and the writers against Hadoop's jars.

    Raises
    ------
    Skipped
        A program or the jars are missing.
    """
    cluster.require_programs()
    if not list(hadoop.glob("hadoop-client-minicluster-*.jar")):
        raise Skipped(f"no jars of Hadoop: `python3 experiments/{LAB.name}/run.py setup` fetches 90 MB")
    return cluster.compiled(hadoop, LAB.folder / "java", LAB.runs / "classes")


def require_memory(cell: Row) -> None:
    """Raise `Skipped` if memory does not suffice for both replicas and 200 MiB for each program."""
    data = cluster.REPLICAS * cell["racks"] * cell["writers"] * cell["blocks"] * cell["block_mib"]
    needed_mib = data + 200 * (2 * cell["racks"] + 2)
    lines = Path("/proc/meminfo").read_text().splitlines()
    (free_mib,) = (int(line.split()[1]) // 1024 for line in lines if line.startswith("MemAvailable"))
    if free_mib < needed_mib:
        raise Skipped(f"{free_mib} MiB of memory are free, and {needed_mib} are needed")


def run(binary: Path, classes: str, cell: Row, tries: int = 1) -> Emulation:
    """Emulate one cell, and check the laws of its result."""
    require_memory(cell)
    addresses = [f"10.77.0.{rack}" for rack in range(1, cell["racks"] + 1)]
    file_bytes = cell["blocks"] * cell["block_mib"] * MIB
    settings = {
        # HDFS asks again after 400 ms whether a file is complete; these jobs are shorter.
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": 1,
        "rehdfs.rotate.ms": 10 if cell["placement"] == "rotating" else 0,
    }
    with tempfile.TemporaryDirectory(prefix="rehdfs-", dir="/dev/shm") as scratch, retcp(binary, cell) as control:
        folder, hdfs = Path(scratch), Path(scratch) / "cluster"
        inside = LAB.task(
            job,
            folder,
            cluster=hdfs,
            class_path=classes,
            addresses=addresses,
            writers=cell["writers"],
            file_bytes=file_bytes,
        )
        options = ("--dilation", cell["dilation"], "--preload", library(binary), "--lateness-bound", LATENESS, *control)

        def prepare() -> None:
            cluster.prepare(hdfs, addresses, classes, cell["placement"], cell["block_mib"] * MIB, settings)

        blocks = cell["racks"] * cell["writers"] * cell["blocks"]
        where = {"site": "h0", "tries": tries, "prepare": prepare}
        try:
            found = LAB.emulate(binary, folder, scenario(cell), inside, *options, "--duration", "3 s", **where)
            cluster.check_laws(found.result, addresses, cell["placement"], blocks, file_bytes)
        except Failed:
            # Keep the logs of the programs, without the blocks.
            ignored = shutil.ignore_patterns("blocks*")
            shutil.copytree(hdfs, LAB.runs / "failed", dirs_exist_ok=True, ignore=ignored)
            raise
    return found


def figures(cell: Row, found: Emulation) -> Row:
    """Return the figures of one job, in the time of the network."""
    result, circuits = found.result, found.network["circuits"]
    begins, ends = zip(*(times for _, _, *times in result["files"]), strict=True)
    job_s = (max(ends) - min(begins)) / 1e9
    files_s = [(end - begin) / 1e9 for begin, end in zip(begins, ends, strict=True)]
    writes_ms = [int(ns) / 1e6 for _, _, ns in result["traced"]]
    racks, bits = cell["racks"], 8 * result["read_bytes"]
    by_circuit, by_packet = circuits["circuit_bytes"], circuits["packet_network_bytes"]
    row = {
        "job_ms": 1e3 * job_s,
        **{f"write_ms_{name}": quantile(writes_ms, share) for name, share in SHARES.items()},
        "write_ms_max": max(writes_ms),
        "file_ms_p50": 1e3 * quantile(files_s, 0.5),
        "file_ms_max": 1e3 * max(files_s),
        "job_gbps": bits / job_s / 1e9,
        "dfsio_gbps": len(files_s) * bits / sum(files_s) / 1e9,
        "written_bytes": result["read_bytes"],
        "circuit_bytes": by_circuit,
        "packet_network_bytes": by_packet,
        "circuit_share": 8 * by_circuit / (racks * CIRCUIT_BPS * job_s),
        "packet_network_share": 8 * by_packet / (racks * PACKET_BPS * job_s),
        "placements": len(result["allocated"]),
        "dropped_queue_full": found.report["drops"]["queue_full"],
        "lateness_us_p99": found.report["lateness_us_p99"],
        "idle_share": result["idle_share"],
        "congestion_control": found.report["congestion_control"],
    }
    return {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in row.items()}


def measured(binary: Path, classes: str, cell: Row) -> Row:
    """Return the row of one cell.

    Raises
    ------
    Untrusted
        The emulator was late, or the processors were idle for less than `IDLE_SHARE_MIN`.
    """
    found = run(binary, classes, cell)
    idle = found.result["idle_share"]
    if idle < IDLE_SHARE_MIN:
        raise Untrusted(f"{idle:.2f} of the processors idle while files were written, less than {IDLE_SHARE_MIN}")
    return figures(cell, found)


@LAB.verb(hadoop=HADOOP)
def setup(args) -> None:
    """Fetches Hadoop's jars with Maven."""
    cluster.require_programs()
    if shutil.which("mvn") is None:
        raise Skipped("no mvn, which fetches Hadoop's jars")
    words = ["-q", "-B", "-f", LAB.folder / "pom.xml", "dependency:copy-dependencies"]
    subprocess.run(["mvn", *words, f"-DoutputDirectory={args.hadoop}", "-DincludeScope=runtime"], check=True)


@LAB.verb(
    "all",
    rows=MEASURED,
    binary=BINARY,
    hadoop=HADOOP,
    trials=Option(1, "runs of each cell"),
    racks=8,
    writers=Option(8, "writers of each rack, with a file each"),
    blocks=Option(2, "blocks of a file"),
    block_mib=8,
    dilation=Option(1_024, "real time for each second of the network"),
    only=Option([], "placements to run; all without it", str),
)
def all_cells(args) -> int:
    """Runs all cells that have no row."""
    require_emulator(args.binary)
    classes = class_path(args.hadoop)
    common = {name: getattr(args, name) for name in ("racks", "writers", "blocks", "block_mib", "dilation")}
    cells = [
        {"placement": placement, "schedule": schedule, "method": method, "trial": trial, **common}
        for trial in range(1, args.trials + 1)
        for placement, schedule, method in CELLS
        if not args.only or placement in args.only
    ]
    rows = Rows(args.rows / "jobs.csv", KEY, line_end="\n")
    return measure(rows, cells, lambda cell: until_trusted(lambda: measured(args.binary, classes, cell), 2))


def ratios_table(rows: Sequence[Row]) -> str:
    """Return the thesis's five other bars over its default placement with fixed queues, and ours in place of them."""
    found = {(row["placement"], row["method"]): [] for row in rows}
    for row in rows:
        if row["schedule"] == ("strobe" if row["placement"] == "default" else "ring"):
            found[row["placement"], row["method"]].append((float(row["write_ms_p99"]), float(row["dfsio_gbps"])))
    ours = {bar: [sum(values) / len(values) for values in zip(*of, strict=True)] for bar, of in found.items() if of}
    base = ("default", "static")
    lines = []
    for bar in THESIS:
        if bar == base or not {bar, base} <= ours.keys():
            continue
        (p99, gbps), (base_p99, base_gbps) = THESIS[bar], THESIS[base]
        (our_p99, our_gbps), (our_base_p99, our_base_gbps) = ours[bar], ours[base]
        ratios = (base_p99 / p99, our_base_p99 / our_p99, gbps / base_gbps, our_gbps / our_base_gbps)
        lines.append([*bar, *(f"{ratio:.2f}" for ratio in ratios)])
    head = ["placement", "method", "p99 of writes shorter, thesis", "here", "throughput higher, thesis", "here"]
    return f"Times of default placement with fixed queues:\n\n{table(head, lines, 'llr')}"


def jobs_table(rows: Sequence[Row]) -> str:
    """Return a line for each cell: means over the trials, and the thesis's figures in brackets."""
    if not rows:
        return "No rows yet: they need a quiet machine."
    lines = []
    for placement, schedule, method in CELLS:
        found = [
            row for row in rows if (row["placement"], row["schedule"], row["method"]) == (placement, schedule, method)
        ]
        if not found:
            continue
        mean = lambda column, found=found: sum(float(row[column]) for row in found) / len(found)  # noqa: E731
        is_thesis = schedule == ("strobe" if placement == "default" else "ring")
        p99, gbps = THESIS.get((placement, method), ("", "")) if is_thesis else ("", "")
        beside = lambda value: f" ({value:,})" if value else ""  # noqa: E731
        lines.append(
            [
                placement,
                schedule,
                method,
                f"{mean('job_ms'):.0f}",
                f"{mean('write_ms_p50'):.1f}",
                f"{mean('write_ms_p99'):.1f}{beside(p99)}",
                f"{mean('write_ms_max'):.1f}",
                f"{mean('dfsio_gbps'):.0f}{beside(gbps)}",
                f"{100 * mean('circuit_share'):.0f}",
                f"{100 * mean('packet_network_share'):.0f}",
                f"{(mean('circuit_bytes') + mean('packet_network_bytes')) / mean('written_bytes'):.3f}",
                len(found),
            ]
        )
    head = ["placement", "circuits", "method", "job, ms", "write p50, ms", "p99, ms", "max, ms"]
    head += ["Gbit/s", "circuit use, %", "packet use, %", "bytes sent of written", "runs"]
    ratios = ratios_table(rows)
    (sizes,) = {tuple(row[name] for name in ("racks", "writers", "blocks", "block_mib", "dilation")) for row in rows}
    racks, writers, blocks, block_mib, dilation = sizes
    late, idle = max(float(row["lateness_us_p99"]) for row in rows), min(float(row["idle_share"]) for row in rows)
    setting = (
        f"{racks} racks, {writers} writers each, {blocks} blocks of {block_mib} MiB a writer. In brackets the thesis's blocks of 128 MiB. "
        f"Dilation {dilation}: 99 % of the packets at most {late:.2f} µs late, processors at least {100 * idle:.0f} % idle."
    )
    return f"{table(head, lines, 'lllr')}\n\n{setting}\n\n{ratios}"


def document() -> str:
    """Return docs/circuit.md with the table of the committed rows."""
    blocks = {"rehdfs": jobs_table(read_csv(MEASURED / "jobs.csv"))}
    return filled(DOCUMENT.read_text(), f"experiments/{LAB.name}/measured", blocks)


check_tables = LAB.tables_of(DOCUMENT, document)


@LAB.verb("table", rows=MEASURED)
def show_table(args) -> None:
    """Prints the rows."""
    print(jobs_table(read_csv(args.rows / "jobs.csv")))


@LAB.verb(binary=BINARY, hadoop=HADOOP)
def smoke(args) -> int:
    """Checks the table of docs/circuit.md, and writes a file on each of three racks with our placement."""
    check_tables()
    require_emulator(args.binary)
    classes = class_path(args.hadoop)
    cell = {"placement": "next rack", "schedule": "ring", "method": "static", "racks": 3, "writers": 1, "blocks": 2}
    cell |= {"block_mib": 2, "dilation": 128}
    found = run(args.binary, classes, cell, tries=0)
    row = figures(cell, found)
    if not 0 < row["circuit_share"] <= 1:
        raise Failed(f"the circuits carry something, and at most their rate: {row}")
    print(f"{LAB.name}: {row['placements']} blocks of HDFS on three racks, each placed once")
    return 0


if __name__ == "__main__":
    sys.exit(LAB.main())
