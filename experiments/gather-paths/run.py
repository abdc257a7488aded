"""One object over many kinds of paths: `gather` beside curl and aria2, on emulated networks.

``run.py all`` builds for each cell a client behind one link, and servers behind that; it runs ``run.py trial`` in the client's site.
Each server holds the object; the clock stops when all of it is there, equal to what servers hold. curl and HTTP/3 ask the first server, the
others ask all. What the emulator does not trust is tried again and never counted. ``run.py simulated`` runs the same cells in the simulator,
`gather`'s machines beside one flow of TCP's BBR from the first server: for links that the emulator does not carry, and for all of the product.
Cells that are in the output are not run again. ``run.py explain`` traces those that miss their share of the link. Standard library only, and `nginx`; ``aria2c``, and HTTP/3 where there is no ``go`` to build
``http3``, are left out with a line that says so. ``run.py smoke`` runs one small cell, writes nothing and checks that its rows make sense; where
it cannot run it says ``skipped: 1 (why)``.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import filecmp
import getpass
import itertools
import json
import math
import os
import pathlib
import random
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PORT, TLS_PORT = 7180, 7181
TRIES = 3
# Method, and the congestion controls of TCP with which it is tried.
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
#: What is simulated: without connections, TLS and processors.
SIMULATED = {"gather": ["bbr"], "tcp": ["bbr"]}
FIGURES = ["took_s", "goodput_mbps", "of_link_share", "cpu_s", "dropped_packets", "lateness_us_p99"]
NGINX = """user {user}; daemon off; worker_processes 1; pid {folder}/nginx-{server}.pid; error_log /dev/null;
events {{ worker_connections 256; }}
http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;
client_body_temp_path {folder}/t; proxy_temp_path {folder}/t; fastcgi_temp_path {folder}/t; uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;
server {{ listen {port}; listen {tls_port} ssl; root {folder}/{server};
ssl_certificate {folder}/keys/sites/server.pem; ssl_certificate_key {folder}/keys/sites/server.key; ssl_protocols TLSv1.3; }} }}
"""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A kind of path, and what comes over it.

    Attributes
    ----------
    rate_mbps
        Of the client's link. Servers' links have twice as much.
    rtt_ms
        Between the client and the mean server; servers are half to one and a half times as far behind the client's link as the mean.
    loss
        The share of packets that the client's link loses at random, each way.
    burst
        How many packets a burst of these losses takes in the mean; 1 where each packet is lost or not on its own.
    queue_bdps
        The queue before each link, in products of the client's rate and the round trip.
    servers, size
        How many servers there are; bytes of the object.
    """

    rate_mbps: float
    rtt_ms: float
    loss: float
    burst: int
    queue_bdps: float
    servers: int
    size: int

    def least_s(self) -> float:
        """How long it takes at least: the nearest server's first packet comes after a round trip, and the link is full then, with `gather`'s
        packets of the object and as many as chance has lost."""
        nearest_s = self.rtt_ms / 1e3 / 2 * (1.5 + 0.5 / self.servers)
        return nearest_s + math.ceil(self.size / BLOCK_BYTES) * PACKET_BYTES * 8e-6 / self.rate_mbps / (1 - self.loss)

    def queue_bytes(self) -> int:
        """Bytes of each queue: four packets at least."""
        return max(int(self.rate_mbps * 1e6 / 8 * self.rtt_ms / 1e3 * self.queue_bdps), 6_000)

    def topology(self) -> str:
        """As `anabranch emulate` reads it."""
        lines = ['name = "paths"', "[[site]]", 'name = "switch"', "switch = true", "[[site]]", 'name = "client"']
        for server in range(self.servers):
            lines += ["[[site]]", f'name = "s{server}"']
        ends = [("client", self.rate_mbps, self.rtt_ms / 4, self.loss)]
        for server in range(self.servers):
            far = 0.5 + (server + 0.5) / self.servers
            ends.append((f"s{server}", 2 * self.rate_mbps, self.rtt_ms / 4 * far, 0.0))
        for site, rate, delay, loss in ends:
            lines += ["[[cable]]", f'between = ["switch", "{site}"]', f'capacity = "{rate} Mbit/s"', f'delay = "{delay * 1e3:.0f} us"']
            lines += [f"loss_ppm = {round(loss * 1e6)}", f"loss_burst = {self.burst}", f'queue = "{self.queue_bytes()} B"']
        return "\n".join(lines) + "\n"


