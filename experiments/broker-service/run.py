#!/usr/bin/env python3
"""Speed of the broker as a service: answers to players per second while rounds are decided, and a
round with real agents over TLS.

``run.py all`` runs everything on this machine over loopback: `broker serve` on one core, 14 agents
with the files of a generated world (33,400 clients) and `xtask bench steering` on the other cores.
Rows go to runs/broker-service/rows.csv.

Read `all_rates` first.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, XTASK, Experiment, Option, Rows, commit, measure, product
from anabranch_lab.programs import Failed, json_lines, operator_tls, processor_s, quantile

LAB = Experiment(__file__, __doc__)
NETWORKS = 14
COLUMNS = [
    "commit", "sessions", "questions_per_s", "answered", "us_p50", "us_p99", "us_p999", "us_max", "cpu_us_per_answer", "rounds", "round_ms_p50", "round_ms_max",
]  # fmt: skip


class Service:
    """A broker with its agents, which are stopped with it."""

    def __init__(self, binary, folder, sessions, every, cores):
        self.binary, self.folder, self.children = binary, Path(folder), []
        run = lambda *args: subprocess.run([binary, "-q", "broker", *args], check=True, cwd=folder)
        run("world", "--sessions", str(sessions))
        names = [f"network-{number}" for number in range(NETWORKS)]
        run("keys", "--networks", ",".join(names), "--operators", "operator")
        serve = ["serve", "--contracts", "world/contracts.toml", "--every", str(every), "--bids-within", "5"]
        self.broker = self.start(["taskset", "-c", str(cores[0])], *serve, "--listen", "127.0.0.1:0", "--players", "127.0.0.1:0")
        self.address = self.broker.stderr.readline().split("https://")[1].split(";")[0].strip()
        self.players = self.broker.stderr.readline().split("http://")[1].split("/")[0]
        # In real use agents run on other machines: here they yield to the bench that asks.
        behind = ["taskset", "-c", str(cores[-1]), "nice", "-n", "15"]
        for name in names:
            files = ["--clusters", f"world/{name}.toml", "--scores", f"world/{name}.csv"]
            self.start(behind, "cdn", "--name", name, "--broker", self.address, *files)
        self.post("/v1/clients", (self.folder / "world/clients.json").read_bytes())

    def start(self, where, *args):
        environment = {**os.environ, "ANABRANCH_LOG": "error,anabranch=warn"}
        command = [*where, self.binary, "broker", *args]
        self.children.append(subprocess.Popen(command, cwd=self.folder, stderr=subprocess.PIPE, text=True, env=environment))
        return self.children[-1]

    def post(self, path, body):
        request = urllib.request.Request(f"https://{self.address}{path}", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, context=operator_tls(self.folder / "keys/broker"), timeout=20).read()

    def rounds(self):
        status = [self.binary, "broker", "status", "--json", "--broker", self.address]
        said = json.loads(subprocess.run(status, check=True, capture_output=True, text=True, cwd=self.folder).stdout)
        return [one for one in said["rounds"] if one["void"] is None and sum(one["sessions"].values()) > 0]

    def end(self):
        for child in self.children:
            child.send_signal(signal.SIGTERM)
        for child in self.children:
            child.wait(timeout=20)


@LAB.verb(
    "all",
    binary=BINARY,
    xtask=XTASK,
    rows=LAB.runs / "rows.csv",
    sessions=33_400,
    rate=Option([1_000, 10_000], "questions a second"),
    every=Option(2, "seconds between rounds"),
    seconds=20,
)
def all_rates(args):
    """Asks at each rate for some seconds; the rows replace those of an earlier call."""
    cores = sorted(os.sched_getaffinity(0))
    now = commit()
    with tempfile.TemporaryDirectory(prefix="broker-service-") as folder:
        service = Service(args.binary, folder, args.sessions, args.every, cores)

        def ask(cell):
            began_ms, cpu_s = 1e3 * time.time(), processor_s(service.broker.pid)
            bench = ["taskset", "-c", cores[-1], args.xtask, "bench", "steering", "--json", "--address", service.players]
            (row,) = json_lines([*bench, "--questions-per-s", cell["questions_per_s"], "--seconds", args.seconds])
            spent_s = processor_s(service.broker.pid) - cpu_s
            took = [round(1e3 * one["took_s"]) for one in service.rounds() if one["ended_unix_ms"] >= began_ms]
            row |= {
                "commit": now, "sessions": args.sessions, "cpu_us_per_answer": round(1e6 * spent_s / row["answered"], 1),
                "rounds": len(took), "round_ms_p50": quantile(took, 0.5) if took else None, "round_ms_max": max(took, default=None),
            }  # fmt: skip
            row |= {name: f"{value:.0f}" for name, value in row.items() if isinstance(value, float) and name.startswith("us_")}
            del row["answers_per_s"]
            return row

        try:
            began = time.monotonic()
            while len(service.rounds()) < 2:
                if time.monotonic() - began > 60:
                    raise Failed("no two rounds within 60 s")
                time.sleep(0.2)
            args.rows.unlink(missing_ok=True)
            rows = Rows(args.rows, ["questions_per_s"], COLUMNS)
            return measure(rows, product(questions_per_s=args.rate), ask, show=lambda rows: json.dumps(rows[0]))
        finally:
            service.end()


if __name__ == "__main__":
    sys.exit(LAB.main())
