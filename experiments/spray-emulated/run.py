"""Short flows beside long ones through real `spray` agents and the kernel's TCP, on an emulated
fabric with many paths.

``run.py figures`` runs the CAPS paper's testbed figures (11 to 14): flows of a scenario, over
switches that hash flows (ECMP), spray packets, move flowlets (LetFlow) or look at queues (DRILL),
and through agents over switches that hash. ``run.py people`` measures everyday uses: ``curl`` of 64
kB beside four endless flows, of 1 GiB, and of 64 kB over paths that lose packets, with and without
agents. ``run.py speed`` measures rate, processor time and a small request's time between two idle
namespaces with a cable: without a tunnel, through a bare one (`bare.c`), and through agents. Each
writes a row for each run to ``rows.csv`` (``speed.csv``); runs that have rows are not run again.
``run.py table`` prints the rows. ``run.py smoke`` runs small cases and checks that the rows are
plausible. Standard library only; it needs namespaces and TUN devices, and ``curl``.

Read first: `SETTINGS`, `scenario`, `curl_once`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Row, Rows, measure, numbers, product, read_csv, repeatable, table, trusted, until_trusted
from anabranch_lab.programs import Failed, json_lines, processor_s, quantile, require_emulator, toml
from anabranch_lab.programs import topology as network_of

LAB = Experiment(__file__, __doc__)
SCHEMES = ("ecmp", "rps", "letflow", "drill", "agent")
PORT, SOURCE_PORT = 8000, 8001


@dataclasses.dataclass(frozen=True)
class Setting:
    """A figure of the paper.

    Attributes
    ----------
    figure
        Number of the figure in the paper.
    x
        Name of the varied value.
    xs
        Values of `x`.
    paths, path_mbps, delay_us, queue_packets
        Number of paths between the two hosts' switches and their rate, one-way delay of each link,
        and length of each queue.
    run_s
        Time that long flows send, in seconds. Short flows start from second 1 to second `run_s` -
        3, so that they have time to end.
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
        """Draw the number of long flows, and each short flow's start and bytes."""
        size = lambda: draw.randint(1_000, 99_999)  # noqa: E731
        within = self.run_s - 4.0
        if self.x == "short_flows":
            long = 4 if self.figure == "11" else 2
            return long, sorted((1.0 + draw.uniform(0, within), size()) for _ in range(round(x)))
        if self.x == "long_flows":
            return round(x), sorted((1.0 + draw.uniform(0, within), size()) for _ in range(100))
        # In every second, 50 short flows start within the first `x` seconds.
        periods = range(1, int(within) + 1)
        return 3, sorted((period + draw.uniform(0, x), size()) for period in periods for _ in range(50 if x else 0))


#: Paths have 12 Mbit/s instead of the paper's 20, because sprayed long flows at that rate are too
#: fast for the emulator here. The cloud's 1 Gbit/s become 35 Mbit/s.
SETTINGS = {
    "short-flows": Setting("11", "short_flows", (100, 180), 20, 12, 1_000, 256),
    "long-flows": Setting("12", "long_flows", (1, 4, 8), 20, 12, 1_000, 256),
    "on-periods": Setting("13", "on_share", (0.5, 1.0), 20, 12, 1_000, 256),
    "cloud": Setting("14", "short_flows", (100,), 6, 35, 50, 512),
}
KEY = ("setting", "scheme", "x", "seed")
COLUMNS = (
    *(*KEY, "short_flows", "unfinished", "fct_ms_mean", "fct_ms_p50", "fct_ms_p99", "long_mbps", "dropped_queue_full"),
    *("source_packets", "parity_packets", "recovered_packets", "given_up_packets", "sprayed_share", "lateness_us_p99"),
)
def scenario(setting: Setting, scheme: str, x: float, seed: int, folder: Path) -> Path:
    """Write the scenario of one run, with the same flows for every scheme, and return its path."""
    long, short = setting.flows(x, random.Random(seed))
    network = {"topology": "leaf-spine", "tors": 2, "hosts": 1, "spines": setting.paths, "rate": "1 Gbit/s"}
    network |= {"uplink_rate": f"{setting.path_mbps} Mbit/s", "delay": f"{setting.delay_us} us"}
    network |= {"queue": f"{setting.queue_packets * 1_500} B", "spread": "ecmp" if scheme == "agent" else scheme}
    work: list[Row] = []
    if short:
        listed = folder / "short.csv"
        listed.write_text("start_s,from,to,size_bytes\n" + "".join(f"{at:.6f},h0,h1,{size}\n" for at, size in short))
        work.append({"kind": "trace", "file": str(listed)})
    work += [{"kind": "long", "pairs": [["h0", "h1"]], "jitter": "100 ms"}] * long
    if scheme == "agent":
        work.append({"kind": "spray", "scheme": "agent", "rate": f"{setting.path_mbps} Mbit/s"})
    path, run = folder / "scenario.toml", {"duration": f"{setting.run_s} s", "seed": seed}
    path.write_text(toml({**run, "network": network, "transport": {"control": "cubic"}, "workload": work}))
    return path


