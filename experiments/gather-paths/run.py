"""One object over many kinds of paths: `gather` compared with curl and aria2, on emulated networks.

``run.py all`` builds for each cell a client behind one link, with servers behind that link, and
fetches in the client's site. Each server holds the object; the clock stops when the whole object has arrived and
is equal to the servers' file. curl and HTTP/3 ask the first server, the other methods ask all.
Trials that the emulator does not trust are repeated and never counted. ``run.py simulated`` runs
the same cells in the simulator, with `gather`'s state machines and one flow of TCP's BBR from the
first server: for links that are too fast for the emulator, and for all combinations of the
settings. Cells that have rows are not run again. ``run.py explain`` traces the cells that miss their share
of the link. Standard library only, and `nginx`; ``aria2c``, and HTTP/3 where there is no ``go`` to
build ``http3``, are left out with a message. ``run.py smoke`` runs one small cell, writes
nothing and checks that its rows are plausible; if it cannot run it says ``skipped: 1 (why)``.
"""

from __future__ import annotations

import dataclasses
import filecmp
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.captures import packets
from anabranch_lab.cells import BINARY, TRIES, Experiment, Option, Row, Rows, grouped, measure, numbers, product, read_csv, repeatable, table
from anabranch_lab.programs import Failed, installed, json_lines, require_emulator, timed, toml, topology, write_nginx