COLUMNS = [field.name for field in dataclasses.fields(Cell)] + ["method", "congestion_control", "trial", *FIGURES]
#: What rows had before there was a column for it.
BEFORE = {"burst": "1"}
#: Columns of whole numbers; from so many bytes on an object has a rate, and before it a time; bytes of an object in a packet of `gather`.
INTEGERS, LONG_BYTES, BLOCK_BYTES = ("burst", "servers", "size"), 10 << 20, 1434
#: Seconds by which a time that two verbs wrote may differ by rounding.
ROUNDED_S = 0.0015


#: Of captures: the kind of a block that is a packet, and what a packet of data has more bytes than; bytes of one of `gather`'s.
ENHANCED_PACKET, DATA_BYTES, PACKET_BYTES = 6, 300, 1500
#: What is asked of objects of 64 MiB and more: so much of the link where so much is lost. A link is full that is busy for such a share.
BOUNDS, FULL_SHARE = {0.001: 0.93, 0.01: 0.90, 0.05: 0.85}, 0.9
PARTS = ["asked", "data", "lost", "useless", "start", "between", "end"]


def fetch(task: dict[str, object]) -> list[str]:
    """The command that fetches the object."""
    address = [os.environ[f"ANABRANCH_ADDRESS_S{server}"] for server in range(int(str(task["servers"])))]
    method = str(task["method"])
    if method == "curl":
        return ["curl", "--no-progress-meter", "--fail", "-o", "out/object", f"http://{address[0]}:{PORT}/object"]
    if method == "curl-tls":
        # A connection of its own, nothing resumed; as of `gather`'s servers, the certificate is of this run's own authority.
        quiet = ["--no-progress-meter", "--fail", "--insecure", "--tlsv1.3", "-o", "out/object"]
        return ["curl", *quiet, f"https://{address[0]}:{TLS_PORT}/object"]
    if method == "http3":
        return [str(task["http3"]), "get", f"https://{address[0]}:{PORT}/object", "out/object"]
    if method == "aria2c":
        count = str(max(len(address), 1))
        quiet = ["--quiet", "--file-allocation=none", "--allow-overwrite=true", "-d", "out", "-o", "object"]
        return ["aria2c", *quiet, "-s", count, "-x", "1", "-k", "1M", *(f"http://{a}:{PORT}/object" for a in address)]
    holders = ",".join(f"{a}:{PORT}" for a in address)
    link = ["--link", f"{task['rate_mbps']} Mbit/s"] if method == "gather-link" else []
    get = [str(task["binary"]), "-q", "gather", "get", f"{holders}/object", "-o", "out/object", "--keys", "keys", "--no-sync"]
    control = ["--rate-control", "tfrc"] if method == "gather-tfrc" else []
    memory = ["--memory", "26MiB"] if method == "gather-26MiB" else []
    return [*get, *link, *control, *memory]


def run_trial(task: dict[str, object]) -> dict[str, float]:
    """Fetches, inside the client's site."""
    os.chdir(str(task["folder"]))
    shutil.rmtree("out", ignore_errors=True)
    os.mkdir("out")
    command = fetch(task)
    if task["method"] == "gather-again":
        # Who was here before has a cookie of TCP Fast Open from each server.
        subprocess.run(["timeout", str(task["seconds_max"]), *command], check=True)
        os.remove("out/object")
    used_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    # Bounded by `timeout`, as Python's own wait with a bound looks only twenty times a second.
    subprocess.run(["timeout", str(task["seconds_max"]), *command], check=True)
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not filecmp.cmp("out/object", "0/object", shallow=False):
        raise SystemExit("run.py: the object is not what its servers hold")
    cpu_s = used.ru_utime + used.ru_stime - used_before.ru_utime - used_before.ru_stime
    return {"took_s": seconds, "cpu_s": cpu_s}


