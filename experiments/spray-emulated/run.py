"""Short flows beside long ones through real `spray` agents and the kernel's TCP, on an emulated fabric with many paths.

``run.py figures`` runs the CAPS paper's testbed figures (11 to 14): flows of a scenario, by switches that hash flows (ECMP), spray packets,
move flowlets (LetFlow) or look at queues (DRILL), and through agents over switches that hash. ``run.py people`` measures what a person does:
``curl`` of 64 kB beside four flows that send without end, of 1 GiB, and of 64 kB over paths that lose packets, with agents and without. ``run.py speed``
measures rate, processor time and a small request's time between two idle namespaces with a cable: without a tunnel, through a bare one
(`bare.c`), and through agents. Each writes a row for each run to ``rows.csv`` (``speed.csv``); rows that are there are not run again.
``run.py table`` prints what is in them. ``run.py smoke`` runs small ones and checks that
rows make sense. Standard library only; it needs namespaces and TUN devices, and ``curl``.

Read first: `SETTINGS`, `scenario`, `curl_once`.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import http.server
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TRIES = 3
SCHEMES = ("ecmp", "rps", "letflow", "drill", "agent")
PORT, SOURCE_PORT = 8000, 8001


@dataclasses.dataclass(frozen=True)
class Setting:
    """A figure of the paper.

    Attributes
    ----------
    figure
        Which.
    x
        What is varied.
    xs
        Its values.
    paths, path_mbps, delay_us, queue_packets
        The paths between the two hosts' switches, the one-way delay of each link, and each queue.
    run_s
        How long long flows send. Short ones begin a second later, and within `run_s` less four seconds, so that they have time.
    """

    figure: str
    x: str
    xs: tuple[float, ...]
    paths: int
    path_mbps: int
    delay_us: int
    queue_packets: int
    run_s: float = 9.0

    def flows(self, x: float, draw: random.Random) -> tuple[int, list[tuple[float, int]]]:
        """How many long flows, and when each short one begins and its bytes."""
        size = lambda: draw.randint(1_000, 99_999)  # noqa: E731
        within = self.run_s - 4.0
        if self.x == "short_flows":
            long = 4 if self.figure == "11" else 2
            return long, sorted((1.0 + draw.uniform(0, within), size()) for _ in range(round(x)))
        if self.x == "long_flows":
            return round(x), sorted((1.0 + draw.uniform(0, within), size()) for _ in range(100))
        # Periods of a second, of which a share has short flows: 50 in each.
        periods = range(1, int(within) + 1)
        return 3, sorted((period + draw.uniform(0, x), size()) for period in periods for _ in range(50 if x else 0))


#: 12 Mbit/s where the paper has 20: long flows that are sprayed would be more than this machine emulates. The cloud's 1 Gbit/s become 35 Mbit/s.
SETTINGS = {
    "short-flows": Setting("11", "short_flows", (100, 180), 20, 12, 1_000, 256),
    "long-flows": Setting("12", "long_flows", (1, 4, 8), 20, 12, 1_000, 256),
    "on-periods": Setting("13", "on_share", (0.5, 1.0), 20, 12, 1_000, 256),
    "cloud": Setting("14", "short_flows", (100,), 6, 35, 50, 512),
}
COLUMNS = (
    *("setting", "scheme", "x", "seed", "short_flows", "unfinished", "fct_ms_mean", "fct_ms_p50", "fct_ms_p99", "long_mbps", "dropped_queue_full"),
    *("source_packets", "parity_packets", "recovered_packets", "given_up_packets", "sprayed_share", "lateness_us_p99"),
)
Row = dict[str, object]


def scenario(setting: Setting, scheme: str, x: float, seed: int, folder: pathlib.Path) -> pathlib.Path:
    """The scenario of one run as a file: the same flows for every scheme."""
    long, short = setting.flows(x, random.Random(seed))
    queue = setting.queue_packets * 1_500
    lines = [f'duration = "{setting.run_s} s"', f"seed = {seed}", "[network]", 'topology = "leaf-spine"', "tors = 2", "hosts = 1"]
    lines += [f"spines = {setting.paths}", 'rate = "1 Gbit/s"', f'uplink_rate = "{setting.path_mbps} Mbit/s"']
    lines += [f'delay = "{setting.delay_us} us"', f'queue = "{queue} B"', f'spread = "{"ecmp" if scheme == "agent" else scheme}"']
    lines += ["[transport]", 'control = "cubic"']
    if short:
        listed = folder / "short.csv"
        listed.write_text("start_s,from,to,size_bytes\n" + "".join(f"{at:.6f},h0,h1,{size}\n" for at, size in short))
        lines += ["[[workload]]", 'kind = "trace"', f'file = "{listed}"']
    for _ in range(long):
        lines += ["[[workload]]", 'kind = "long"', 'pairs = [["h0", "h1"]]', 'jitter = "100 ms"']
    if scheme == "agent":
        lines += ["[[workload]]", 'kind = "spray"', 'scheme = "agent"', f'rate = "{setting.path_mbps} Mbit/s"']
    path = folder / "scenario.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def figure_once(binary: pathlib.Path, name: str, scheme: str, x: float, seed: int, clock: str = "emulate") -> tuple[Row, bool]:
    """The row of one run, and whether it is to be trusted."""
    with tempfile.TemporaryDirectory(prefix="spray-emulated-") as folder:
        path = scenario(SETTINGS[name], scheme, x, seed, pathlib.Path(folder))
        done = subprocess.run([str(binary), "-q", clock, str(path), "--json"], check=True, stdout=subprocess.PIPE, text=True)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    row: Row = {"setting": name, "scheme": scheme, "x": x, "seed": seed}
    for one in said:
        if one["workload"] == "trace":
            row |= {"short_flows": one["flows"], "unfinished": one["flows"] - one["finished"]}
            row |= {f"fct_ms_{what}": round(one[f"fct_us_{what}"] / 1e3, 3) for what in ("mean", "p50", "p99")}
        if one["workload"] == "spray":
            row |= {column: round(one[column]) for column in COLUMNS if column.endswith("_packets") and column in one}
            if one.get("sprayable_packets"):
                row["sprayed_share"] = round(one["sprayed_packets"] / one["sprayable_packets"], 3)
    row["long_mbps"] = round(sum(one["goodput_mbps"] for one in said if one["workload"] == "long"), 3)
    row |= {column: said[0][column] for column in ("dropped_queue_full", "lateness_us_p99") if column in said[0]}
    return row, all(one.get("trusted", True) for one in said)


def figures(args: argparse.Namespace) -> int:
    """All runs of the chosen settings that are not in the rows yet."""
    done = {(row["setting"], row["scheme"], float(row["x"] or 0), row["seed"]) for row in read(args.rows)}
    for seed in range(1, args.seeds + 1):
        for name in args.setting or SETTINGS:
            for x in SETTINGS[name].xs:
                for scheme in args.scheme or SCHEMES:
                    if (name, scheme, float(x), str(seed)) in done:
                        continue
                    for _ in range(TRIES):
                        row, is_trusted = figure_once(args.binary, name, scheme, x, seed)
                        if is_trusted:
                            write(args.rows, row)
                            break
                    said = f"{name} {scheme} {x} seed {seed}: short {row.get('fct_ms_mean')} ms, 99 % {row.get('fct_ms_p99')}, long {row['long_mbps']} Mbit/s"
                    print(said + ("" if is_trusted else ": not trusted, left out"), flush=True)
    return 0


def topology(paths: int, mbps: float, delay_us: int, queue_bytes: int) -> str:
    """Two hosts, a switch before each, and so many paths of two links between the two."""
    lines = ['name = "paths"']
    for host in ("a", "b"):
        lines += ["[[site]]", f'name = "{host}"']
    for switch in ("left", "right", *(f"m{path}" for path in range(paths))):
        lines += ["[[site]]", f'name = "{switch}"', "switch = true"]
    cables = [("a", "left", 2_000.0), ("right", "b", 2_000.0)]
    for path in range(paths):
        cables += [("left", f"m{path}", mbps), (f"m{path}", "right", mbps)]
    for one, other, rate in cables:
        lines += ["[[cable]]", f'between = ["{one}", "{other}"]', f'capacity = "{rate} Mbit/s"']
        lines += [f'delay = "{delay_us} us"', f'queue = "{queue_bytes} B"']
    return "\n".join(lines) + "\n"


def role_serve(task: Row) -> None:
    """Serves 64 kB and 1 GiB by HTTP, and sends without end to whoever asks the other port."""
    block = bytes(1 << 16)
    sizes = {"/64k": 65_536, "/1g": 1 << 30}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # noqa: N802
            self.send_response(200)
            self.send_header("Content-Length", str(sizes[self.path]))
            self.end_headers()
            for _ in range(sizes[self.path] // len(block)):
                self.wfile.write(block)

        def log_message(self, *_: object) -> None:
            pass

    def endless() -> None:
        listener = socket.create_server((os.environ["ANABRANCH_ADDRESS"], SOURCE_PORT))
        while True:
            flow, _ = listener.accept()
            threading.Thread(target=send, args=(flow,), daemon=True).start()

    def send(flow: socket.socket) -> None:
        try:
            while True:
                flow.sendall(block)
        except OSError:
            flow.close()

    threading.Thread(target=endless, daemon=True).start()
    http.server.ThreadingHTTPServer((os.environ["ANABRANCH_ADDRESS"], PORT), Handler).serve_forever()


def role_ask(task: Row) -> dict[str, object]:
    """Runs `curl` again and again beside so many endless flows, and says how long each took and what the flows got."""
    server = os.environ["ANABRANCH_ADDRESS_B"]
    got = [0 for _ in range(int(str(task["long"])))]

    def take(number: int) -> None:
        flow = socket.create_connection((server, SOURCE_PORT), timeout=30)
        while part := flow.recv(1 << 20):
            got[number] += len(part)

    for number in range(len(got)):
        threading.Thread(target=take, args=(number,), daemon=True).start()
    time.sleep(float(str(task["warmup_s"])))
    began, before = time.monotonic(), sum(got)
    times: list[float] = []
    draw = random.Random(7)
    for _ in range(int(str(task["times"]))):
        url = f"http://{server}:{PORT}{task['path']}"
        done = subprocess.run(["curl", "-sS", "-o", os.devnull, "-w", "%{time_total} %{size_download}", "--max-time", "300", url], check=True, stdout=subprocess.PIPE, text=True)
        took, size = done.stdout.split()
        assert int(float(size)) == int(str(task["bytes"])), f"curl brought {size} bytes"
        times.append(float(took))
        time.sleep(draw.uniform(0.02, 0.08))
    return {"times_s": times, "long_mbps": (sum(got) - before) * 8 / (time.monotonic() - began) / 1e6}


def role(task: Row) -> int:
    """Runs one of the roles inside its site, and writes what it has to say."""
    if task["role"] == "serve":
        role_serve(task)
        return 0
    if task["agent"]:
        # Both agents are there before anything is asked.
        for _ in range(200):
            said = subprocess.run([str(task["binary"]), "spray", "status", "--json", "--socket", str(task["agent"])], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if said.returncode == 0 and json.loads(said.stdout)["peers"][0]["is_up"]:
                break
            time.sleep(0.1)
        else:
            raise SystemExit("run.py: the agents have not reached each other")
    said = role_ask(task)
    pathlib.Path(str(task["result"])).write_text(json.dumps(said))
    return 0


def curl_once(binary: pathlib.Path, has_agents: bool, ask: Row, network: Row, changes: list[str]) -> tuple[dict[str, object], bool]:
    """What one emulation says, and whether it is to be trusted. `changes` are arguments of `emulate`."""
    with tempfile.TemporaryDirectory(prefix="spray-emulated-") as name:
        folder = pathlib.Path(name)
        (folder / "paths.toml").write_text(topology(**network))  # type: ignore[arg-type]
        subprocess.run([str(binary), "-q", "spray", "keys", "--hosts", "a,b", "--out", str(folder / "keys")], check=True)

        def own(site: str, **more: object) -> str:
            (folder / f"{site}.task").write_text(json.dumps({"binary": str(binary), **more}))
            return f"{sys.executable} {HERE / 'run.py'} role {folder / site}.task"

        programs = ["--run", f"b=exec {own('b', role='serve')}"]
        if has_agents:
            for site, peer in (("a", "b"), ("b", "a")):
                up = f"exec {binary} -q spray up --name {site} --peer {peer}={{@{peer}}} --keys {folder / 'keys'} --socket {folder / site}.sock --rate '{network['mbps']} Mbit/s'"
                programs += ["--run", f"{site}={up}"]
        report, result = folder / "report.json", folder / "a.json"
        asking = own("a", role="ask", result=str(result), agent=str(folder / "a.sock") if has_agents else "", **ask)
        command = [str(binary), "-q", "emulate", str(folder / "paths.toml"), "--site", "a", "--tcp-buffer", "16 MiB", "--report", str(report)]
        command += ["--congestion-control", "cubic", "--settle", "1500 ms", *changes, *programs, "--", *asking.split()]
        subprocess.run(command, check=True)
        emulated = json.loads(report.read_text())["report"]
        said = json.loads(result.read_text())
        said["lateness_us_p99"] = emulated["lateness_us_p99"]
        return said, bool(emulated["trusted"])


def quantile(times: list[float], share: float) -> float:
    """The value that `share` of them do not exceed."""
    times = sorted(times)
    return times[min(int(len(times) * share), len(times) - 1)]


#: By name: how many paths and of which rate, how many endless flows, which file how often, and what is done to the network meanwhile.
PEOPLE: dict[str, tuple[Row, Row]] = {
    "curl": ({"paths": 20, "mbps": 20, "delay_us": 1_000, "queue_bytes": 384_000}, {"path": "/64k", "bytes": 65_536, "times": 150, "long": 4, "warmup_s": 3.0}),
    "curl-alone": ({"paths": 20, "mbps": 20, "delay_us": 1_000, "queue_bytes": 384_000}, {"path": "/64k", "bytes": 65_536, "times": 60, "long": 0, "warmup_s": 0.5}),
    "curl-loss": ({"paths": 20, "mbps": 20, "delay_us": 1_000, "queue_bytes": 384_000}, {"path": "/64k", "bytes": 65_536, "times": 100, "long": 4, "warmup_s": 3.0}),
    "download": ({"paths": 5, "mbps": 50, "delay_us": 1_000, "queue_bytes": 384_000}, {"path": "/1g", "bytes": 1 << 30, "times": 1, "long": 0, "warmup_s": 0.5}),
}


def lossy(paths: int) -> list[str]:
    """5 % loss on half of the paths, each way, as arguments of `emulate`: half of it on each of a path's two cables."""
    cables = [f"{side}-m{path}" for path in range(0, paths, 2) for side in ("left", "right")]
    return [word for cable in cables for word in ("--at", f"0s link {cable} loss 2.5%")]