LAB = Experiment(__file__, __doc__)
PORT, TLS_PORT = 7180, 7181
# Methods, and the congestion controls of TCP for each.
METHODS = {
    "gather": ["bbr"],
    "gather-link": ["bbr"],
    "gather-again": ["bbr"],
    "gather-tfrc": ["bbr"],
    "gather-26MiB": ["bbr"],
    "curl": ["bbr", "cubic"],
    "curl-tls": ["bbr", "cubic"],
    "aria2c": ["bbr", "cubic"],
    "http3": ["cubic"],
}
#: Simulated methods and their congestion controls; the simulation has no connections, TLS or
#: processors.
SIMULATED = {"gather": ["bbr"], "tcp": ["bbr"]}
FIGURES = ["took_s", "goodput_mbps", "of_link_share", "cpu_s", "dropped_packets", "lateness_us_p99"]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A kind of path, and the object that is fetched over it.

    Attributes
    ----------
    rate_mbps
        Rate of the client's link. The servers' links have twice this rate.
    rtt_ms
        Mean round trip between the client and its servers; the servers' distances behind the
        client's link are half to one and a half times the mean.
    loss
        Share of packets that the client's link loses at random, in each direction.
    burst
        Mean number of packets in a burst of these losses; 1 if packets are lost independently.
    queue_bdps
        Queue before each link, in products of the client's rate and the round trip.
    servers, size
        Number of servers, and bytes of the object.
    """

    rate_mbps: float
    rtt_ms: float
    loss: float
    burst: int
    queue_bdps: float
    servers: int
    size: int

    def least_s(self) -> float:
        """The least possible time: the nearest server's first packet arrives after a round trip;
        then the link is full until `gather`'s packets of the object, and the packets lost at
        random, have passed."""
        nearest_s = self.rtt_ms / 1e3 / 2 * (1.5 + 0.5 / self.servers)
        return nearest_s + math.ceil(self.size / BLOCK_BYTES) * PACKET_BYTES * 8e-6 / self.rate_mbps / (1 - self.loss)

    def queue_bytes(self) -> int:
        """Bytes of each queue: at least four packets."""
        return max(int(self.rate_mbps * 1e6 / 8 * self.rtt_ms / 1e3 * self.queue_bdps), 6_000)

    def topology(self) -> str:
        """Topology for `anabranch emulate`."""
        ends = [("client", self.rate_mbps, self.rtt_ms / 4, self.loss)]
        for server in range(self.servers):
            far = 0.5 + (server + 0.5) / self.servers
            ends.append((f"s{server}", 2 * self.rate_mbps, self.rtt_ms / 4 * far, 0.0))
        more = {"loss_burst": self.burst, "queue": f"{self.queue_bytes()} B"}
        cables = [
            ("switch", site, {"capacity": f"{rate} Mbit/s", "delay": f"{delay * 1e3:.0f} us", "loss_ppm": round(loss * 1e6), **more})
            for site, rate, delay, loss in ends
        ]
        return topology("paths", ["switch"], [site for site, *_ in ends], cables)


CELL = [field.name for field in dataclasses.fields(Cell)]
KEY = [*CELL, "method", "congestion_control", "trial"]
#: Values of columns that older rows do not have.
BEFORE = {"burst": "1"}
#: Integer columns; the size from which an object has a rate instead of a time; bytes of the object
#: in a packet of `gather`.
INTEGERS, LONG_BYTES, BLOCK_BYTES = ("burst", "servers", "size"), 10 << 20, 1434
#: Seconds by which a time that two verbs wrote may differ by rounding.
ROUNDED_S = 0.0015


#: Size in bytes above which a captured packet carries data; bytes of a `gather` packet.
DATA_BYTES, PACKET_BYTES = 300, 1500
#: Least share of the link, by loss, for objects of 64 MiB and more; and the busy share from which a
#: link counts as full.
BOUNDS, FULL_SHARE = {0.001: 0.93, 0.01: 0.90, 0.05: 0.85}, 0.9
PARTS = ["asked", "data", "lost", "useless", "start", "between", "end"]


def fetch(task: Row) -> list[str]:
    """Return the command that fetches the object."""
    address = [os.environ[f"ANABRANCH_ADDRESS_S{server}"] for server in range(task["servers"])]
    method = task["method"]
    if method == "curl":
        return ["curl", "--no-progress-meter", "--fail", "-o", "out/object", f"http://{address[0]}:{PORT}/object"]
    if method == "curl-tls":
        # A new connection without session resumption; as with `gather`'s servers, the certificate
        # comes from this run's authority.
        quiet = ["--no-progress-meter", "--fail", "--insecure", "--tlsv1.3", "-o", "out/object"]
        return ["curl", *quiet, f"https://{address[0]}:{TLS_PORT}/object"]
    if method == "http3":
        return [task["http3"], "get", f"https://{address[0]}:{PORT}/object", "out/object"]
    if method == "aria2c":
        count = str(max(len(address), 1))
        quiet = ["--quiet", "--file-allocation=none", "--allow-overwrite=true", "-d", "out", "-o", "object"]
        return ["aria2c", *quiet, "-s", count, "-x", "1", "-k", "1M", *(f"http://{a}:{PORT}/object" for a in address)]
    holders = ",".join(f"{a}:{PORT}" for a in address)
    link = ["--link", f"{task['rate_mbps']} Mbit/s"] if method == "gather-link" else []
    get = [task["binary"], "-q", "gather", "get", f"{holders}/object", "-o", "out/object", "--keys", "keys", "--no-sync"]
    control = ["--rate-control", "tfrc"] if method == "gather-tfrc" else []
    memory = ["--memory", "26MiB"] if method == "gather-26MiB" else []
    return [*get, *link, *control, *memory]


@LAB.inside
def trial(task: Row) -> dict[str, float]:
    """Fetch the object inside the client's site, and compare it with the servers' file."""
    os.chdir(task["folder"])
    shutil.rmtree("out", ignore_errors=True)
    os.mkdir("out")
    command = fetch(task)
    if task["method"] == "gather-again":
        # A client that fetched before has a TCP Fast Open cookie from each server.
        timed(command, task["seconds_max"])
        os.remove("out/object")
    figures = timed(command, task["seconds_max"])
    if not filecmp.cmp("out/object", "0/object", shallow=False):
        raise Failed("the object is not what its servers hold")
    return figures


def serve(binary: Path, folder: Path, method: str, server: int) -> str:
    """Return the command line that serves in a server's site."""
    keys, root = folder / "keys", folder / str(server)
    if method.startswith("gather"):
        allow = "sysctl -qw net.ipv4.tcp_fastopen=3; " if method == "gather-again" else ""
        return f"{allow}exec {binary} -q gather serve {root} --keys {keys} --listen $ANABRANCH_ADDRESS:{PORT}"
    pair = keys / "sites/server.pem", keys / "sites/server.key"
    if method == "http3":
        return f"exec {folder}/http3 serve $ANABRANCH_ADDRESS:{PORT} {root} {pair[0]} {pair[1]}"
    return "exec " + " ".join(write_nginx(folder / f"nginx-{server}.conf", [(root, [str(PORT), f"{TLS_PORT} ssl"])], pair))