def emulate(args: argparse.Namespace, folder: pathlib.Path, cell: Cell, method: str, control: str) -> dict[str, object]:
    """One trial in an emulation of its own.

    Raises
    ------
    SystemExit
        If it fails, or is not trusted three times.
    """
    (folder / "paths.toml").write_text(cell.topology())
    for server in range(cell.servers):
        (folder / str(server)).mkdir(exist_ok=True)
        (folder / f"nginx-{server}.conf").write_text(NGINX.format(user=getpass.getuser(), folder=folder, server=server, port=PORT, tls_port=TLS_PORT))
    payload = folder / f"object-{cell.size}"
    if not payload.exists():
        noise = random.Random(cell.size)
        with payload.open("wb") as file:
            for at in range(0, cell.size, 1 << 20):
                file.write(noise.randbytes(min(1 << 20, cell.size - at)))
    for server in range(cell.servers):
        place = folder / str(server) / "object"
        place.unlink(missing_ok=True)
        os.link(payload, place)
    result, report = folder / "result.json", folder / "report.json"
    result.unlink(missing_ok=True)
    task = {
        "folder": str(folder),
        "servers": cell.servers,
        "method": method,
        "rate_mbps": cell.rate_mbps,
        "binary": str(args.binary),
        "http3": str(folder / "http3"),
        "seconds_max": args.seconds_max,
        "result": str(result),
    }
    serve = []
    for server in range(cell.servers):
        if method.startswith("gather"):
            allow = "sysctl -qw net.ipv4.tcp_fastopen=3; " if method == "gather-again" else ""
            line = f"{allow}exec {args.binary} -q gather serve {folder}/{server} --keys {folder}/keys --listen $ANABRANCH_ADDRESS:{PORT}"
        elif method == "http3":
            own = [f"{folder}/keys/sites/server.{kind}" for kind in ("pem", "key")]
            line = f"exec {folder}/http3 serve $ANABRANCH_ADDRESS:{PORT} {folder}/{server} {' '.join(own)}"
        else:
            line = f"exec nginx -c {folder}/nginx-{server}.conf"
        serve += ["--run", f"s{server}={line}"]
    command = [str(args.binary), "-q", "emulate", str(folder / "paths.toml"), "--site", "client", "--tcp-buffer", "64 MiB"]
    command += ["--congestion-control", control, "--report", str(report), "--duration", f"{args.seconds_max + 60} s"]
    command += ["--settle", f"{500 + 100 * cell.servers} ms", *serve]
    command += ["--", sys.executable, str(HERE / "run.py"), "trial", json.dumps(task)]
    for _ in range(TRIES):
        subprocess.run(command, check=True)
        emulated = json.loads(report.read_text())["report"]
        # What a sample checks holds of late emulations, too.
        if emulated["trusted"] or args.verb == "smoke":
            break
    else:
        raise SystemExit(f"run.py: {cell} by {method}: the emulation was too late {TRIES} times")
    figures = json.loads(result.read_text())
    goodput = 8.0 * cell.size / figures["took_s"] / 1e6
    return {
        "took_s": round(figures["took_s"], 3),
        "goodput_mbps": round(goodput, 2),
        "of_link_share": round(goodput / cell.rate_mbps, 4),
        "cpu_s": round(figures["cpu_s"], 3),
        "dropped_packets": emulated["drops"]["queue_full"],
        "lateness_us_p99": emulated["lateness_us_p99"],
    }


def run_simulator(args: argparse.Namespace, folder: pathlib.Path, cell: Cell, method: str, trial: int, more: Sequence[str] = ()) -> dict[str, float]:
    """What the simulator says of one trial; nothing where it does not end."""
    (folder / "paths.toml").write_text(cell.topology())
    (folder / "flow.csv").write_text(f"start_s,from,to,size_bytes\n0,s0,client,{cell.size}\n")
    lines = [f'duration = "{args.seconds_max} s"', "[network]", f'topology = "{folder / "paths.toml"}"']
    # The time of a packet on the client's link keeps servers from falling into step. TCP as Linux has it; see experiments/sim-vs-emu.
    lines += [f'jitter = "{1500 * 8 / cell.rate_mbps:.2f} us"', "[transport]", 'control = "bbr"', "rack = true", "quick_ack = 16", "[[workload]]"]
    if method == "gather":
        lines += ['kind = "gather"', 'client = "client"', f"servers = {cell.servers}", "rounds = 1", "same_block = true"]
        lines += [f'block = "{cell.size} B"', f'symbol = "{BLOCK_BYTES} B"', "knows_link = false"]
    else:
        lines += ['kind = "trace"', f'file = "{folder / "flow.csv"}"']
    (folder / "cell.toml").write_text("\n".join(lines) + "\n")
    command = [str(args.binary), "-q", "simulate", str(folder / "cell.toml"), "--json", "--set", f"seed={trial + 1}", *more]
    said: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[0])
    if not said["goodput_mbps"] or said.get("finished", said.get("rounds")) != 1:
        print(f"run.py: {cell} by {method}: it had not ended after {args.seconds_max} s, and has no row", file=sys.stderr)
        return {}
    return said


