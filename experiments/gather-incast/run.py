"""Many servers answer one client through one shallow port: `gather` compared with parallel HTTP, on
an emulated network.

``run.py all`` builds a star with ``anabranch emulate`` for each number of servers and each method,
and fetches in the client's site. Every server holds a different object; the client fetches all, and
the clock stops when all have arrived and are equal to the servers' files. Trials that the emulator
does not trust are repeated and never counted. Standard library only; without an installed
``aria2c`` its cells are left out, with a message.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Option, Row, Rows, measure, product, repeatable
from anabranch_lab.programs import Failed, installed, timed, topology

LAB = Experiment(__file__, __doc__)
PORT = 7180
CELL = ["servers", "method", "congestion_control", "trial"]
COLUMNS = [*CELL, "took_s", "goodput_mbps", "of_link_share", "cpu_s", "dropped_packets", "lateness_us_p99"]
#: Methods, and the congestion controls of TCP for each.
METHODS = {"gather": ["bbr"], "gather-unaware": ["bbr"], "curl": ["reno", "bbr"], "aria2c": ["reno", "bbr"]}


def fetch(task: Row) -> list[str]:
    """Return the command that fetches all objects."""
    servers, method = task["servers"], task["method"]
    places = [f"{os.environ[f'ANABRANCH_ADDRESS_S{server}']}:{PORT}/object-{server}" for server in range(servers)]
    if method == "curl":
        outputs = [word for n, place in enumerate(places) for word in ("-o", f"out/object-{n}", f"http://{place}")]
        return ["curl", "--no-progress-meter", "--fail", "-Z", "--parallel-immediate", "--parallel-max", str(servers), *outputs]
    if method == "aria2c":
        Path("urls").write_text("".join(f"http://{place}\n" for place in places))
        quiet = ["--quiet", "--file-allocation=none", "--allow-overwrite=true", "--auto-file-renaming=false"]
        return ["aria2c", *quiet, "-d", "out", "-i", "urls", "-j", str(servers), "-x", "1"]
    link = ["--link", task["rate"]] if method == "gather" else []
    return [task["binary"], "-q", "gather", "get", *places, "-o", "out/", "--keys", "keys", "--no-sync", *link]


@LAB.inside
def trial(task: Row) -> dict[str, float]:
    """Fetch all objects inside the client's site, and compare them with the servers' files."""
    os.chdir(task["folder"])
    shutil.rmtree("out", ignore_errors=True)
    os.mkdir("out")
    figures = timed(fetch(task), task["seconds_max"])
    for server in range(task["servers"]):
        if Path(f"out/object-{server}").read_bytes() != Path(f"{server}/object-{server}").read_bytes():
            raise Failed(f"object {server} is not what its server holds")
    return figures


def serve(binary: Path, folder: Path, method: str, server: int) -> str:
    """Return the command line that serves in a server's site."""
    if method.startswith("gather"):
        return f"exec {binary} -q gather serve {folder}/{server} --keys {folder}/keys --listen $ANABRANCH_ADDRESS:{PORT}"
    return f"exec {sys.executable} -m http.server {PORT} --bind $ANABRANCH_ADDRESS --directory {folder}/{server} >/dev/null 2>&1"


@LAB.verb(
    "all",
    out=LAB.runs,
    binary=BINARY,
    servers=[1, 2, 4, 8, 16, 32],
    trials=3,
    rate="100 Mbit/s",
    delay=Option("250 us", "of each link: four are passed to and fro"),
    queue="64 KiB",
    size=Option(2 << 20, "bytes of each object"),
    seconds_max=120.0,
    only=repeatable(sorted(METHODS), "this method"),
)
def all_trials(args) -> int:
    """Runs all trials that have no row."""
    methods = installed((name for name in METHODS if not args.only or name in args.only), {"aria2c": "aria2c"})
    ways = [(method, control) for method in methods for control in METHODS[method]]
    cells = [
        {"servers": cell["servers"], "method": cell["way"][0], "congestion_control": cell["way"][1], "trial": cell["trial"]}
        for cell in product(servers=args.servers, trial=range(args.trials), way=ways)
    ]
    with tempfile.TemporaryDirectory(prefix="gather-incast-") as name:
        folder = Path(name)
        subprocess.run([args.binary, "-q", "gather", "keys", "--out", folder / "keys"], check=True)
        draw = random.Random(1)
        for server in range(max(args.servers)):
            (folder / str(server)).mkdir()
            (folder / str(server) / f"object-{server}").write_bytes(draw.randbytes(args.size))

        def emulate(cell: Row) -> Row:
            sites = ["client", *(f"s{server}" for server in range(cell["servers"]))]
            star = topology("star", ["switch"], sites, [("switch", site, {"capacity": args.rate, "delay": args.delay}) for site in sites])
            asked = {"rate": args.rate, "binary": args.binary, "seconds_max": args.seconds_max}
            options = ["--queue", args.queue, "--congestion-control", cell["congestion_control"]]
            options += ["--duration", f"{args.seconds_max + 60} s", "--settle", f"{500 + 200 * cell['servers']} ms"]
            programs = [(f"s{server}", serve(args.binary, folder, cell["method"], server)) for server in range(cell["servers"])]
            inside = LAB.task(trial, folder, **asked, **cell)
            emulated = LAB.emulate(args.binary, folder, star, inside, *options, site="client", programs=programs)
            link_mbps = float(args.rate.split()[0]) * {"Mbit/s": 1.0, "Gbit/s": 1e3}[args.rate.split()[1]]
            return emulated.transfer(cell["servers"] * args.size, link_mbps)

        return measure(Rows(args.out / "trials.csv", CELL, COLUMNS), cells, emulate)


if __name__ == "__main__":
    sys.exit(LAB.main())