def emulate(binary: Path, folder: Path, cell: Cell, method: str, control: str, seconds_max: float, tries: int = TRIES) -> Row:
    """Run one trial in a separate emulation; with 0 tries, an untrusted result is accepted."""
    payload = folder / f"object-{cell.size}"
    if not payload.exists():
        noise = random.Random(cell.size)
        with payload.open("wb") as file:
            for at in range(0, cell.size, 1 << 20):
                file.write(noise.randbytes(min(1 << 20, cell.size - at)))
    for server in range(cell.servers):
        (folder / str(server)).mkdir(exist_ok=True)
        place = folder / str(server) / "object"
        place.unlink(missing_ok=True)
        os.link(payload, place)
    programs = [(f"s{server}", serve(binary, folder, method, server)) for server in range(cell.servers)]
    task = {"servers": cell.servers, "method": method, "rate_mbps": cell.rate_mbps, "seconds_max": seconds_max}
    inside = LAB.task(trial, folder, binary=binary, http3=folder / "http3", **task)
    options = ["--tcp-buffer", "64 MiB", "--congestion-control", control, "--duration", f"{seconds_max + 60} s"]
    options += ["--settle", f"{500 + 100 * cell.servers} ms"]
    emulated = LAB.emulate(binary, folder, cell.topology(), inside, *options, site="client", programs=programs, tries=tries)
    return emulated.transfer(cell.size, cell.rate_mbps)


def run_simulator(binary: Path, folder: Path, cell: Cell, method: str, number: int, seconds_max: float, *more: object) -> Row:
    """Run one trial in the simulator, and return the row that it prints."""
    (folder / "paths.toml").write_text(cell.topology())
    (folder / "flow.csv").write_text(f"start_s,from,to,size_bytes\n0,s0,client,{cell.size}\n")
    if method == "gather":
        work = {"kind": "gather", "client": "client", "servers": cell.servers, "rounds": 1, "same_block": True}
        work |= {"block": f"{cell.size} B", "symbol": f"{BLOCK_BYTES} B", "knows_link": False}
    else:
        work = {"kind": "trace", "file": str(folder / "flow.csv")}
    scenario = {
        "duration": f"{seconds_max} s",
        # A jitter of one packet's time on the client's link prevents synchronised servers.
        "network": {"topology": str(folder / "paths.toml"), "jitter": f"{1500 * 8 / cell.rate_mbps:.2f} us"},
        # TCP as in Linux; see experiments/sim-vs-emu.
        "transport": {"control": "bbr", "rack": True, "quick_ack": 16},
        "workload": [work],
    }
    (folder / "cell.toml").write_text(toml(scenario))
    said = json_lines([binary, "-q", "simulate", folder / "cell.toml", "--json", "--set", f"seed={number + 1}", *more])[0]
    if not said["goodput_mbps"] or said.get("finished", said.get("rounds")) != 1:
        raise Failed(f"it had not ended after {seconds_max} s, and has no row")
    return said


def simulate(binary: Path, folder: Path, cell: Cell, method: str, number: int, seconds_max: float) -> Row:
    """Run one trial in the simulator, and return its row of figures."""
    said = run_simulator(binary, folder, cell, method, number, seconds_max)
    goodput = said["goodput_mbps"]
    return {
        "took_s": round(8.0 * cell.size / goodput / 1e6, 3),
        "goodput_mbps": round(goodput, 2),
        "of_link_share": round(goodput / cell.rate_mbps, 4),
        "cpu_s": "",
        "dropped_packets": said["dropped_queue_full"],
        "lateness_us_p99": "",
    }


def packets_of(path: Path) -> list[tuple[float, int]]:
    """Return delivery times in seconds and sizes in bytes of the data packets in a simulator's capture."""
    return [(packet.time_ns / 1e9, packet.size_bytes) for packet in packets(path) if packet.size_bytes > DATA_BYTES]


