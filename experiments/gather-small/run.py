"""Many short objects: `gather` compared with curl and aria2, on loopback and on emulated networks.

``run.py all`` fetches the same objects by every method; methods take turns. On loopback the client and its
servers are programs of this machine; in an emulation the client is behind one link, with the
servers behind that, and the objects are fetched in the client's site. The clock stops when all
objects have arrived and are equal to the servers' files; files are written to memory
(``--scratch``). curl asks the first server, over one kept connection; aria2 and `gather` get the
names of all servers. Trials that the emulator does not trust are repeated and never counted. Cells
that have rows are not run again. Standard library only, `nginx` and `openssl`; without an installed
``aria2c`` its cells are left out, with a message.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Option, Row, Rows, filled, grouped, measure, numbers, product, read_csv, repeatable, table
from anabranch_lab.programs import Failed, installed, processor_s, running, timed, topology, write_nginx

LAB = Experiment(__file__, __doc__)
#: Port of the first server, and offset of nginx's port with TLS.
PORT, TLS = 7480, 100
SERVERS = range(3)
METHODS = ["gather", "curl", "curl-tls", "aria2c", "aria2c-16"]
#: Columns of a cell: number and bytes of objects; rate of the client's link, 0 for loopback; mean
#: round trip between the client and its servers; share of packets that the client's link loses,
#: each way. Links of servers have twice the rate of the client's.
CELL = ["objects", "size", "rate_mbps", "rtt_ms", "loss"]
FIGURES = ["took_s", "goodput_mbps", "cpu_s", "servers_cpu_s"]
COLUMNS = [*CELL, "method", "trial", *FIGURES]


def network(cell: Row) -> str:
    """Return the network of a cell. Queues hold the product of rate and round trip."""
    rate, rtt_ms = cell["rate_mbps"], cell["rtt_ms"]
    queue = max(int(rate * 1e6 / 8 * rtt_ms / 1e3), 6_000)
    ends = [("client", rate, rtt_ms / 4, cell["loss"])]
    ends += [(f"s{server}", 2 * rate, rtt_ms / 4 * (0.5 + (server + 0.5) / len(SERVERS)), 0.0) for server in SERVERS]
    cables = [
        ("switch", site, {"capacity": f"{mbps} Mbit/s", "delay": f"{delay * 1e3:.0f} us", "loss_ppm": round(loss * 1e6), "queue": f"{queue} B"})
        for site, mbps, delay, loss in ends
    ]
    return topology("small", ["switch"], [site for site, *_ in ends], cables)


def names(cell: Row) -> list[str]:
    """Return the names of the objects."""
    return [f"o{number:05}" for number in range(cell["objects"])]


def fetch(task: Row, out: Path, addresses: list[str]) -> list[str]:
    """Write the list of the objects to the file `list`, and return the command that fetches them."""
    method = task["method"]
    places = [f"{address}:{PORT + server}" for server, address in enumerate(addresses)]
    if method.startswith("curl"):
        base = f"https://{addresses[0]}:{PORT + TLS}" if method == "curl-tls" else f"http://{places[0]}"
        lines = [f"url = {base}/{name}\noutput = {out}/{name}" for name in names(task)]
        # The certificate was made for this run; no authority has signed it.
        command = ["curl", "--no-progress-meter", "--fail", "--insecure", "-K", "list"]
    elif method.startswith("aria2c"):
        lines = ["\t".join(f"http://{place}/{name}" for place in places) for name in names(task)]
        # `-s 1` asks one server for each object, not all; `-j` is the number of concurrent objects,
        # 5 by default.
        many = ["-j", "16"] if method == "aria2c-16" else []
        command = ["aria2c", "--quiet", "--file-allocation=none", "-s", "1", *many, "-d", str(out), "-i", "list"]
    else:
        lines = [f"{','.join(places)}/{name}" for name in names(task)]
        command = [task["binary"], "-q", "gather", "get", "--objects-from", "list", "-o", f"{out}/", "--keys", "keys", "--no-sync"]
    Path("list").write_text("\n".join(lines) + "\n")
    return command


@LAB.inside
def trial(task: Row) -> dict[str, float]:
    """Fetch the objects on the client's side, and compare them with the servers' files."""
    os.chdir(task["folder"])
    out = Path("out").resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    addresses = [os.environ.get(f"ANABRANCH_ADDRESS_S{server}", "127.0.0.1") for server in SERVERS]
    figures = timed(fetch(task, out, addresses), task["seconds_max"])
    for name in names(task):
        if (out / name).read_bytes() != Path("0", name).read_bytes():
            raise Failed(f"{name} is not what its servers hold")
    return figures


def serve(binary: Path, folder: Path, method: str, server: int, address: str) -> list[str]:
    """Return the command that serves at this address."""
    if method.startswith("gather"):
        keys = ["--keys", f"{folder}/keys"]
        return [str(binary), "-q", "gather", "serve", f"{folder}/{server}", *keys, "--listen", f"{address}:{PORT + server}"]
    listen = [str(PORT + server), f"{PORT + TLS + server} ssl"]
    pair = (folder / "tls.crt", folder / "tls.key")
    return write_nginx(folder / f"nginx-{server}.conf", [(folder / str(server), listen)], pair)


def prepare(folder: Path, cell: Row) -> None:
    """Write the objects of a cell, which all servers hold."""
    drawn = random.Random(cell["size"])
    for server in SERVERS:
        shutil.rmtree(folder / str(server), ignore_errors=True)
        (folder / str(server)).mkdir()
    for name in names(cell):
        (folder / "0" / name).write_bytes(drawn.randbytes(cell["size"]))
        for server in SERVERS[1:]:
            os.link(folder / "0" / name, folder / str(server) / name)


@LAB.verb(
    "all",
    out=LAB.runs,
    binary=BINARY,
    scratch=Option(Path("/dev/shm"), "where files are, served and written"),
    objects=[1_000, 10_000],
    size=[16 << 10],
    rate=Option([0.0], "Mbit/s of the client's link; 0 for loopback"),
    rtt=Option([0.0], "ms"),
    loss=[0.0],
    trials=3,
    seconds_max=300.0,
    only=repeatable(METHODS, "this method"),
)
def all_trials(args) -> int:
    """Runs all trials that have no row."""
    methods = installed((name for name in METHODS if not args.only or name in args.only), {"aria2c": "aria2c"})
    networks = list(product(objects=args.objects, size=args.size, rate_mbps=args.rate, rtt_ms=args.rtt, loss=args.loss))
    rows = Rows(args.out / "trials.csv", [*CELL, "method", "trial"], COLUMNS)
    with tempfile.TemporaryDirectory(prefix="gather-small-", dir=args.scratch) as name:
        folder = Path(name)
        # nginx's worker reads there, perhaps as another user.
        folder.chmod(0o755)
        subprocess.run([args.binary, "-q", "gather", "keys", "--out", folder / "keys"], check=True)
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=small"]
        made = [*make, "-keyout", folder / "tls.key", "-out", folder / "tls.crt", "-days", "30"]
        subprocess.run(made, check=True, stderr=subprocess.DEVNULL)

        def run(cell: Row) -> Row:
            method, here = cell["method"], {column: cell[column] for column in ("objects", "size")}
            if prepared != [here]:
                prepare(folder, cell)
                prepared[:] = [here]
            inside = LAB.task(trial, folder, binary=args.binary, seconds_max=args.seconds_max, **cell)
            if cell["rate_mbps"]:
                options = ["--tcp-buffer", "64 MiB", "--duration", f"{args.seconds_max + 60} s", "--settle", "800 ms"]
                lines = [(f"s{n}", "exec " + " ".join(serve(args.binary, folder, method, n, "$ANABRANCH_ADDRESS"))) for n in SERVERS]
                figures = LAB.emulate(args.binary, folder, network(cell), inside, *options, site="client", programs=lines).result
            else:
                with running(serve(args.binary, folder, method, n, "127.0.0.1") for n in SERVERS) as servers:
                    time.sleep(0.5)
                    if any(server.poll() is not None for server in servers):
                        raise SystemExit(f"run.py: a server has ended: are ports from {PORT} on free?")
                    before = sum(processor_s(server.pid, True) for server in servers)
                    # A separate process, so that its processor time can be counted.
                    subprocess.run(inside.command, check=True)
                    used = sum(processor_s(server.pid, True) for server in servers) - before
                figures = inside.read_result() | {"servers_cpu_s": used}
            goodput = 8.0 * cell["size"] * cell["objects"] / figures["took_s"] / 1e6
            row = {"goodput_mbps": round(goodput, 2)}
            return row | {figure: round(figures[figure], 3) if figure in figures else "" for figure in FIGURES if figure not in row}

        prepared: list[Row] = []
        ways = list(product(trial=range(args.trials), method=methods))
        code = measure(rows, [network | way for network in networks for way in ways], run)
    show_medians(rows.path)
    return code


def show_medians(path: Path) -> None:
    """Print a line for each cell and method: medians of seconds, and of processor seconds of the
    client and of servers."""
    figures = ["took_s", "cpu_s", "servers_cpu_s"]
    lines = []
    for cell, rows in grouped(read_csv(path), *CELL, "method").items():
        columns = [numbers(rows, figure) for figure in figures]
        lines.append([*cell, *(f"{statistics.median(column):.2f}" if column else "" for column in columns)])
    print(table([*CELL, "method", *figures], lines))


README = LAB.folder / "README.md"
#: Methods in the order of the README's tables, by their names there.
METHODS_SHOWN = {
    "gather": "`gather get`", "curl": "curl", "curl-tls": "curl, TLS", "aria2c": "aria2", "aria2c-16": "aria2, `-j 16`",
}


def written() -> str:
    """Return the README with the tables of the committed rows."""
    rows = {(row["objects"], row["rtt_ms"], row["loss"], row["method"]): row for row in read_csv(LAB.folder / "measured.csv")}
    seconds = lambda text: f"{float(text):.2f}" if float(text) < 10 else f"{float(text):.1f}"
    loopback = []
    for method, name in METHODS_SHOWN.items():
        row = rows["10000", "0.0", "0.0", method]
        loopback.append([name, *(seconds(row[column]) for column in ("took_s", "cpu_s", "servers_cpu_s"))])
    slow = []
    for objects, loss, name in (("1000", "0.0", "1,000, 0"), ("1000", "0.01", "1,000, 1 %"), ("10000", "0.0", "10,000, 0")):
        found = [rows.get((objects, "20.0", loss, method)) for method in METHODS_SHOWN]
        slow.append([name, *("" if row is None else seconds(row["took_s"]) for row in found)])
    blocks = {
        "loopback": table(["method", "took", "processor, client", "processor, servers"], loopback, "lr"),
        "slow": table(["objects, loss", *METHODS_SHOWN.values()], slow, "lr"),
    }
    return filled(README.read_text(), "experiments/gather-small/measured.csv", blocks)


LAB.tables_of(README, written)

if __name__ == "__main__":
    sys.exit(LAB.main())
