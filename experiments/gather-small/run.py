"""Many short objects: `gather` beside curl and aria2, on loopback and on emulated networks.

``run.py all`` has every method bring the same objects, in turns. On loopback the client and its servers are programs of this machine; in an
emulation the client is behind one link, with the servers behind that, and ``run.py trial`` runs in the client's site. The clock stops when
all objects are there, equal to what servers hold; files are written to memory (``--scratch``). curl asks the first server, over one kept
connection; aria2 and `gather` have the names of all. What the emulator does not trust is tried again and never counted. Cells that are in
the output are not run again. Standard library only, `nginx` and `openssl`; ``aria2c`` is left out, with a line that says so, where it is
not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import getpass
import itertools
import json
import os
import pathlib
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Of the first server; of nginx with TLS, the ports behind.
PORT = 7480
TLS = 100
TRIES = 3
SERVERS = 3
METHODS = ["gather", "curl", "curl-tls", "aria2c", "aria2c-16"]
NGINX = """user {user}; daemon off; worker_processes 1; pid {folder}/nginx-{server}.pid; error_log /dev/null;
events {{ worker_connections 256; }}
http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;
client_body_temp_path {folder}/t; proxy_temp_path {folder}/t; fastcgi_temp_path {folder}/t; uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;
server {{ listen {port}; listen {tls} ssl; root {folder}/{server}; ssl_certificate {folder}/tls.crt; ssl_certificate_key {folder}/tls.key; }} }}
"""


@dataclasses.dataclass(frozen=True)
class Cell:
    """What comes, and over which network.

    Attributes
    ----------
    objects, size
        How many objects there are; bytes of each.
    rate_mbps
        Of the client's link; 0 for loopback. Servers' links have twice as much.
    rtt_ms
        Between the client and the mean server.
    loss
        The share of packets that the client's link loses at random, each way.
    """

    objects: int
    size: int
    rate_mbps: float
    rtt_ms: float
    loss: float

    def topology(self) -> str:
        """As `anabranch emulate` reads it: queues of one product of rate and round trip."""
        queue = max(int(self.rate_mbps * 1e6 / 8 * self.rtt_ms / 1e3), 6_000)
        lines = ['name = "small"', "[[site]]", 'name = "switch"', "switch = true", "[[site]]", 'name = "client"']
        ends = [("client", self.rate_mbps, self.rtt_ms / 4, self.loss)]
        for server in range(SERVERS):
            lines += ["[[site]]", f'name = "s{server}"']
            ends.append((f"s{server}", 2 * self.rate_mbps, self.rtt_ms / 4 * (0.5 + (server + 0.5) / SERVERS), 0.0))
        for site, rate, delay, loss in ends:
            lines += ["[[cable]]", f'between = ["switch", "{site}"]', f'capacity = "{rate} Mbit/s"', f'delay = "{delay * 1e3:.0f} us"']
            lines += [f"loss_ppm = {round(loss * 1e6)}", f'queue = "{queue} B"']
        return "\n".join(lines) + "\n"


CELL = [field.name for field in dataclasses.fields(Cell)]
FIGURES = ["took_s", "goodput_mbps", "cpu_s", "servers_cpu_s"]
COLUMNS = [*CELL, "method", "trial", *FIGURES]


def names(cell: Cell) -> list[str]:
    """The objects' names."""
    return [f"o{number:05}" for number in range(cell.objects)]


def fetch(task: dict[str, object], cell: Cell, addresses: list[str]) -> list[str]:
    """The command that fetches the objects; what it reads them from is written to `list` here."""
    method, out = str(task["method"]), str(task["out"])
    ports = [PORT + server for server in range(SERVERS)]
    if method.startswith("curl"):
        base = f"https://{addresses[0]}:{PORT + TLS}" if method == "curl-tls" else f"http://{addresses[0]}:{PORT}"
        lines = [f"url = {base}/{name}\noutput = {out}/{name}" for name in names(cell)]
        # Made by this run for itself.
        command = ["curl", "--no-progress-meter", "--fail", "--insecure", "-K", "list"]
    elif method.startswith("aria2c"):
        urls = [[f"http://{address}:{port}/{name}" for address, port in zip(addresses, ports)] for name in names(cell)]
        lines = ["\t".join(each) for each in urls]
        # Without `-s 1` each object would be asked of all; `-j` is how many at once, 5 by default.
        many = ["-j", "16"] if method == "aria2c-16" else []
        command = ["aria2c", "--quiet", "--file-allocation=none", "-s", "1", *many, "-d", out, "-i", "list"]
    else:
        holders = ",".join(f"{address}:{port}" for address, port in zip(addresses, ports))
        lines = [f"{holders}/{name}" for name in names(cell)]
        command = [str(task["binary"]), "-q", "gather", "get", "--objects-from", "list", "-o", f"{out}/", "--keys", "keys", "--no-sync"]
    pathlib.Path("list").write_text("\n".join(lines) + "\n")
    return command