def split(cell: Cell, said: Row, packets: list[tuple[float, int]]) -> dict[str, float]:
    """Divide the time of a pull into parts, as shares of the whole time, and return them with the
    time.

    `asked`: time until the first packet arrived. `data`, `lost`, `useless`: time in which the
    client's link carried the object's packets, as many packets as were lost at random, and other
    packets. `start`, `between`, `end`: idle time of the link, before it was nine tenths busy for a
    round trip (or 50 packets), after that, and in the last round trip.
    """
    byte_s, rtt_s, took_s = 8e-6 / cell.rate_mbps, cell.rtt_ms / 1e3, said["round_us_p50"] / 1e6
    lost = said["dropped_otherwise"] / (len(packets) + said["dropped_otherwise"])
    needed = math.ceil(cell.size / BLOCK_BYTES)
    came = min(round(said["received_packets_per_block"] * needed), len(packets))
    busy_s = PACKET_BYTES * byte_s / (1 - lost)
    last_s = packets[came - 1][0]
    window_s = max(rtt_s, 50 * PACKET_BYTES * byte_s)
    full_s, first, used = last_s, 0, 0
    for at_s, size in packets:
        used += size
        while packets[first][0] < at_s - window_s:
            used -= packets[first][1]
            first += 1
        if at_s - packets[0][0] >= window_s and used * byte_s / (1 - lost) >= FULL_SHARE * window_s:
            full_s = at_s - window_s
            break

    def stood(begin_s: float, end_s: float) -> float:
        return end_s - begin_s - sum(size for at_s, size in packets if begin_s < at_s <= end_s) * byte_s / (1 - lost)

    tail_s = max(full_s, last_s - rtt_s)
    data_s = needed * PACKET_BYTES * byte_s
    parts_s = {
        "asked": packets[0][0] - (last_s - took_s),
        "data": data_s,
        "lost": data_s * lost / (1 - lost),
        "useless": (came - needed) * busy_s,
        "start": stood(packets[0][0], full_s),
        "between": stood(full_s, tail_s),
        "end": stood(tail_s, last_s),
    }
    return {"took_s": round(took_s, 3)} | {name: round(part_s / took_s, 4) for name, part_s in parts_s.items()}


@LAB.verb(rows=LAB.folder / "simulated.csv", out=LAB.folder / "explained.csv", binary=BINARY, seconds_max=120.0)
def explain(args) -> int:
    """Traces the first trial of each simulated cell that misses its share of the link, and divides the time into parts.

    First it removes from the output the lines of cells that now reach their share, and of trials
    whose time is now different.
    """
    of_cell = grouped((row for row in read_csv(args.rows, BEFORE) if row["method"] == "gather" and float(row["loss"]) > 0), *CELL)
    cells = {cell_of(rows[0]): rows for rows in of_cell.values()}
    missed = [cell for cell, rows in cells.items() if statistics.median(numbers(rows, "of_link_share")) < BOUNDS[cell.loss]]
    first_s = {cell: float(row["took_s"]) for cell, rows in cells.items() for row in rows if row["trial"] == "0"}
    output = Rows(args.out, CELL, [*CELL, "took_s", *PARTS], defaults=BEFORE)
    was = output.read()
    kept = [row for row in was if cell_of(row) in missed and abs(float(row["took_s"]) - first_s[cell_of(row)]) < ROUNDED_S]
    if len(kept) < len(was):
        output.write(kept)

    def trace(row: Row) -> Row:
        cell = Cell(**row)
        with tempfile.TemporaryDirectory(prefix="gather-paths-") as name:
            capture = ["--pcap", "switch-client", "--out", f"{name}/run"]
            said = run_simulator(args.binary, Path(name), cell, "gather", 0, args.seconds_max, *capture)
            return split(cell, said, packets_of(Path(name) / "run/packets.pcapng"))

    code = measure(output, map(dataclasses.asdict, missed), trace)
    explained(output.read(), list(cells))
    return code


