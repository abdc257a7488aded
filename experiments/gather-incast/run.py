"""Many servers answer one client through one shallow port: `gather` beside parallel HTTP, on an emulated network.

``run.py all`` builds a star with ``anabranch emulate`` for each number of servers and each way to fetch, and runs
``run.py trial`` in the client's site. Each server holds an object of its own; the client fetches all, and the clock stops when
all are there, equal to what the servers hold. What the emulator does not trust is tried again and never counted. Standard
library only; ``aria2c`` is left out, with a line that says so, where it is not installed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PORT = 7180
COLUMNS = [
    "servers",
    "method",
    "congestion_control",
    "trial",
    "took_s",
    "goodput_mbps",
    "of_link_share",
    "cpu_s",
    "dropped_packets",
    "lateness_us_p99",
]
# Method, and the congestion controls of TCP with which it is tried.
METHODS = {"gather": ["bbr"], "gather-unaware": ["bbr"], "curl": ["reno", "bbr"], "aria2c": ["reno", "bbr"]}
TRIES = 3


def topology(servers: int, rate: str, delay: str) -> str:
    """A star: the client, its servers and a switch."""
    lines = ['name = "star"', "[[site]]", 'name = "switch"', "switch = true", "[[site]]", 'name = "client"']
    for server in range(servers):
        lines += ["[[site]]", f'name = "s{server}"']
    for site in ["client", *(f"s{server}" for server in range(servers))]:
        lines += ["[[cable]]", f'between = ["switch", "{site}"]', f'capacity = "{rate}"', f'delay = "{delay}"']
    return "\n".join(lines) + "\n"


def fetch(task: dict[str, object]) -> list[str]:
    """The command that fetches all objects."""
    servers, method = int(str(task["servers"])), str(task["method"])
    address = [os.environ[f"ANABRANCH_ADDRESS_S{server}"] for server in range(servers)]
    urls = [f"http://{a}:{PORT}/object-{n}" for n, a in enumerate(address)]
    if method == "curl":
        outputs = [word for n, url in enumerate(urls) for word in ("-o", f"out/object-{n}", url)]
        return ["curl", "--no-progress-meter", "--fail", "-Z", "--parallel-immediate", "--parallel-max", str(servers), *outputs]
    if method == "aria2c":
        pathlib.Path("urls").write_text("".join(f"{url}\n" for url in urls))
        quiet = ["--quiet", "--file-allocation=none", "--allow-overwrite=true", "--auto-file-renaming=false"]
        return ["aria2c", *quiet, "-d", "out", "-i", "urls", "-j", str(servers), "-x", "1"]
    objects = [f"{a}:{PORT}/object-{n}" for n, a in enumerate(address)]
    link = ["--link", str(task["rate"])] if method == "gather" else []
    return [str(task["binary"]), "-q", "gather", "get", *objects, "-o", "out/", "--keys", "keys", "--no-sync", *link]


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
    for server in range(int(str(task["servers"]))):
        ours, theirs = pathlib.Path(f"out/object-{server}"), pathlib.Path(f"{server}/object-{server}")
        if ours.read_bytes() != theirs.read_bytes():
            raise SystemExit(f"run.py: object {server} is not what its server holds")
    return {"took_s": seconds, "cpu_s": used.ru_utime + used.ru_stime}


def emulate(args: argparse.Namespace, folder: pathlib.Path, servers: int, method: str, control: str) -> dict[str, object]:
    """One trial in an emulation of its own.

    Raises
    ------
    SystemExit
        If it fails, or is not trusted three times.
    """
    (folder / "star.toml").write_text(topology(servers, args.rate, args.delay))
    result, report = folder / "result.json", folder / "report.json"
    task = {
        "folder": str(folder),
        "servers": servers,
        "method": method,
        "rate": args.rate,
        "binary": str(args.binary),
        "seconds_max": args.seconds_max,
        "result": str(result),
    }
    serve = []
    for server in range(servers):
        if method.startswith("gather"):
            line = f"exec {args.binary} -q gather serve {folder}/{server} --keys {folder}/keys"
            line += f" --listen $ANABRANCH_ADDRESS:{PORT}"
        else:
            line = f"exec {sys.executable} -m http.server {PORT} --bind $ANABRANCH_ADDRESS --directory {folder}/{server}"
            line += " >/dev/null 2>&1"
        serve += ["--run", f"s{server}={line}"]
    command = [str(args.binary), "-q", "emulate", str(folder / "star.toml"), "--queue", args.queue, "--site", "client"]
    command += ["--congestion-control", control, "--report", str(report), "--duration", f"{args.seconds_max + 60} s"]
    command += ["--settle", f"{500 + 200 * servers} ms", *serve]
    command += ["--", sys.executable, str(HERE / "run.py"), "trial", json.dumps(task)]
    for _ in range(TRIES):
        subprocess.run(command, check=True)
        emulated = json.loads(report.read_text())["report"]
        if emulated["trusted"]:
            break
    else:
        raise SystemExit(f"run.py: {servers} servers by {method}: the emulation was too late {TRIES} times")
    figures = json.loads(result.read_text())
    bits = 8.0 * servers * args.size
    goodput = bits / figures["took_s"] / 1e6
    link = float(args.rate.split()[0]) * {"Mbit/s": 1.0, "Gbit/s": 1e3}[args.rate.split()[1]]
    return {
        "servers": servers,
        "method": method,
        "congestion_control": control,
        "took_s": round(figures["took_s"], 3),
        "goodput_mbps": round(goodput, 2),
        "of_link_share": round(goodput / link, 4),
        "cpu_s": round(figures["cpu_s"], 3),
        "dropped_packets": emulated["drops"]["queue_full"],
        "lateness_us_p99": emulated["lateness_us_p99"],
    }


def run_all(args: argparse.Namespace) -> int:
    """All trials that are not in the output yet."""
    args.out.mkdir(parents=True, exist_ok=True)
    rows = args.out / "trials.csv"
    done = set()
    if rows.exists():
        with rows.open(newline="") as file:
            done = {(r["servers"], r["method"], r["congestion_control"], r["trial"]) for r in csv.DictReader(file)}
    methods = {name: controls for name, controls in METHODS.items() if not args.only or name in args.only}
    if "aria2c" in methods and shutil.which("aria2c") is None:
        print("run.py: aria2c is not installed: left out", file=sys.stderr)
        del methods["aria2c"]
    with tempfile.TemporaryDirectory(prefix="gather-incast-") as name:
        folder = pathlib.Path(name)
        subprocess.run([str(args.binary), "-q", "gather", "keys", "--out", str(folder / "keys")], check=True)
        draw = random.Random(1)
        for server in range(max(args.servers)):
            (folder / str(server)).mkdir()
            (folder / str(server) / f"object-{server}").write_bytes(draw.randbytes(args.size))
        for servers in args.servers:
            for trial in range(args.trials):
                for method, controls in methods.items():
                    for control in controls:
                        if (str(servers), method, control, str(trial)) in done:
                            continue
                        row = {"trial": trial, **emulate(args, folder, servers, method, control)}
                        new = not rows.exists()
                        with rows.open("a", newline="") as file:
                            writer = csv.DictWriter(file, COLUMNS)
                            if new:
                                writer.writeheader()
                            writer.writerow(row)
                        print(" ".join(f"{column}={row[column]}" for column in COLUMNS), flush=True)
    return 0


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    every = verbs.add_parser("all")
    every.add_argument("--out", type=pathlib.Path, default=ROOT / "runs" / "gather-incast")
    every.add_argument("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "anabranch")
    every.add_argument("--servers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    every.add_argument("--trials", type=int, default=3)
    every.add_argument("--rate", default="100 Mbit/s")
    every.add_argument("--delay", default="250 us", help="of each link: four are passed to and fro")
    every.add_argument("--queue", default="64 KiB")
    every.add_argument("--size", type=int, default=2 << 20, help="bytes of each object")
    every.add_argument("--seconds-max", type=float, default=120.0)
    every.add_argument("--only", action="append", default=[], choices=sorted(METHODS), help="this method")
    verbs.add_parser("trial").add_argument("task")
    args = parser.parse_args()
    if args.verb == "all":
        return run_all(args)
    task = json.loads(args.task)
    pathlib.Path(task["result"]).write_text(json.dumps(run_trial(task)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