def run_trial(task: dict[str, object], addresses: list[str]) -> dict[str, float]:
    """Fetches, where the client is, and compares what came.

    Raises
    ------
    SystemExit
        If an object is not what its servers hold.
    """
    os.chdir(str(task["folder"]))
    cell = Cell(*task["cell"])  # type: ignore[misc]
    out = pathlib.Path(str(task["out"]))
    out.mkdir()
    command = fetch(task, cell, addresses)
    began = time.monotonic()
    # Bounded by `timeout`, as Python's own wait with a bound looks only twenty times a second.
    subprocess.run(["timeout", str(task["seconds_max"]), *command], check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    for name in names(cell):
        if (out / name).read_bytes() != pathlib.Path("0", name).read_bytes():
            raise SystemExit(f"run.py: {name} is not what its servers hold")
    shutil.rmtree(out)
    return {"took_s": seconds, "cpu_s": used.ru_utime + used.ru_stime}


def serve(task: dict[str, object], server: int, address: str) -> list[str]:
    """The command that serves at this address."""
    folder = task["folder"]
    if str(task["method"]).startswith("gather"):
        listen = f"{address}:{PORT + server}"
        return [str(task["binary"]), "-q", "gather", "serve", f"{folder}/{server}", "--keys", f"{folder}/keys", "--listen", listen]
    return ["nginx", "-c", f"{folder}/nginx-{server}.conf"]


def processor_s(process: int) -> float:
    """What a process, its threads and its children have used."""
    children = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_s(int(child)) for child in children)


@contextlib.contextmanager
def serving(task: dict[str, object]) -> Iterator[list[int]]:
    """All servers on loopback, until the end; their processes."""
    running = [subprocess.Popen(serve(task, server, "127.0.0.1")) for server in range(SERVERS)]
    try:
        time.sleep(0.5)
        if any(process.poll() is not None for process in running):
            raise SystemExit(f"run.py: a server has ended: are ports from {PORT} on free?")
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def loopback(task: dict[str, object]) -> dict[str, float]:
    """One trial on this machine, in a process of its own, as its processor time is counted."""
    with serving(task) as servers:
        before = sum(map(processor_s, servers))
        subprocess.run([sys.executable, str(HERE / "run.py"), "trial", json.dumps(task)], check=True)
        used = sum(map(processor_s, servers)) - before
    return {**json.loads(pathlib.Path(str(task["result"])).read_text()), "servers_cpu_s": used}


def emulate(task: dict[str, object], cell: Cell) -> dict[str, float]:
    """One trial in an emulation of its own.

    Raises
    ------
    SystemExit
        If it fails, or is not trusted three times.
    """
    folder, report = pathlib.Path(str(task["folder"])), pathlib.Path(str(task["folder"]), "report.json")
    (folder / "small.toml").write_text(cell.topology())
    command = [str(task["binary"]), "-q", "emulate", str(folder / "small.toml"), "--site", "client", "--tcp-buffer", "64 MiB"]
    command += ["--report", str(report), "--duration", f"{float(str(task['seconds_max'])) + 60} s", "--settle", "800 ms"]
    for server in range(SERVERS):
        line = " ".join(serve(task, server, "$ANABRANCH_ADDRESS"))
        command += ["--run", f"s{server}=exec {line}"]
    command += ["--", sys.executable, str(HERE / "run.py"), "trial", json.dumps(task)]
    for _ in range(TRIES):
        shutil.rmtree(str(task["out"]), ignore_errors=True)
        subprocess.run(command, check=True)
        if json.loads(report.read_text())["report"]["trusted"]:
            return json.loads(pathlib.Path(str(task["result"])).read_text())
    raise SystemExit(f"run.py: {cell} by {task['method']}: the emulation was too late {TRIES} times")


def prepare(folder: pathlib.Path, cell: Cell) -> None:
    """What servers hold and how nginx is set up."""
    shutil.rmtree(folder / "0", ignore_errors=True)
    drawn = random.Random(cell.size)
    for server in range(SERVERS):
        (folder / str(server)).mkdir(exist_ok=True)
        ports = {"port": PORT + server, "tls": PORT + TLS + server}
        conf = NGINX.format(user=getpass.getuser(), folder=folder, server=server, **ports)
        (folder / f"nginx-{server}.conf").write_text(conf)
    for server in range(1, SERVERS):
        shutil.rmtree(folder / str(server))
        (folder / str(server)).mkdir()
    for name in names(cell):
        (folder / "0" / name).write_bytes(drawn.randbytes(cell.size))
        for server in range(1, SERVERS):
            os.link(folder / "0" / name, folder / str(server) / name)