def simulate(args: argparse.Namespace, folder: pathlib.Path, cell: Cell, method: str, trial: int) -> dict[str, object]:
    """One trial in the simulator; nothing where it does not end."""
    said = run_simulator(args, folder, cell, method, trial)
    if not said:
        return {}
    goodput = said["goodput_mbps"]
    return {
        "took_s": round(8.0 * cell.size / goodput / 1e6, 3),
        "goodput_mbps": round(goodput, 2),
        "of_link_share": round(goodput / cell.rate_mbps, 4),
        "cpu_s": "",
        "dropped_packets": said["dropped_queue_full"],
        "lateness_us_p99": "",
    }


def packets_of(path: pathlib.Path) -> list[tuple[float, int]]:
    """When packets were delivered, in seconds, and their bytes: those that carry data, from a capture of the simulator's."""
    blob, at, packets = path.read_bytes(), 0, []
    while at < len(blob):
        kind, length = struct.unpack_from("<II", blob, at)
        if kind == ENHANCED_PACKET:
            high, low, _, size = struct.unpack_from("<IIII", blob, at + 12)
            if size > DATA_BYTES:
                packets.append(((high << 32 | low) / 1e9, size))
        at += length
    return packets


def split(cell: Cell, said: dict[str, float], packets: list[tuple[float, int]]) -> dict[str, float]:
    """Where the time of a pull went, as shares of it, and how long it took.

    `asked`: until the first packet came. `data`, `lost`, `useless`: what the client's link was busy with: the object's packets, as many as were
    lost by chance, and others. `start`, `between`, `end`: how long it stood, before it was nine tenths busy for a round trip (or 50 packets),
    after that, and in the last round trip.
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


def explain(args: argparse.Namespace) -> int:
    """Traces the first trial of each simulated cell that misses its share of the link, and says where the time went.

    Lines of cells that miss it no longer, and of trials that took another time than now, are left out of the output first.
    """
    cells: dict[Cell, list[float]] = {}
    first_s: dict[Cell, float] = {}
    for row in read(args.rows):
        if row["method"] == "gather" and float(row["loss"]) > 0:
            cells.setdefault(cell_of(row), []).append(float(row["of_link_share"]))
            if row["trial"] == "0":
                first_s[cell_of(row)] = float(row["took_s"])
    missed = [cell for cell, shares in cells.items() if statistics.median(shares) < BOUNDS[cell.loss]]
    columns = [field.name for field in dataclasses.fields(Cell)] + ["took_s", *PARTS]
    was = read(args.out)
    kept = [row for row in was if cell_of(row) in missed and abs(float(row["took_s"]) - first_s[cell_of(row)]) < ROUNDED_S]
    if len(kept) < len(was):
        write(args.out, columns, kept)
    done = {cell_of(row) for row in kept}
    for cell in missed:
        row: dict[str, object] = dataclasses.asdict(cell)
        if cell in done:
            continue
        with tempfile.TemporaryDirectory(prefix="gather-paths-") as name:
            capture = pathlib.Path(name) / "run"
            said = run_simulator(args, pathlib.Path(name), cell, "gather", 0, ["--pcap", "switch-client", "--out", str(capture)])
            if not said:
                continue
            row |= split(cell, said, packets_of(capture / "packets.pcapng"))
        new = not args.out.exists()
        with args.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, columns)
            if new:
                writer.writeheader()
            writer.writerow(row)
    explained(args.out, cells)
    return 0


def explained(path: pathlib.Path, cells: dict[Cell, list[float]]) -> None:
    """Prints a line for each kind of path: cells with loss and those that miss; of these, in percent of the time, the median of each part; and
    how many would miss it in the least time (:meth:`Cell.least_s`), too."""
    kinds: dict[tuple[float, float, int], list[dict[str, str]]] = {}
    for row in read(path):
        kinds.setdefault((float(row["rate_mbps"]), float(row["rtt_ms"]), int(row["size"])), []).append(row)
    print("| Mbit/s | rtt ms | object | cells | miss | " + " | ".join(PARTS) + " | missed if always full |")
    print("| ---: | ---: | ---: | ---: | ---: |" + " ---: |" * (len(PARTS) + 1))
    for (rate, rtt, size), rows in sorted(kinds.items(), key=lambda kind: (kind[0][2], *kind[0])):
        count = sum((cell.rate_mbps, cell.rtt_ms, cell.size) == (rate, rtt, size) for cell in cells)
        medians = [f"{round(100 * statistics.median(float(row[part]) for row in rows), 1) + 0:.1f}" for part in PARTS]
        missing = [cell_of(row) for row in rows]
        beyond = sum(8e-6 * cell.size / cell.least_s() < BOUNDS[cell.loss] * cell.rate_mbps for cell in missing)
        print(f"| {rate:g} | {rtt:g} | {size >> 20} MiB | {count} | {len(rows)} | " + " | ".join(medians) + f" | {beyond} |")


def cell_of(row: dict[str, str]) -> Cell:
    """Whose trial a row is."""
    return Cell(**{field.name: (int if field.name in INTEGERS else float)(row[field.name]) for field in dataclasses.fields(Cell)})


def key(row: dict[str, object]) -> tuple[str, ...]:
    """What tells a trial from others."""
    return tuple(str(row[column]) for column in COLUMNS if column not in FIGURES)


def read(path: pathlib.Path) -> list[dict[str, str]]:
    """The rows so far, those of before a column filled in."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [{**BEFORE, **row} for row in csv.DictReader(file)]