def run_scenario(binary: Path, name: str, scheme: str, x: float, seed: int, clock: str = "emulate") -> list[Row]:
    """Run one scenario, and return the rows of its workloads."""
    with tempfile.TemporaryDirectory(prefix="spray-emulated-") as folder:
        return json_lines([binary, "-q", clock, scenario(SETTINGS[name], scheme, x, seed, Path(folder)), "--json"])


def summary(workloads: list[Row]) -> Row:
    """Return the figures of one run, from the rows of its workloads."""
    row: Row = {}
    for one in workloads:
        if one["workload"] == "trace":
            row |= {"short_flows": one["flows"], "unfinished": one["flows"] - one["finished"]}
            row |= {f"fct_ms_{what}": round(one[f"fct_us_{what}"] / 1e3, 3) for what in ("mean", "p50", "p99")}
        if one["workload"] == "spray":
            row |= {column: round(one[column]) for column in COLUMNS if column.endswith("_packets") and column in one}
            if one.get("sprayable_packets"):
                row["sprayed_share"] = round(one["sprayed_packets"] / one["sprayable_packets"], 3)
    row["long_mbps"] = round(sum(one["goodput_mbps"] for one in workloads if one["workload"] == "long"), 3)
    row |= {column: workloads[0][column] for column in ("dropped_queue_full", "lateness_us_p99") if column in workloads[0]}
    return row


ROWS = {"rows": LAB.folder / "rows.csv", "binary": BINARY, "seeds": 3}


def show(rows: list[Row]) -> str:
    """Return a line that describes a run."""
    (row,) = rows
    short = f"short {row.get('fct_ms_mean')} ms, 99 % {row.get('fct_ms_p99')}, long {row['long_mbps']} Mbit/s"
    return f"{row['setting']} {row['scheme']} {row['x']} seed {row['seed']}: {short}"


@LAB.verb(**ROWS, setting=repeatable(SETTINGS), scheme=repeatable(SCHEMES))
def figures(args) -> int:
    """Runs the chosen settings, except runs that have a row."""
    cells = [
        {"setting": name, "scheme": scheme, "x": x, "seed": seed}
        for seed in range(1, args.seeds + 1)
        for name in args.setting or SETTINGS
        for x in SETTINGS[name].xs
        for scheme in args.scheme or SCHEMES
    ]

    def run(cell: Row) -> Row:
        return summary(until_trusted(lambda: trusted(run_scenario(args.binary, *cell.values()))))

    return measure(Rows(args.rows, KEY, COLUMNS, "\n"), cells, run, show=show)


def topology(paths: int, mbps: float, delay_us: int, queue_bytes: int) -> str:
    """Return two hosts, a switch at each, and `paths` paths of two links between the switches."""
    cables = [("a", "left", 2_000.0), ("right", "b", 2_000.0)]
    for path in range(paths):
        cables += [("left", f"m{path}", mbps), (f"m{path}", "right", mbps)]
    more = {"delay": f"{delay_us} us", "queue": f"{queue_bytes} B"}
    made = [(one, other, {"capacity": f"{rate} Mbit/s", **more}) for one, other, rate in cables]
    return network_of("paths", ["left", "right", *(f"m{path}" for path in range(paths))], ["a", "b"], made)


@LAB.inside
def serve(_: Row) -> None:
    """Serve 64 kB and 1 GiB by HTTP, and send without end to every client of the other port."""
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

    def send(flow: socket.socket) -> None:
        with flow, contextlib.suppress(OSError):
            while True:
                flow.sendall(block)

    def endless() -> None:
        for flow in flows_to(os.environ["ANABRANCH_ADDRESS"], SOURCE_PORT):
            threading.Thread(target=send, args=(flow,), daemon=True).start()

    threading.Thread(target=endless, daemon=True).start()
    http.server.ThreadingHTTPServer((os.environ["ANABRANCH_ADDRESS"], PORT), Handler).serve_forever()


def flows_to(address: str, port: int) -> Iterator[socket.socket]:
    """Yield each connection to a port once it is accepted."""
    listener = socket.create_server((address, port))
    while True:
        flow, _ = listener.accept()
        yield flow


