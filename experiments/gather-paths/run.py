"""One object over many kinds of paths: `gather` beside curl and aria2, on emulated networks.

``run.py all`` builds for each cell a client behind one link, and servers behind that; it runs ``run.py trial`` in the client's site.
Each server holds the object; the clock stops when all of it is there, equal to what servers hold. curl asks the first server, the others ask
all. What the emulator does not trust is tried again and never counted. Cells that are in the output are not run again. Standard library
only, and `nginx`; ``aria2c`` is left out, with a line that says so, where it is not installed.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import filecmp
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

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PORT = 7180
TRIES = 3
# Method, and the congestion controls of TCP with which it is tried.
METHODS = {
    "gather": ["bbr"],
    "gather-link": ["bbr"],
    "gather-tfrc": ["bbr"],
    "curl": ["bbr", "cubic"],
    "aria2c": ["bbr", "cubic"],
}
FIGURES = ["took_s", "goodput_mbps", "of_link_share", "cpu_s", "dropped_packets", "lateness_us_p99"]
NGINX = """user {user}; daemon off; worker_processes 1; pid {folder}/nginx-{server}.pid; error_log /dev/null;
events {{ worker_connections 256; }}
http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;
client_body_temp_path {folder}/t; proxy_temp_path {folder}/t; fastcgi_temp_path {folder}/t; uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;
server {{ listen {port}; root {folder}/{server}; }} }}
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
    queue_bdps
        The queue before each link, in products of the client's rate and the round trip.
    servers, size
        How many servers there are; bytes of the object.
    """

    rate_mbps: float
    rtt_ms: float
    loss: float
    queue_bdps: float
    servers: int
    size: int

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
            lines += [f"loss_ppm = {round(loss * 1e6)}", f'queue = "{self.queue_bytes()} B"']
        return "\n".join(lines) + "\n"


COLUMNS = [field.name for field in dataclasses.fields(Cell)] + ["method", "congestion_control", "trial", *FIGURES]


def fetch(task: dict[str, object]) -> list[str]:
    """The command that fetches the object."""
    address = [os.environ[f"ANABRANCH_ADDRESS_S{server}"] for server in range(int(str(task["servers"])))]
    method = str(task["method"])
    if method == "curl":
        return ["curl", "--no-progress-meter", "--fail", "-o", "out/object", f"http://{address[0]}:{PORT}/object"]
    if method == "aria2c":
        count = str(max(len(address), 1))
        quiet = ["--quiet", "--file-allocation=none", "--allow-overwrite=true", "-d", "out", "-o", "object"]
        return ["aria2c", *quiet, "-s", count, "-x", "1", "-k", "1M", *(f"http://{a}:{PORT}/object" for a in address)]
    holders = ",".join(f"{a}:{PORT}" for a in address)
    link = ["--link", f"{task['rate_mbps']} Mbit/s"] if method == "gather-link" else []
    get = [str(task["binary"]), "-q", "gather", "get", f"{holders}/object", "-o", "out/object", "--keys", "keys", "--no-sync"]
    control = ["--rate-control", "tfrc"] if method == "gather-tfrc" else []
    return [*get, *link, *control]


def run_trial(task: dict[str, object]) -> dict[str, float]:
    """Fetches, inside the client's site."""
    os.chdir(str(task["folder"]))
    shutil.rmtree("out", ignore_errors=True)
    os.mkdir("out")
    command = fetch(task)
    began = time.monotonic()
    # Bounded by `timeout`, as Python's own wait with a bound looks only twenty times a second.
    subprocess.run(["timeout", str(task["seconds_max"]), *command], check=True)
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not filecmp.cmp("out/object", "0/object", shallow=False):
        raise SystemExit("run.py: the object is not what its servers hold")
    return {"took_s": seconds, "cpu_s": used.ru_utime + used.ru_stime}


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
        (folder / f"nginx-{server}.conf").write_text(NGINX.format(user=getpass.getuser(), folder=folder, server=server, port=PORT))
    payload = folder / f"object-{cell.size}"
    if not payload.exists():
        payload.write_bytes(random.Random(cell.size).randbytes(cell.size))
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
        "seconds_max": args.seconds_max,
        "result": str(result),
    }
    serve = []
    for server in range(cell.servers):
        if method.startswith("gather"):
            line = f"exec {args.binary} -q gather serve {folder}/{server} --keys {folder}/keys --listen $ANABRANCH_ADDRESS:{PORT}"
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
        if emulated["trusted"]:
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
    methods = {name: controls for name, controls in METHODS.items() if not args.only or name in args.only}
    if "aria2c" in methods and shutil.which("aria2c") is None:
        print("run.py: aria2c is not installed: left out", file=sys.stderr)
        del methods["aria2c"]
    cells = itertools.starmap(Cell, itertools.product(args.rate, args.rtt, args.loss, args.queue, args.servers, args.size))
    with tempfile.TemporaryDirectory(prefix="gather-paths-") as name:
        folder = pathlib.Path(name)
        subprocess.run([str(args.binary), "-q", "gather", "keys", "--out", str(folder / "keys")], check=True)
        for cell, trial, (method, controls) in itertools.product(list(cells), range(args.trials), methods.items()):
            for control in controls:
                if args.control and control not in args.control:
                    continue
                row = {**dataclasses.asdict(cell), "method": method, "congestion_control": control, "trial": trial}
                if key(row) in done:
                    continue
                row |= emulate(args, folder, cell, method, control)
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
    """Prints the median share of the link, a line for each cell."""
    cells: dict[tuple[str, ...], dict[str, list[float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            cell = tuple(row[field.name] for field in dataclasses.fields(Cell))
            shares = cells.setdefault(cell, {}).setdefault(f"{row['method']}/{row['congestion_control']}", [])
            shares.append(float(row["of_link_share"]))
    names = [f"{method}/{control}" for method, controls in METHODS.items() for control in controls]
    print(" | ".join(["Mbit/s", "ms", "loss", "queue", "servers", "bytes", *names]))
    for cell, shares in cells.items():
        medians = (f"{statistics.median(shares[name]):.3f}" if name in shares else "" for name in names)
        print(" | ".join([*cell, *medians]))


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    every = verbs.add_parser("all")
    every.add_argument("--out", type=pathlib.Path, default=ROOT / "runs" / "gather-paths")
    every.add_argument("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "anabranch")
    every.add_argument("--rate", type=float, nargs="+", default=[100.0], help="Mbit/s of the client's link")
    every.add_argument("--rtt", type=float, nargs="+", default=[1.0, 20.0, 100.0, 250.0], help="ms")
    every.add_argument("--loss", type=float, nargs="+", default=[0.0, 0.001, 0.01, 0.05])
    every.add_argument("--queue", type=float, nargs="+", default=[0.1, 1.0, 4.0], help="products of rate and round trip")
    every.add_argument("--servers", type=int, nargs="+", default=[1, 3, 8, 32])
    every.add_argument("--size", type=int, nargs="+", default=[64 << 10, 1 << 20, 64 << 20])
    every.add_argument("--trials", type=int, default=5)
    every.add_argument("--seconds-max", type=float, default=300.0)
    every.add_argument("--only", action="append", default=[], choices=sorted(METHODS), help="this method")
    every.add_argument("--control", action="append", default=[], help="this congestion control of TCP")
    verbs.add_parser("trial").add_argument("task")
    args = parser.parse_args()
    if args.verb == "all":
        return run_all(args)
    task = json.loads(args.task)
    pathlib.Path(task["result"]).write_text(json.dumps(run_trial(task)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