def people(args: argparse.Namespace) -> int:
    """What a person does, with agents and without."""
    done = {(row["setting"], row["scheme"], row["seed"]) for row in read(args.rows)}
    for seed in range(1, args.seeds + 1):
        for name in args.what or PEOPLE:
            network, ask = PEOPLE[name]
            for scheme in ("ecmp", "agent"):
                if (name, scheme, str(seed)) in done:
                    continue
                changes = lossy(int(str(network["paths"]))) if name == "curl-loss" else []
                for _ in range(TRIES):
                    said, is_trusted = curl_once(args.binary, scheme == "agent", ask, network, changes)
                    if is_trusted:
                        break
                times = [float(took) for took in said["times_s"]]  # type: ignore[union-attr]
                row: Row = {"setting": name, "scheme": scheme, "x": "", "seed": seed, "short_flows": len(times), "unfinished": 0}
                row |= {"fct_ms_mean": round(statistics.fmean(times) * 1e3, 3), "fct_ms_p50": round(statistics.median(times) * 1e3, 3)}
                row |= {"fct_ms_p99": round(quantile(times, 0.99) * 1e3, 3), "long_mbps": round(float(str(said["long_mbps"])), 3)}
                row["lateness_us_p99"] = said["lateness_us_p99"]
                if is_trusted:
                    write(args.rows, row)
                print(f"{name} {scheme} seed {seed}: mean {row['fct_ms_mean']} ms, 99 % {row['fct_ms_p99']}, long {row['long_mbps']} Mbit/s" + ("" if is_trusted else ": not trusted, left out"), flush=True)
    return 0