def has_peer(binary: object, path: object) -> bool:
    """Whether an agent has reached its peer."""
    ask = [binary, "spray", "status", "--json", "--socket", path]
    with contextlib.suppress(Failed):
        return json_lines(ask)[0]["peers"][0]["is_up"]
    return False


@LAB.inside
def ask(task: Row) -> Row:
    """Run `curl` repeatedly beside the task's number of endless flows, and return all times and the
    flows' rate."""
    if task["agent"]:
        # Requests begin once both agents have reached each other.
        for _ in range(200):
            if has_peer(task["binary"], task["agent"]):
                break
            time.sleep(0.1)
        else:
            raise Failed("the agents have not reached each other")
    server = os.environ["ANABRANCH_ADDRESS_B"]
    got = [0] * task["long"]

    def take(number: int) -> None:
        flow = socket.create_connection((server, SOURCE_PORT), timeout=30)
        while part := flow.recv(1 << 20):
            got[number] += len(part)

    for number in range(len(got)):
        threading.Thread(target=take, args=(number,), daemon=True).start()
    time.sleep(task["warmup_s"])
    began, before = time.monotonic(), sum(got)
    times: list[float] = []
    draw = random.Random(7)
    for _ in range(task["times"]):
        told = ["-w", "%{time_total} %{size_download}", "--max-time", "300", f"http://{server}:{PORT}{task['path']}"]
        done = subprocess.run(["curl", "-sS", "-o", os.devnull, *told], check=True, stdout=subprocess.PIPE, text=True)
        took, size = done.stdout.split()
        assert int(float(size)) == task["bytes"], f"curl brought {size} bytes"
        times.append(float(took))
        time.sleep(draw.uniform(0.02, 0.08))
    return {"times_s": times, "long_mbps": (sum(got) - before) * 8 / (time.monotonic() - began) / 1e6}


def curl_once(binary: Path, has_agents: bool, asked: Row, network: Row, changes: list[str]) -> Row:
    """Run one emulation, and return its result. `changes` are arguments of `emulate`."""
    with tempfile.TemporaryDirectory(prefix="spray-emulated-") as name:
        folder = Path(name)
        programs: list[tuple[str, object]] = [("b", f"exec {LAB.task(serve, folder)}")]
        if has_agents:
            subprocess.run([binary, "-q", "spray", "keys", "--hosts", "a,b", "--out", folder / "keys"], check=True)
            for site, peer in (("a", "b"), ("b", "a")):
                up = f"exec {binary} -q spray up --name {site} --peer {peer}={{@{peer}}} --keys {folder / 'keys'}"
                programs.append((site, f"{up} --socket {folder / site}.sock --rate '{network['mbps']} Mbit/s'"))
        inside = LAB.task(ask, folder, binary=binary, agent=folder / "a.sock" if has_agents else "", **asked)
        options = ["--tcp-buffer", "16 MiB", "--congestion-control", "cubic", "--settle", "1500 ms", *changes]
        emulated = LAB.emulate(binary, folder, topology(**network), inside, *options, site="a", programs=programs)
        return emulated.result | {"lateness_us_p99": emulated.report["lateness_us_p99"]}


#: The network of many paths. Each entry of `PEOPLE` is a network, and the requests and endless
#: flows on it.
MANY = {"paths": 20, "mbps": 20, "delay_us": 1_000, "queue_bytes": 384_000}
PEOPLE: dict[str, tuple[Row, Row]] = {
    "curl": (MANY, {"path": "/64k", "bytes": 65_536, "times": 150, "long": 4, "warmup_s": 3.0}),
    "curl-alone": (MANY, {"path": "/64k", "bytes": 65_536, "times": 60, "long": 0, "warmup_s": 0.5}),
    "curl-loss": (MANY, {"path": "/64k", "bytes": 65_536, "times": 100, "long": 4, "warmup_s": 3.0}),
    "download": (MANY | {"paths": 5, "mbps": 50}, {"path": "/1g", "bytes": 1 << 30, "times": 1, "long": 0, "warmup_s": 0.5}),
}


def lossy(paths: int) -> list[str]:
    """Return 5 % loss on half of the paths, in each direction, as arguments of `emulate`: 2.5 % on
    each of a path's two cables."""
    cables = [f"{side}-m{path}" for path in range(0, paths, 2) for side in ("left", "right")]
    return [word for cable in cables for word in ("--at", f"0s link {cable} loss 2.5%")]