def renew(path: pathlib.Path) -> None:
    """Gives rows of before a column that column, so that others can follow."""
    rows = read(path)
    if not rows or path.read_text().splitlines()[0].split(",") == COLUMNS:
        return
    write(path, COLUMNS, rows)


def write(path: pathlib.Path, columns: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    """Puts a file with these rows in the place of one, when all of it is written."""
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    new.rename(path)


def run_all(args: argparse.Namespace) -> int:
    """All trials that are not in the output yet."""
    args.out.mkdir(parents=True, exist_ok=True)
    rows = args.out / "trials.csv"
    renew(rows)
    done = {key(dict(row)) for row in read(rows)}
    is_simulated = args.verb == "simulated"
    methods = {name: controls for name, controls in (SIMULATED if is_simulated else METHODS).items() if not args.only or name in args.only}
    if "aria2c" in methods and shutil.which("aria2c") is None:
        print("run.py: aria2c is not installed: left out", file=sys.stderr)
        del methods["aria2c"]
    if "http3" in methods and shutil.which("go") is None:
        print("run.py: go is not installed: HTTP/3 is left out", file=sys.stderr)
        del methods["http3"]
    paths = itertools.product(args.rate, args.rtt, args.loss, args.burst, args.queue, args.servers, args.size)
    # Bursts of no losses are none.
    cells = [cell for cell in itertools.starmap(Cell, paths) if cell.loss > 0 or cell.burst == args.burst[0]]
    with tempfile.TemporaryDirectory(prefix="gather-paths-") as name:
        folder = pathlib.Path(name)
        if not is_simulated:
            subprocess.run([str(args.binary), "-q", "gather", "keys", "--out", str(folder / "keys")], check=True)
        if "http3" in methods:
            subprocess.run(["go", "build", "-o", str(folder / "http3"), "."], cwd=HERE / "http3", check=True)
        for cell, trial, (method, controls) in itertools.product(cells, range(args.trials), methods.items()):
            for control in controls:
                if args.control and control not in args.control:
                    continue
                row = {**dataclasses.asdict(cell), "method": method, "congestion_control": control, "trial": trial}
                if key(row) in done:
                    continue
                figures = simulate(args, folder, cell, method, trial) if is_simulated else emulate(args, folder, cell, method, control)
                if not figures:
                    continue
                row |= figures
                new = not rows.exists()
                with rows.open("a", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    if new:
                        writer.writeheader()
                    writer.writerow(row)
                print(" ".join(f"{column}={row[column]}" for column in COLUMNS), flush=True)
    table(rows, is_brief=is_simulated)
    return 0


def table(path: pathlib.Path, is_brief: bool = False) -> None:
    """Prints a line for each cell, as the README has it, or where it is brief those alone where `gather` is behind, and how many there are.

    Medians, over as many trials as stand in brackets: Mbit/s of the object, milliseconds for objects below 10 MiB. Bold
    is `gather` where the best of the others is better by more than 5 %. At the end the share of an object's packets that `gather` had
    dropped by full queues.
    """
    cells: dict[Cell, dict[str, list[dict[str, str]]]] = {}
    for row in read(path):
        cells.setdefault(cell_of(row), {}).setdefault(f"{row['method']}/{row['congestion_control']}", []).append(row)
    names = [f"{method}/{control}" for method, controls in (METHODS | SIMULATED).items() for control in controls]
    names = [name for name in names if any(name in methods for methods in cells.values())]
    print("| Mbit/s | rtt ms | loss % | burst | queue | servers | object | " + " | ".join(name.removesuffix("/bbr") for name in names) + " | dropped % |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |" + " ---: |" * (len(names) + 1))
    behind = 0
    for cell in sorted(cells, key=lambda cell: tuple(-value if name == "size" else value for name, value in dataclasses.asdict(cell).items())):
        is_short, methods = cell.size < LONG_BYTES, cells[cell]
        took = {name: statistics.median(float(row["took_s"]) for row in rows) for name, rows in methods.items()}
        least = min((took[name] for name in took if not name.startswith("gather")), default=math.inf)

        is_behind = took.get("gather/bbr", 0.0) * 0.95 > least
        behind += is_behind
        if is_brief and not is_behind:
            continue

        def told(name: str) -> str:
            if name not in took:
                return ""
            figure = f"{took[name] * 1e3:.0f} ms" if is_short else f"{8 * cell.size / took[name] / 1e6:.1f}"
            return (f"**{figure}**" if is_behind and name == "gather/bbr" else figure) + f" ({len(methods[name])})"

        dropped = [float(row["dropped_packets"]) for row in methods.get("gather/bbr", [])]
        share = f"{100 * statistics.median(dropped) / (cell.size / BLOCK_BYTES):.1f}" if dropped else ""
        size = f"{cell.size >> 20} MiB" if cell.size >= 1 << 20 else f"{cell.size >> 10} KiB"
        where = (f"{cell.rate_mbps:g}", f"{cell.rtt_ms:g}", f"{100 * cell.loss:g}", str(cell.burst), f"{cell.queue_bdps:g}", str(cell.servers), size)
        print("| " + " | ".join([*where, *map(told, names), share]) + " |")
    if is_brief:
        print(f"{behind} of {len(cells)} cells")


def smoke(args: argparse.Namespace) -> int:
    """One small cell by `gather` and, where they are installed, by curl: rows are whole, and no faster than the path."""
    args.seconds_max = 60.0
    cell = Cell(20.0, 10.0, 0.01, 4, 1.0, 2, 256 << 10)
    with tempfile.TemporaryDirectory(prefix="gather-paths-") as name:
        folder = pathlib.Path(name)
        capture = folder / "run"
        said = run_simulator(args, folder, cell, "gather", 0, ["--pcap", "switch-client", "--out", str(capture)])
        parts = split(cell, said, packets_of(capture / "packets.pcapng"))
        assert abs(sum(parts[part] for part in PARTS) - 1) < 0.02, f"the parts of a pull's time are all of it: {parts}"
        assert min(parts.values()) > -0.02, f"no part is less than nothing: {parts}"
        (folder / "paths.toml").write_text(cell.topology())
        probe = [str(args.binary), "-q", "emulate", str(folder / "paths.toml"), "--", "true"]
        probed = subprocess.run(probe, check=False, capture_output=True, text=True)
        if probed.returncode != 0:
            print(f"gather-paths: skipped: 1 ({' '.join(probed.stderr.split())})")
            return 0
        subprocess.run([str(args.binary), "-q", "gather", "keys", "--out", str(folder / "keys")], check=True)
        methods = ["gather"]
        if shutil.which("nginx") and shutil.which("curl"):
            methods += ["curl", "curl-tls"]
        for method in methods:
            figures = emulate(args, folder, cell, method, "reno")
            row = {**dataclasses.asdict(cell), "method": method, "congestion_control": "reno", "trial": 0, **figures}
            assert set(row) == set(COLUMNS), "a row has every column"
            # A question and its answer, and all bytes at the link's rate.
            least_s = cell.rtt_ms / 1e3 * 0.7 + 8 * cell.size / cell.rate_mbps / 1e6
            assert least_s <= row["took_s"] <= args.seconds_max, f"{method} took {row['took_s']} s, at least {least_s:.3f} are needed"
            assert 0 < row["of_link_share"] < 1, f"{method} had {row['of_link_share']} of the link"
            print(f"{method}: {row['took_s']} s, {row['of_link_share']} of the link")
        (folder / "old.csv").write_text("rate_mbps,rtt_ms,loss,queue_bdps\n100.0,20.0,0.0,1.0\n")
        renew(folder / "old.csv")
        assert read(folder / "old.csv")[0]["burst"] == "1", "rows of before have losses that are on their own"
    return 0


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, methods in (("all", METHODS), ("simulated", SIMULATED)):
        every = verbs.add_parser(verb)
        every.add_argument("--out", type=pathlib.Path, default=ROOT / "runs" / ("gather-paths" if verb == "all" else "gather-paths-simulated"))
        every.add_argument("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "anabranch")
        every.add_argument("--rate", type=float, nargs="+", default=[100.0], help="Mbit/s of the client's link")
        every.add_argument("--rtt", type=float, nargs="+", default=[1.0, 20.0, 100.0, 250.0], help="ms")
        every.add_argument("--loss", type=float, nargs="+", default=[0.0, 0.001, 0.01, 0.05])
        every.add_argument("--burst", type=int, nargs="+", default=[1, 8], help="packets of a burst of losses, in the mean")
        every.add_argument("--queue", type=float, nargs="+", default=[0.1, 1.0, 4.0], help="products of rate and round trip")
        every.add_argument("--servers", type=int, nargs="+", default=[1, 3, 8, 32])
        every.add_argument("--size", type=int, nargs="+", default=[64 << 10, 1 << 20, 64 << 20])
        every.add_argument("--trials", type=int, default=5)
        every.add_argument("--seconds-max", type=float, default=300.0)
        every.add_argument("--only", action="append", default=[], choices=sorted(methods), help="this method")
        every.add_argument("--control", action="append", default=[], help="this congestion control of TCP")
    shown = verbs.add_parser("table")
    shown.add_argument("--rows", type=pathlib.Path, default=HERE / "measured.csv")
    shown.add_argument("--behind", action="store_true", help="only where `gather` is behind by more than 5 %%, and how many cells there are")
    traced = verbs.add_parser("explain")
    traced.add_argument("--rows", type=pathlib.Path, default=HERE / "simulated.csv")
    traced.add_argument("--out", type=pathlib.Path, default=HERE / "explained.csv")
    traced.add_argument("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "anabranch")
    traced.add_argument("--seconds-max", type=float, default=120.0)
    verbs.add_parser("trial").add_argument("task")
    small = verbs.add_parser("smoke")
    small.add_argument("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "anabranch")
    args = parser.parse_args()
    if hasattr(args, "binary"):
        # Trials run in other folders.
        args.binary = args.binary.resolve()
    if args.verb == "smoke":
        return smoke(args)
    if args.verb in ("all", "simulated"):
        return run_all(args)
    if args.verb == "explain":
        return explain(args)
    if args.verb == "table":
        table(args.rows, is_brief=args.behind)
        return 0
    task = json.loads(args.task)
    pathlib.Path(task["result"]).write_text(json.dumps(run_trial(task)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