def key(row: dict[str, object]) -> tuple[str, ...]:
    """What tells a trial from others."""
    return tuple(str(row[column]) for column in COLUMNS if column not in FIGURES)


def run_all(args: argparse.Namespace) -> int:
    """All trials that are not in the output yet."""
    args.out.mkdir(parents=True, exist_ok=True)
    rows = args.out / "trials.csv"
    done: set[tuple[str, ...]] = set()
    if rows.exists():
        with rows.open(newline="") as file:
            done = {key(dict(row)) for row in csv.DictReader(file)}
    methods = [name for name in METHODS if not args.only or name in args.only]
    if shutil.which("aria2c") is None:
        print("run.py: aria2c is not installed: left out", file=sys.stderr)
        methods = [name for name in methods if not name.startswith("aria2c")]
    cells = list(itertools.starmap(Cell, itertools.product(args.objects, args.size, args.rate, args.rtt, args.loss)))
    with tempfile.TemporaryDirectory(prefix="gather-small-", dir=args.scratch) as name:
        folder = pathlib.Path(name)
        # nginx's worker reads there, whoever it is.
        folder.chmod(0o755)
        subprocess.run([str(args.binary), "-q", "gather", "keys", "--out", str(folder / "keys")], check=True)
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=small"]
        made = [*make, "-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt"), "-days", "30"]
        subprocess.run(made, check=True, stderr=subprocess.DEVNULL)
        for cell in cells:
            todo = [(trial, method) for trial in range(args.trials) for method in methods]
            row_of = {each: {**dataclasses.asdict(cell), "method": each[1], "trial": each[0]} for each in todo}
            todo = [each for each in todo if key(row_of[each]) not in done]
            if todo:
                prepare(folder, cell)
            for trial, method in todo:
                task: dict[str, object] = {
                    "folder": str(folder),
                    "out": str(folder / f"out-{method}-{trial}"),
                    "cell": dataclasses.astuple(cell),
                    "method": method,
                    "binary": str(args.binary),
                    "seconds_max": args.seconds_max,
                    "result": str(folder / "result.json"),
                }
                figures = loopback(task) if cell.rate_mbps == 0 else emulate(task, cell)
                goodput = 8.0 * cell.size * cell.objects / figures["took_s"] / 1e6
                row: dict[str, object] = {**row_of[trial, method], "goodput_mbps": round(goodput, 2)}
                row |= {figure: round(figures[figure], 3) if figure in figures else "" for figure in FIGURES if figure not in row}
                new = not rows.exists()
                with rows.open("a", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    if new:
                        writer.writeheader()
                    writer.writerow(row)
                print(" ".join(f"{column}={row[column]}" for column in COLUMNS), flush=True)
    table(rows)
    return 0


def table(path: pathlib.Path) -> None:
    """Prints medians: seconds, and processor seconds of the client and of servers, a line for each cell and method."""
    cells: dict[tuple[str, ...], list[list[float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            columns = cells.setdefault(tuple(row[column] for column in [*CELL, "method"]), [[], [], []])
            for column, figure in zip(columns, ["took_s", "cpu_s", "servers_cpu_s"]):
                column.extend([float(row[figure])] if row[figure] else [])
    print(" | ".join([*CELL, "method", "took_s", "cpu_s", "servers_cpu_s"]))
    for cell, columns in cells.items():
        print(" | ".join([*cell, *(f"{statistics.median(column):.2f}" if column else "" for column in columns)]))


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    every = verbs.add_parser("all")
    every.add_argument("--out", type=pathlib.Path, default=ROOT / "runs" / "gather-small")
    every.add_argument("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "anabranch")
    every.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path("/dev/shm"), help="where files are, served and written")
    every.add_argument("--objects", type=int, nargs="+", default=[1_000, 10_000])
    every.add_argument("--size", type=int, nargs="+", default=[16 << 10])
    every.add_argument("--rate", type=float, nargs="+", default=[0.0], help="Mbit/s of the client's link; 0 for loopback")
    every.add_argument("--rtt", type=float, nargs="+", default=[0.0], help="ms")
    every.add_argument("--loss", type=float, nargs="+", default=[0.0])
    every.add_argument("--trials", type=int, default=3)
    every.add_argument("--seconds-max", type=float, default=300.0)
    every.add_argument("--only", action="append", default=[], choices=METHODS, help="this method")
    verbs.add_parser("trial").add_argument("task")
    args = parser.parse_args()
    if hasattr(args, "binary"):
        # Trials run in other folders.
        args.binary = args.binary.resolve()
    if args.verb == "all":
        return run_all(args)
    task = json.loads(args.task)
    addresses = [os.environ.get(f"ANABRANCH_ADDRESS_S{server}", "127.0.0.1") for server in range(SERVERS)]
    pathlib.Path(task["result"]).write_text(json.dumps(run_trial(task, addresses)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