@LAB.verb(**ROWS, what=repeatable(PEOPLE))
def people(args) -> int:
    """Measures everyday uses, with agents and without."""

    def run(cell: Row) -> Row:
        network, asked = PEOPLE[cell["setting"]]
        changes = lossy(network["paths"]) if cell["setting"] == "curl-loss" else []
        said = curl_once(args.binary, cell["scheme"] == "agent", asked, network, changes)
        times = said["times_s"]
        row = {"short_flows": len(times), "unfinished": 0, "lateness_us_p99": said["lateness_us_p99"]}
        row |= {"fct_ms_mean": round(statistics.fmean(times) * 1e3, 3), "fct_ms_p50": round(statistics.median(times) * 1e3, 3)}
        return row | {"fct_ms_p99": round(quantile(times, 0.99) * 1e3, 3), "long_mbps": round(said["long_mbps"], 3)}

    cells = product(seed=range(1, args.seeds + 1), setting=args.what or PEOPLE, scheme=["ecmp", "agent"], x=[""])
    return measure(Rows(args.rows, KEY, COLUMNS, "\n"), cells, run, show=show)


SPEED = ("what", "trial", "gbps", "cpu_s_per_gb", "request_us_p50", "request_us_p99", "idle_request_us_p50")
CARRIERS = ("plain", "bare", "agent")
#: Bytes of a transfer, requests of a measurement, and the pause in seconds between requests of an
#: idle host.
MOVED_BYTES, REQUESTS, IDLE_S = 1_500_000_000, 3_000, 0.003


@LAB.inside
def peer(task: Row) -> None:
    """Answer each byte on one port with a byte; on the other port receive all bytes, and then
    acknowledge them."""

    def answer() -> None:
        for flow in flows_to(task["address"], PORT):
            flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while said := flow.recv(16):
                flow.sendall(said)

    threading.Thread(target=answer, daemon=True).start()
    for flow in flows_to(task["address"], SOURCE_PORT):
        left, room = MOVED_BYTES, memoryview(bytearray(1 << 20))
        while left > 0:
            left -= flow.recv_into(room)
        flow.sendall(b"x")
        flow.close()


@LAB.inside
def move(task: Row) -> Row:
    """Send `MOVED_BYTES`, then send requests without pauses and with pauses; return all times."""
    address = task["address"]
    flow = socket.create_connection((address, SOURCE_PORT), timeout=60)
    block, left, began = bytes(1 << 20), MOVED_BYTES, time.monotonic()
    while left > 0:
        left -= flow.send(block[: min(left, len(block))])
    flow.recv(1)
    said: Row = {"took_s": time.monotonic() - began}
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
    return said


def speed_once(binary: Path, what: str) -> Row:
    """Run one trial between two new namespaces, which are removed afterwards."""
    ends = [f"spray-{os.getpid()}-{end}" for end in "ab"]
    addresses = ["10.79.0.1", "10.79.0.2"]
    programs: list[subprocess.Popen[bytes]] = []

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def start(end: int, *words: object) -> subprocess.Popen[bytes]:
        # `ip netns exec` replaces itself by the program, so its process number is the program's.
        programs.append(subprocess.Popen(["ip", "netns", "exec", ends[end], *map(str, words)]))
        return programs[-1]

    with tempfile.TemporaryDirectory(prefix="spray-speed-") as name:
        folder = Path(name)
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
                subprocess.run(["cc", "-O2", "-o", str(folder / "bare"), str(LAB.folder / "bare.c")], check=True)
                carriers = [start(end, folder / "bare", "bare0", addresses[1 - end]).pid for end in (0, 1)]
                time.sleep(0.5)
                for end, address in zip(ends, ("10.80.0.1", "10.80.0.2"), strict=True):
                    ip("-n", end, "address", "add", f"{address}/24", "dev", "bare0")
                    ip("-n", end, "link", "set", "bare0", "up", "mtu", "1398")
                to = "10.80.0.2"
            if what == "agent":
                subprocess.run([str(binary), "-q", "spray", "keys", "--hosts", "a,b", "--out", str(folder / "keys")], check=True)
                for end, (own, other) in enumerate((("a", "b"), ("b", "a"))):
                    up = [binary, "-q", "spray", "up", "--name", own, "--peer", f"{other}={addresses[1 - end]}", "--keys", folder / "keys"]
                    carriers.append(start(end, *up, "--socket", folder / f"{own}.sock").pid)
                time.sleep(2.0)
                assert has_peer(binary, folder / "a.sock"), "the agents have not reached each other"
            start(1, *LAB.task(peer, folder, address=to).command)
            time.sleep(0.5)
            before, moved = sum(map(processor_s, carriers)), LAB.task(move, folder, address=to)
            if start(0, *moved.command).wait(timeout=120):
                raise Failed("nothing was moved: the message is above")
            # The processor time includes the requests, which cost little compared with the bytes.
            used, said = sum(map(processor_s, carriers)) - before, moved.read_result()
        finally:
            for program in programs:
                program.terminate()
            for program in programs:
                program.wait(timeout=10)
            for end in ends:
                subprocess.run(["ip", "netns", "delete", end], check=False)
    return {
        "gbps": round(MOVED_BYTES * 8 / said["took_s"] / 1e9, 3),
        "cpu_s_per_gb": round(used / MOVED_BYTES * 1e9, 3),
        "request_us_p50": round(quantile(said["request"], 0.5) * 1e6, 1),
        "request_us_p99": round(quantile(said["request"], 0.99) * 1e6, 1),
        "idle_request_us_p50": round(quantile(said["idle"], 0.5) * 1e6, 1),
    }