def explained(rows: list[dict[str, str]], cells: list[Cell]) -> None:
    """Prints a line for each kind of path: the number of cells with loss and of cells that miss
    their bound; for the latter, the median of each part in percent of the time, and how many would
    miss it even in the least time (:meth:`Cell.least_s`)."""
    kinds: dict[tuple[float, float, int], list[dict[str, str]]] = {}
    for row in rows:
        kinds.setdefault((float(row["rate_mbps"]), float(row["rtt_ms"]), int(row["size"])), []).append(row)
    lines = []
    for (rate, rtt, size), those in sorted(kinds.items(), key=lambda kind: (kind[0][2], *kind[0])):
        count = sum((cell.rate_mbps, cell.rtt_ms, cell.size) == (rate, rtt, size) for cell in cells)
        medians = [f"{round(100 * statistics.median(numbers(those, part)), 1) + 0:.1f}" for part in PARTS]
        beyond = sum(8e-6 * cell.size / cell.least_s() < BOUNDS[cell.loss] * cell.rate_mbps for cell in map(cell_of, those))
        lines.append([f"{rate:g}", f"{rtt:g}", f"{size >> 20} MiB", count, len(those), *medians, beyond])
    print(table(["Mbit/s", "rtt ms", "object", "cells", "miss", *PARTS, "missed if always full"], lines, "r"))


def cell_of(row: dict[str, str]) -> Cell:
    """Return the cell of a row."""
    return Cell(**{name: (int if name in INTEGERS else float)(row[name]) for name in CELL})


AXES = {
    "binary": BINARY,
    "rate": Option([100.0], "Mbit/s of the client's link"),
    "rtt": Option([1.0, 20.0, 100.0, 250.0], "ms"),
    "loss": [0.0, 0.001, 0.01, 0.05],
    "burst": Option([1, 8], "packets of a burst of losses, in the mean"),
    "queue": Option([0.1, 1.0, 4.0], "products of rate and round trip"),
    "servers": [1, 3, 8, 32],
    "size": [64 << 10, 1 << 20, 64 << 20],
    "trials": 5,
    "seconds_max": 300.0,
    "control": Option(repeats=True, help="this congestion control of TCP"),
}


@LAB.verb("all", out=LAB.runs, only=repeatable(sorted(METHODS), "this method"), **AXES)
@LAB.verb("simulated", out=LAB.runs.with_name("gather-paths-simulated"), only=repeatable(sorted(SIMULATED), "this method"), **AXES)
def all_trials(args) -> int:
    """Runs all trials that have no row."""
    is_simulated = args.verb == "simulated"
    controls = SIMULATED if is_simulated else METHODS
    methods = installed((name for name in controls if not args.only or name in args.only), {"aria2c": "aria2c", "http3": "go"})
    ways = [(method, control) for method in methods for control in controls[method] if not args.control or control in args.control]
    axes = [args.rate, args.rtt, args.loss, args.burst, args.queue, args.servers, args.size]
    cells = [
        cell | {"method": way[0], "congestion_control": way[1], "trial": number}
        for cell in product(**dict(zip(CELL, axes, strict=True)))
        # Without losses, the length of bursts has no effect.
        if cell["loss"] > 0 or cell["burst"] == args.burst[0]
        for number in range(args.trials)
        for way in ways
    ]
    rows = Rows(args.out / "trials.csv", KEY, [*KEY, *FIGURES], defaults=BEFORE)
    with tempfile.TemporaryDirectory(prefix="gather-paths-") as name:
        folder = Path(name)
        if not is_simulated:
            subprocess.run([args.binary, "-q", "gather", "keys", "--out", folder / "keys"], check=True)
        if "http3" in methods:
            subprocess.run(["go", "build", "-o", folder / "http3", "."], cwd=LAB.folder / "http3", check=True)

        def run(row: Row) -> Row:
            cell, method = Cell(**{name: row[name] for name in CELL}), row["method"]
            if is_simulated:
                return simulate(args.binary, folder, cell, method, row["trial"], args.seconds_max)
            return emulate(args.binary, folder, cell, method, row["congestion_control"], args.seconds_max)

        code = measure(rows, cells, run)
    medians(rows.read(), is_simulated)
    return code


@LAB.verb(
    "table",
    rows=LAB.folder / "measured.csv",
    behind=Option(False, "only where `gather` is behind by more than 5 %%, and how many cells there are"),
)
def show_table(args) -> None:
    """Prints the medians of the rows."""
    medians(read_csv(args.rows, BEFORE), args.behind)


