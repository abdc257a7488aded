#!/usr/bin/env python3
"""How fast the broker as a service is: players' answers a second while rounds are decided, and a round with real agents over TLS.

Everything runs on this machine over loopback: `broker serve` on one core, 14 agents with the files of a drawn world (33,400 clients) and
`xtask bench steering` on the others. Rows go to runs/broker-service/rows.csv; `--rows` names another file.

Read `main` first.
"""

import argparse
import csv
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NETWORKS = 14
COLUMNS = [
    "commit", "sessions", "questions_per_s", "answered", "us_p50", "us_p99", "us_p999", "us_max", "cpu_us_per_answer", "rounds", "round_ms_p50", "round_ms_max",
]  # fmt: skip


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Service:
    """A broker with its agents, which end with it."""

    def __init__(self, binary, folder, sessions, every, cores):
        self.binary, self.folder, self.children = binary, folder, []
        run = lambda *args: subprocess.run([binary, "-q", *args], check=True, cwd=folder)
        run("broker", "world", "--sessions", str(sessions))
        names = [f"network-{number}" for number in range(NETWORKS)]
        run("broker", "keys", "--networks", ",".join(names), "--operators", "operator")
        serve = ["broker", "serve", "--contracts", "world/contracts.toml", "--every", str(every), "--bids-within", "5"]
        self.broker = self.start(cores[0], *serve, "--listen", "127.0.0.1:0", "--players", "127.0.0.1:0")
        lines = [self.broker.stderr.readline(), self.broker.stderr.readline()]
        self.address = lines[0].split("https://")[1].split(";")[0].strip()
        self.players = lines[1].split("http://")[1].split("/")[0]
        for name in names:
            files = ["--clusters", f"world/{name}.toml", "--scores", f"world/{name}.csv"]
            self.start(cores[-1], "broker", "cdn", "--name", name, "--broker", self.address, *files)
        self.post("/v1/clients", (Path(folder) / "world/clients.json").read_bytes())

    def start(self, core, *args):
        environment = {**os.environ, "ANABRANCH_LOG": "error,anabranch=warn"}
        # Agents run elsewhere in earnest: here they yield to who asks.
        behind = ["nice", "-n", "15"] if args[1] == "cdn" else []
        command = ["taskset", "-c", str(core), *behind, self.binary, *args]
        self.children.append(
            subprocess.Popen(command, cwd=self.folder, stderr=subprocess.PIPE, text=True, env=environment)
        )
        return self.children[-1]

    def post(self, path, body):
        keys = Path(self.folder) / "keys/broker"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # its certificate has a name by its role, not by its host
        context.load_verify_locations(keys / "ca.pem")
        context.load_cert_chain(keys / "operators/operator.pem", keys / "operators/operator.key")
        request = urllib.request.Request(f"https://{self.address}{path}", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, context=context, timeout=20).read()

    def status(self):
        status = [self.binary, "broker", "status", "--json", "--broker", self.address]
        return json.loads(subprocess.run(status, check=True, capture_output=True, text=True, cwd=self.folder).stdout)

    def rounds(self):
        return [one for one in self.status()["rounds"] if one["void"] is None and sum(one["sessions"].values()) > 0]

    def end(self):
        for child in self.children:
            child.send_signal(signal.SIGTERM)
        for child in self.children:
            child.wait(timeout=20)


def quantile(values, share):
    values = sorted(values)
    return values[round((len(values) - 1) * share)] if values else None


def measure(args):
    cores = sorted(os.sched_getaffinity(0))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="broker-service-") as folder:
        service = Service(str(args.binary.resolve()), folder, args.sessions, args.every, cores)
        try:
            began = time.monotonic()
            while len(service.rounds()) < 2:
                if time.monotonic() - began > 60:
                    raise SystemExit("run.py: no two rounds within 60 s")
                time.sleep(0.2)
            for rate in args.rate:
                began_ms, cpu = 1e3 * time.time(), cpu_seconds(service.broker.pid)
                bench = [
                    args.xtask,
                    "bench",
                    "steering",
                    "--json",
                    "--address",
                    service.players,
                    "--questions-per-s",
                    str(rate),
                ]
                bench = ["taskset", "-c", str(cores[-1]), *map(str, bench), "--seconds", str(args.seconds)]
                done = subprocess.run(bench, capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(f"run.py: {done.stderr.strip()}")
                row, spent = json.loads(done.stdout), cpu_seconds(service.broker.pid) - cpu
                took = [round(1e3 * one["took_s"]) for one in service.rounds() if one["ended_unix_ms"] >= began_ms]
                row |= {
                    "commit": commit, "sessions": args.sessions, "cpu_us_per_answer": round(1e6 * spent / row["answered"], 1),
                    "rounds": len(took), "round_ms_p50": quantile(took, 0.5), "round_ms_max": max(took, default=None),
                }  # fmt: skip
                del row["answers_per_s"]
                yield row
        finally:
            service.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/anabranch")
    parser.add_argument("--xtask", type=Path, default=ROOT / "target/release/xtask")
    parser.add_argument("--rows", type=Path, default=ROOT / "runs/broker-service/rows.csv")
    parser.add_argument("--sessions", type=int, default=33_400)
    parser.add_argument("--rate", type=int, nargs="+", default=[1_000, 10_000], help="questions a second")
    parser.add_argument("--every", type=int, default=2, help="seconds between rounds")
    parser.add_argument("--seconds", type=int, default=20)
    args = parser.parse_args()
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    with args.rows.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in measure(args):
            writer.writerow(
                {
                    name: f"{value:.0f}" if isinstance(value, float) and name.startswith("us_") else value
                    for name, value in row.items()
                }
            )
            file.flush()
            print(json.dumps(row))


if __name__ == "__main__":
    sys.exit(main())