@LAB.verb(rows=LAB.folder / "speed.csv", binary=BINARY, trials=3)
def speed(args) -> int:
    """Measures all carriers between two namespaces; carriers take turns."""
    cells = product(trial=range(args.trials), what=CARRIERS)
    return measure(Rows(args.rows, SPEED[:2], SPEED, "\n"), cells, lambda cell: speed_once(args.binary, cell["what"]))


@LAB.verb("table", rows=LAB.folder / "rows.csv", speed=LAB.folder / "speed.csv")
def show_tables(args) -> None:
    """Prints the rows as tables in Markdown: medians over seeds."""

    def median(of: list[Row], column: str) -> float | None:
        values = numbers(of, column)
        return statistics.median(values) if values else None

    rows = read_csv(args.rows)
    for name, setting in SETTINGS.items():
        schemes = [scheme for scheme in SCHEMES if any((row["setting"], row["scheme"]) == (name, scheme) for row in rows)]
        if not schemes:
            continue
        print(f"\nFigure {setting.figure} (`{name}`): mean and 99th percentile of short flows in ms, and Mbit/s of the long ones together\n")
        lines = []
        for x in setting.xs:
            cells = []
            for scheme in schemes:
                own = [row for row in rows if (row["setting"], row["scheme"]) == (name, scheme) and float(row["x"]) == x]
                mean, tail, long = (median(own, column) for column in ("fct_ms_mean", "fct_ms_p99", "long_mbps"))
                short = "-" if mean is None or tail is None else f"{mean:.1f}, {tail:.0f}"
                cells.append("" if not own else f"{short}; {long:.0f}")
            lines.append([f"{x:g}", *cells])
        print(table([setting.x, *schemes], lines, "rl"))
    lines = []
    for name, scheme in ((name, scheme) for name in PEOPLE for scheme in ("ecmp", "agent")):
        if own := [row for row in rows if (row["setting"], row["scheme"]) == (name, scheme)]:
            cells = [median(own, column) for column in ("fct_ms_mean", "fct_ms_p50", "fct_ms_p99", "long_mbps")]
            told = [f"{cell:.1f}" for cell in cells if cell is not None]
            lines.append([f"`{name}`", "yes" if scheme == "agent" else "no", *told, len(own)])
    print("\n" + table(["what", "agents", "mean ms", "p50", "p99", "long flows, Mbit/s", "runs"], lines, "llr"))
    rows, lines = read_csv(args.speed), []
    for what in CARRIERS:
        if own := [row for row in rows if row["what"] == what]:
            lines.append([what, *(f"{median(own, column):.3g}" for column in SPEED[2:])])
    head = ["between", "Gbit/s", "processor s/GB, both ends", "a request us, p50", "p99", "on idle hosts, p50"]
    print("\n" + table(head, lines, "lr"))


@LAB.verb(binary=BINARY)
def smoke(args) -> None:
    """Runs a small case under each clock through agents; skipped if this machine has no namespaces."""
    row = summary(run_scenario(args.binary, "cloud", "agent", 10, 1, "simulate"))
    assert row["fct_ms_mean"] and row["long_mbps"], row
    require_emulator(args.binary)
    row = summary(run_scenario(args.binary, "cloud", "agent", 10, 1))
    assert row["fct_ms_mean"] and row["sprayed_share"], row
    print(f"spray-emulated: 10 short flows in {row['fct_ms_mean']} ms beside {row['long_mbps']} Mbit/s")


if __name__ == "__main__":
    sys.exit(LAB.main())