def medians(rows: list[dict[str, str]], is_brief: bool) -> None:
    """Print a line for each cell, as in the README; if brief, only the cells in which `gather` is behind, and their number.

    Values are medians, with the number of trials in brackets: Mbit/s of the object, milliseconds
    for objects below 10 MiB. Values of `gather` are bold if the best other method is better by more
    than 5 %. The last column is the number of packets of `gather` that full queues dropped, as a
    share of the object's packets.
    """
    cells = {cell_of(those[0]): grouped(those, "method", "congestion_control") for those in grouped(rows, *CELL).values()}
    ways = [(method, control) for method, controls in (METHODS | SIMULATED).items() for control in controls]
    ways = [way for way in ways if any(way in methods for methods in cells.values())]
    behind, lines = 0, []
    for cell in sorted(cells, key=lambda cell: tuple(-value if name == "size" else value for name, value in dataclasses.asdict(cell).items())):
        is_short, methods = cell.size < LONG_BYTES, cells[cell]
        took = {way: statistics.median(numbers(those, "took_s")) for way, those in methods.items()}
        least = min((took[way] for way in took if not way[0].startswith("gather")), default=math.inf)
        is_behind = took.get(("gather", "bbr"), 0.0) * 0.95 > least
        behind += is_behind
        if is_brief and not is_behind:
            continue
        told = []
        for way in ways:
            figure = "" if way not in took else f"{took[way] * 1e3:.0f} ms" if is_short else f"{8 * cell.size / took[way] / 1e6:.1f}"
            bold = f"**{figure}**" if is_behind and way == ("gather", "bbr") else figure
            told.append(f"{bold} ({len(methods[way])})" if figure else "")
        dropped = numbers(methods.get(("gather", "bbr"), []), "dropped_packets")
        share = f"{100 * statistics.median(dropped) / (cell.size / BLOCK_BYTES):.1f}" if dropped else ""
        size = f"{cell.size >> 20} MiB" if cell.size >= 1 << 20 else f"{cell.size >> 10} KiB"
        where = [f"{cell.rate_mbps:g}", f"{cell.rtt_ms:g}", f"{100 * cell.loss:g}", cell.burst, f"{cell.queue_bdps:g}", cell.servers, size]
        lines.append([*where, *told, share])
    names = [method if control == "bbr" else f"{method}/{control}" for method, control in ways]
    print(table(["Mbit/s", "rtt ms", "loss %", "burst", "queue", "servers", "object", *names, "dropped %"], lines, "r"))
    if is_brief:
        print(f"{behind} of {len(cells)} cells")


@LAB.verb(binary=BINARY)
def smoke(args) -> None:
    """Runs one small cell by `gather` and, if installed, by curl; checks its rows."""
    seconds_max, cell = 60.0, Cell(20.0, 10.0, 0.01, 4, 1.0, 2, 256 << 10)
    with tempfile.TemporaryDirectory(prefix="gather-paths-") as name:
        folder = Path(name)
        capture = ["--pcap", "switch-client", "--out", folder / "run"]
        said = run_simulator(args.binary, folder, cell, "gather", 0, seconds_max, *capture)
        parts = split(cell, said, packets_of(folder / "run/packets.pcapng"))
        assert abs(sum(parts[part] for part in PARTS) - 1) < 0.02, f"the parts of a pull's time are all of it: {parts}"
        assert min(parts.values()) > -0.02, f"no part is less than nothing: {parts}"
        require_emulator(args.binary)
        subprocess.run([args.binary, "-q", "gather", "keys", "--out", folder / "keys"], check=True)
        for method in ["gather", *(["curl", "curl-tls"] if shutil.which("nginx") and shutil.which("curl") else [])]:
            # The checks of a sample also hold for late emulations.
            row = emulate(args.binary, folder, cell, method, "reno", seconds_max, tries=0)
            assert list(row) == FIGURES, "a row has every column"
            # The time of a request and its answer, and of all bytes at the link's rate.
            least_s = cell.rtt_ms / 1e3 * 0.7 + 8 * cell.size / cell.rate_mbps / 1e6
            assert least_s <= row["took_s"] <= seconds_max, f"{method} took {row['took_s']} s, at least {least_s:.3f} are needed"
            assert 0 < row["of_link_share"] < 1, f"{method} had {row['of_link_share']} of the link"
            print(f"{method}: {row['took_s']} s, {row['of_link_share']} of the link")


if __name__ == "__main__":
    sys.exit(LAB.main())