SPEED = ("what", "trial", "gbps", "cpu_s_per_gb", "request_us_p50", "request_us_p99", "idle_request_us_p50")
#: Bytes of a transfer, requests of a measurement, and the pause between those of an idle host.
MOVED_BYTES, REQUESTS, IDLE_S = 1_500_000_000, 3_000, 0.003


def role_peer(address: str) -> None:
    """Answers each byte on one port with a byte, and takes in all that comes to the other, which it then acknowledges."""

    def answer() -> None:
        listener = socket.create_server((address, PORT))
        while True:
            flow, _ = listener.accept()
            flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while said := flow.recv(16):
                flow.sendall(said)

    threading.Thread(target=answer, daemon=True).start()
    listener = socket.create_server((address, SOURCE_PORT))
    while True:
        flow, _ = listener.accept()
        left, room = MOVED_BYTES, memoryview(bytearray(1 << 20))
        while left > 0:
            left -= flow.recv_into(room)
        flow.sendall(b"x")
        flow.close()


def role_measure(address: str) -> None:
    """Moves bytes, then asks: at once again, and after pauses. Prints what took how long."""
    flow = socket.create_connection((address, SOURCE_PORT), timeout=60)
    block, left, began = bytes(1 << 20), MOVED_BYTES, time.monotonic()
    while left > 0:
        left -= flow.send(block[: min(left, len(block))])
    flow.recv(1)
    said: dict[str, object] = {"took_s": time.monotonic() - began}
    for name, pause in (("request", 0.0), ("idle", IDLE_S)):
        flow = socket.create_connection((address, PORT), timeout=60)
        flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(REQUESTS if not pause else REQUESTS // 3):
            begun = time.perf_counter()
            flow.sendall(b"x")
            flow.recv(16)
            times.append(time.perf_counter() - begun)
            time.sleep(pause)
        said[name] = times
    print(json.dumps(said))


def cpu_s(pids: list[int]) -> float:
    """Processor time of these processes so far."""
    fields = (pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids)
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def speed_once(binary: pathlib.Path, what: str, trial: int) -> Row:
    """One trial between two namespaces of its own, which are gone after it."""
    ends = [f"spray-{os.getpid()}-{end}" for end in "ab"]
    addresses = ["10.79.0.1", "10.79.0.2"]
    programs: list[subprocess.Popen[str]] = []

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def inside(end: int, *words: object, **more: object) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", ends[end], *map(str, words)]
        # `ip netns exec` becomes the program, so that its number is the program's.
        programs.append(subprocess.Popen(command, text=True, **more))  # type: ignore[call-overload]
        return programs[-1]

    with tempfile.TemporaryDirectory(prefix="spray-speed-") as name:
        folder = pathlib.Path(name)
        try:
            for end in ends:
                ip("netns", "add", end)
            ip("link", "add", "v0", "netns", ends[0], "type", "veth", "peer", "name", "v0", "netns", ends[1])
            for end, address in zip(ends, addresses, strict=True):
                ip("-n", end, "address", "add", f"{address}/24", "dev", "v0")
                for device in ("lo", "v0"):
                    ip("-n", end, "link", "set", device, "up")
            carriers: list[int] = []
            to = addresses[1]
            if what == "bare":
                subprocess.run(["cc", "-O2", "-o", str(folder / "bare"), str(HERE / "bare.c")], check=True)
                carriers = [inside(end, folder / "bare", "bare0", addresses[1 - end]).pid for end in (0, 1)]
                time.sleep(0.5)
                for end, address in zip(ends, ("10.80.0.1", "10.80.0.2"), strict=True):
                    ip("-n", end, "address", "add", f"{address}/24", "dev", "bare0")
                    ip("-n", end, "link", "set", "bare0", "up", "mtu", "1398")
                to = "10.80.0.2"
            if what == "agent":
                subprocess.run([str(binary), "-q", "spray", "keys", "--hosts", "a,b", "--out", str(folder / "keys")], check=True)
                for end, (own, other) in enumerate((("a", "b"), ("b", "a"))):
                    up = [binary, "-q", "spray", "up", "--name", own, "--peer", f"{other}={addresses[1 - end]}", "--keys", folder / "keys"]
                    carriers.append(inside(end, *up, "--socket", folder / f"{own}.sock").pid)
                time.sleep(2.0)
                said = subprocess.run([str(binary), "spray", "status", "--json", "--socket", str(folder / "a.sock")], check=True, stdout=subprocess.PIPE, text=True)
                assert json.loads(said.stdout)["peers"][0]["is_up"], "the agents have not reached each other"
            inside(1, sys.executable, HERE / "run.py", "peer", to)
            time.sleep(0.5)
            before = cpu_s(carriers)
            measured = inside(0, sys.executable, HERE / "run.py", "measure", to, stdout=subprocess.PIPE)
            line, _ = measured.communicate(timeout=120)
            # Requests are few beside the bytes: their time counts with them.
            used = cpu_s(carriers) - before
        finally:
            for program in programs:
                program.terminate()
            for program in programs:
                program.wait(timeout=10)
            for end in ends:
                subprocess.run(["ip", "netns", "delete", end], check=False)
    said = json.loads(line)
    times = {name: sorted(said[name]) for name in ("request", "idle")}
    return {
        "what": what,
        "trial": trial,
        "gbps": round(MOVED_BYTES * 8 / said["took_s"] / 1e9, 3),
        "cpu_s_per_gb": round(used / MOVED_BYTES * 1e9, 3),
        "request_us_p50": round(quantile(times["request"], 0.5) * 1e6, 1),
        "request_us_p99": round(quantile(times["request"], 0.99) * 1e6, 1),
        "idle_request_us_p50": round(quantile(times["idle"], 0.5) * 1e6, 1),
    }


def speed(args: argparse.Namespace) -> int:
    """What is carried between two namespaces, in turns."""
    done = {(row["what"], row["trial"]) for row in read(args.rows)}
    for trial in range(args.trials):
        for what in ("plain", "bare", "agent"):
            if (what, str(trial)) not in done:
                row = speed_once(args.binary, what, trial)
                write(args.rows, row, SPEED)
                print(" ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return 0


def read(path: pathlib.Path) -> list[dict[str, str]]:
    """The rows so far."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: pathlib.Path, row: Row, columns: tuple[str, ...] = COLUMNS) -> None:
    """Appends a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def median(rows: list[dict[str, str]], column: str) -> float | None:
    """The median of a column's values; none without any."""
    values = [float(row[column]) for row in rows if row[column]]
    return statistics.median(values) if values else None


def table(args: argparse.Namespace) -> int:
    """The rows as tables in Markdown: medians over seeds."""
    rows = read(args.rows)
    for name, setting in SETTINGS.items():
        schemes = [scheme for scheme in SCHEMES if any(row["setting"] == name and row["scheme"] == scheme for row in rows)]
        if not schemes:
            continue
        print(f"\nFigure {setting.figure} (`{name}`): mean and 99th percentile of short flows in ms, and Mbit/s of the long ones together\n")
        print("| " + setting.x + " | " + " | ".join(schemes) + " |\n| ---: |" + " --- |" * len(schemes))
        for x in setting.xs:
            cells = []
            for scheme in schemes:
                own = [row for row in rows if (row["setting"], row["scheme"]) == (name, scheme) and float(row["x"]) == x]
                mean, tail, long = (median(own, column) for column in ("fct_ms_mean", "fct_ms_p99", "long_mbps"))
                short = "-" if mean is None or tail is None else f"{mean:.1f}, {tail:.0f}"
                cells.append("" if not own else f"{short}; {long:.0f}")
            print(f"| {x:g} | " + " | ".join(cells) + " |")
    print("\n| what | agents | mean ms | p50 | p99 | long flows, Mbit/s | runs |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name in PEOPLE:
        for scheme in ("ecmp", "agent"):
            own = [row for row in rows if (row["setting"], row["scheme"]) == (name, scheme)]
            if own:
                cells = [median(own, column) for column in ("fct_ms_mean", "fct_ms_p50", "fct_ms_p99", "long_mbps")]
                print(f"| `{name}` | {'yes' if scheme == 'agent' else 'no'} | " + " | ".join(f"{cell:.1f}" for cell in cells if cell is not None) + f" | {len(own)} |")
    rows = read(args.speed)
    print("\n| between | Gbit/s | processor s/GB, both ends | a request us, p50 | p99 | on idle hosts, p50 |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for what in ("plain", "bare", "agent"):
        if own := [row for row in rows if row["what"] == what]:
            cells = [median(own, column) for column in SPEED[2:]]
            print(f"| {what} | " + " | ".join(f"{cell:.3g}" for cell in cells if cell is not None) + " |")
    return 0


def smoke(args: argparse.Namespace) -> int:
    """A small run of each clock through agents; where this machine has no namespaces, says so."""
    row, _ = figure_once(args.binary, "cloud", "agent", 10, 1, "simulate")
    assert row["fct_ms_mean"] and row["long_mbps"], row
    probed = subprocess.run([str(args.binary), "-q", "emulate", "butterfly", "--", "true"], capture_output=True, text=True)
    if probed.returncode != 0:
        print(f"spray-emulated: skipped: 1 ({' '.join(probed.stderr.split())})")
        return 0
    row, _ = figure_once(args.binary, "cloud", "agent", 10, 1)
    assert row["fct_ms_mean"] and row["sprayed_share"], row
    print(f"spray-emulated: 10 short flows in {row['fct_ms_mean']} ms beside {row['long_mbps']} Mbit/s")
    return 0


def main() -> int:
    """Parses what to do, and does it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    rows = {"type": pathlib.Path, "default": HERE / "rows.csv"}
    binary = {"type": pathlib.Path, "default": ROOT / "target" / "release" / "anabranch"}
    of_figures, of_people = verbs.add_parser("figures"), verbs.add_parser("people")
    for verb in (of_figures, of_people):
        verb.add_argument("--rows", **rows)
        verb.add_argument("--binary", **binary)
        verb.add_argument("--seeds", type=int, default=3)
    of_figures.add_argument("--setting", action="append", choices=SETTINGS)
    of_figures.add_argument("--scheme", action="append", choices=SCHEMES)
    of_people.add_argument("--what", action="append", choices=PEOPLE)
    of_speed = verbs.add_parser("speed")
    of_speed.add_argument("--rows", type=pathlib.Path, default=HERE / "speed.csv")
    of_speed.add_argument("--binary", **binary)
    of_speed.add_argument("--trials", type=int, default=3)
    of_table = verbs.add_parser("table")
    of_table.add_argument("--rows", **rows)
    of_table.add_argument("--speed", type=pathlib.Path, default=HERE / "speed.csv")
    verbs.add_parser("smoke").add_argument("--binary", **binary)
    verbs.add_parser("role").add_argument("task", type=pathlib.Path)
    for name in ("peer", "measure"):
        verbs.add_parser(name).add_argument("address")
    args = parser.parse_args()
    if args.verb == "role":
        return role(json.loads(args.task.read_text()))
    if args.verb in ("peer", "measure"):
        {"peer": role_peer, "measure": role_measure}[args.verb](args.address)
        return 0
    return {"figures": figures, "people": people, "speed": speed, "table": table, "smoke": smoke}[args.verb](args)


if __name__ == "__main__":
    sys.exit(main())
