"""Who gets what of a link that `gather` shares with others, and how long an interactive flow waits there.

``run.py simulated`` and ``run.py emulated`` run the same cells: some parties share one link behind a queue for 60 s, and a flow of
small datagrams, 20 a second, crosses it with them. Emulated, a party is `gather get`, or TCP flows of the kernel that this file
sends; simulated, it is the machines of either. Each writes a row for each party to ``rows.csv``; cells that are there are not run
again. ``run.py table`` prints what is in it and which bounds do not hold. ``run.py smoke`` simulates some seconds and checks that rows
make sense. Standard library only.

Read first: `Cell`, `scenario`, `emulate`.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import os
import pathlib
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PORT = 7180
TRIES = 3
#: Packets of a second of the interactive flow, and their bytes on the wire.
ASKED_HZ, ASKED_BYTES = 20, 100
#: Bytes of a full packet, of a TCP segment's data in it and of a `gather` packet's: rates count whole packets.
PACKET_BYTES, SEGMENT_BYTES, SYMBOL_BYTES = 1500, 1448, 1434
#: Which parties share the link. `gather-3` is one pull from three servers, `bbr-4` four flows of TCP with BBR's first version, which is the
#: kernel's, and `bbr3-4` with its third, which kernels have not.
MIXES = (
    *("gather-1", "gather-3", "cubic-1", "bbr-1"),
    *(f"{ours}+{theirs}" for ours in ("gather-1", "gather-3") for theirs in ("cubic-1", "cubic-4", "bbr-1", "bbr-4", "bbr3-1", "bbr3-4")),
    *("gather-1+gather-1", "gather-3+gather-3", "bbr-1+cubic-1", "bbr-1+cubic-4"),
    *("cubic-1+cubic-1", "bbr-1+bbr-1", "bbr3-1+bbr3-1"),
)
#: What the simulator calls TCP's controls.
SIMULATED = {"cubic": "cubic", "bbr": "bbr1", "bbr3": "bbr"}
QUEUES = (0.5, 1.0, 2.0, 4.0)
#: Bounds on the share of the fair rate, on the ratio of two pulls' rates, and below which share a party starves.
SHARES, RATIO_MAX, STARVED = (0.5, 2.0), 1.3, 0.1


@dataclasses.dataclass(frozen=True)
class Cell:
    """Parties on one link.

    Attributes
    ----------
    mix
        One of `MIXES`.
    link_mbps, rtt_ms
        The shared link's rate, and the round trip between any two that speak.
    queue_bdps
        The queue before the shared link, in products of rate and round trip.
    run_s, warmup_s
        How long all send, and how much of the beginning does not count.
    """

    mix: str
    link_mbps: float
    rtt_ms: float
    queue_bdps: float
    run_s: float
    warmup_s: float

    def parties(self) -> list[tuple[str, int]]:
        """What each is, and how many servers or flows it has."""
        split = (party.rsplit("-", 1) for party in self.mix.split("+"))
        return [(kind, int(count)) for kind, count in split]

    def can_be(self, clock: str) -> bool:
        """Whether what runs under that clock has all that is in it."""
        return clock == "simulated" or all(kind != "bbr3" for kind, _ in self.parties())

    def queue_bytes(self) -> int:
        """Bytes of the queue: four packets at least."""
        return max(int(self.link_mbps * 1e6 / 8 * self.rtt_ms / 1e3 * self.queue_bdps), 4 * PACKET_BYTES)

    def topology(self) -> str:
        """Two switches with the shared link between, the parties' hosts on either side of it; a client stands before its servers."""
        lines = ['name = "shared"']
        for switch in ("left", "right"):
            lines += ["[[site]]", f'name = "{switch}"', "switch = true"]
        hosts = [("right", "asker"), ("left", "echo")]
        for number, (kind, count) in enumerate(self.parties()):
            hosts.append(("right", f"p{number}"))
            hosts += [("left", f"p{number}s{server}") for server in range(count if kind == "gather" else 1)]
        for _, host in hosts:
            lines += ["[[site]]", f'name = "{host}"']
        # The hosts' links are no bottleneck, and nothing is lost there.
        ends = [(switch, host, 4 * self.link_mbps, 1.0, 4_000_000) for switch, host in hosts]
        ends.append(("left", "right", self.link_mbps, self.rtt_ms / 2 - 2.0, self.queue_bytes()))
        for a, b, rate, delay_ms, queue in ends:
            lines += ["[[cable]]", f'between = ["{a}", "{b}"]', f'capacity = "{rate} Mbit/s"']
            lines += [f'delay = "{delay_ms * 1e3:.0f} us"', f'queue = "{queue} B"']
        return "\n".join(lines) + "\n"

    def object_bytes(self) -> int:
        """More than the link carries in all the time."""
        return int(self.link_mbps * 1e6 / 8 * (self.run_s + 10.0) * 1.1)


CELL = [field.name for field in dataclasses.fields(Cell)]
#: A row is a party. The round trips are the interactive flow's, the same for all parties of a cell.
COLUMNS = ["clock", *CELL, "trial", "number", "party", "rate_mbps", "rtt_ms_p50", "rtt_ms_p99", "lateness_us_p99"]
Row = dict[str, object]


def scenario(cell: Cell, topology: pathlib.Path) -> str:
    """The cell as `anabranch simulate` reads it: one workload for each pull and each flow, and one for the interactive flow."""
    lines = [f'duration = "{cell.run_s} s"', f'warmup = "{cell.warmup_s} s"', "[network]", f'topology = "{topology}"']
    # The time of a packet on the shared link keeps flows from falling into step.
    lines += [f'jitter = "{PACKET_BYTES * 8 / cell.link_mbps:.0f} us"']
    # TCP as Linux has it; see experiments/sim-vs-emu.
    lines += ["[transport]", 'control = "cubic"', "rack = true", "quick_ack = 16"]
    for number, (kind, count) in enumerate(cell.parties()):
        if kind == "gather":
            lines += ["[[workload]]", 'kind = "gather"', f'client = "p{number}"', f"servers = {count}", "rounds = 1"]
            lines += [f'block = "{cell.object_bytes()} B"', f'symbol = "{SYMBOL_BYTES} B"', "knows_link = false"]
            continue
        for _ in range(count):
            lines += ["[[workload]]", 'kind = "long"', f'pairs = [["p{number}s0", "p{number}"]]']
            lines += [f'control = "{SIMULATED[kind]}"', 'jitter = "500 ms"']
    bps = ASKED_HZ * ASKED_BYTES * 8
    lines += ["[[workload]]", 'kind = "udp"', 'pairs = [["echo", "asker"]]']
    lines += [f'rate = "{bps} bit/s"', f'packet = "{ASKED_BYTES} B"', "random = true", f'start = "{cell.warmup_s} s"']
    return "\n".join(lines) + "\n"


def simulate(binary: pathlib.Path, cell: Cell, trial: int) -> list[Row]:
    """The rows of one simulated trial."""
    with tempfile.TemporaryDirectory(prefix="gather-fairness-") as name:
        folder = pathlib.Path(name)
        (folder / "shared.toml").write_text(cell.topology())
        (folder / "cell.toml").write_text(scenario(cell, folder / "shared.toml"))
        command = [str(binary), "-q", "simulate", str(folder / "cell.toml"), "--json", "--set", f"seed={trial + 1}"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    asked = next(row for row in said if row["workload"] == "udp")
    # There as all packets, back over a link that nobody else fills.
    rtt_ms = {column: round(asked[f"delay_us_{column[7:]}"] / 1e3 + cell.rtt_ms / 2, 3) for column in ("rtt_ms_p50", "rtt_ms_p99")}
    rates = iter(row["goodput_mbps"] for row in said if row["workload"] != "udp")
    rows: list[Row] = []
    for kind, count in cell.parties():
        for party in [f"gather-{count}"] if kind == "gather" else [kind] * count:
            data = SYMBOL_BYTES if kind == "gather" else SEGMENT_BYTES
            rows.append({"party": party, "rate_mbps": round(next(rates) * PACKET_BYTES / data, 3), **rtt_ms, "lateness_us_p99": ""})
    return rows


def received_bytes() -> int:
    """What this site's device has taken in, headers of IP included."""
    lines = pathlib.Path("/proc/self/net/dev").read_text().splitlines()
    counts = (line.split(":", 1)[1].split() for line in lines[2:] if not line.strip().startswith("lo:"))
    return sum(int(count[0]) for count in counts)


def wait_until(at: float) -> None:
    """Sleeps until this time of the machine's monotonic clock."""
    time.sleep(max(at - time.monotonic(), 0.0))


def begin(task: dict[str, object]) -> float:
    """Waits for the start, and says when it is."""
    go = pathlib.Path(str(task["folder"])) / "go"
    for _ in range(60_000):
        if go.exists():
            return float(go.read_text())
        time.sleep(0.002)
    raise SystemExit("run.py: the start was never said")


def role_source(task: dict[str, object]) -> None:
    """Sends without end to whoever connects, by the task's congestion control."""
    listener = socket.create_server((os.environ["ANABRANCH_ADDRESS"], PORT))
    listener.setblocking(False)
    chosen = selectors.DefaultSelector()
    chosen.register(listener, selectors.EVENT_READ)
    block = bytes(1 << 16)
    while True:
        for key, _ in chosen.select():
            if key.fileobj is listener:
                flow, _ = listener.accept()
                flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, str(task["control"]).encode())
                flow.setblocking(False)
                chosen.register(flow, selectors.EVENT_WRITE)
                continue
            try:
                key.fileobj.send(block)
            except BlockingIOError:
                pass
            except OSError:
                chosen.unregister(key.fileobj)
                key.fileobj.close()


def role_sink(task: dict[str, object]) -> list[float]:
    """Takes in the flows of a source, and says the rate of each in whole packets."""
    began = begin(task)
    wait_until(began)
    chosen = selectors.DefaultSelector()
    flows = range(int(str(task["count"])))
    for number in flows:
        flow = socket.create_connection((str(task["from"]), PORT), timeout=10)
        flow.setblocking(False)
        chosen.register(flow, selectors.EVENT_READ, number)
    counted, before = [0 for _ in flows], [0 for _ in flows]
    warm, end = began + float(str(task["warmup_s"])), began + float(str(task["run_s"]))
    warm_at = None
    while (now := time.monotonic()) < end:
        if warm_at is None and now >= warm:
            warm_at, before = now, counted.copy()
        for key, _ in chosen.select(timeout=min(end, warm if warm_at is None else end) - now):
            counted[key.data] += len(key.fileobj.recv(1 << 20))
    assert warm_at is not None, "the warm-up ends before the rest"
    took = time.monotonic() - warm_at
    return [(after - first) * 8 / took / 1e6 * PACKET_BYTES / SEGMENT_BYTES for after, first in zip(counted, before, strict=True)]


def role_pull(task: dict[str, object]) -> list[float]:
    """Pulls by `gather get`, and says the rate of all packets that came."""
    began = begin(task)
    wait_until(began)
    pull = subprocess.Popen(list(map(str, task["command"])), stderr=subprocess.PIPE)  # type: ignore[call-overload]
    wait_until(began + float(str(task["warmup_s"])))
    warm_at, before = time.monotonic(), received_bytes()
    wait_until(began + float(str(task["run_s"])))
    took, bytes_ = time.monotonic() - warm_at, received_bytes() - before
    if pull.poll() is not None:
        said = pull.stderr.read().decode(errors="replace") if pull.stderr else ""
        raise SystemExit(f"run.py: `gather get` ended early, with {pull.returncode}: {' '.join(said.split())}")
    pull.terminate()
    pull.wait()
    return [bytes_ * 8 / took / 1e6]


def role_echo(_: dict[str, object]) -> None:
    """Sends each datagram back."""
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind((os.environ["ANABRANCH_ADDRESS"], PORT))
    while True:
        data, to = own.recvfrom(2_048)
        own.sendto(data, to)


def role_ask(task: dict[str, object]) -> dict[str, float]:
    """Says the start, asks all the time, and waits for what the parties say."""
    folder = pathlib.Path(str(task["folder"]))
    began = time.monotonic() + 0.5
    (folder / "go.new").write_text(repr(began))
    (folder / "go.new").rename(folder / "go")
    warm, end = began + float(str(task["warmup_s"])), began + float(str(task["run_s"]))
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.connect((os.environ["ANABRANCH_ADDRESS_ECHO"], PORT))
    own.setblocking(False)
    chosen = selectors.DefaultSelector()
    chosen.register(own, selectors.EVENT_READ)
    sent: dict[int, float] = {}
    times: list[float] = []
    next_at = warm
    # Answers that are under way at the end still count.
    while (now := time.monotonic()) < end + 2.0:
        if next_at <= now and next_at < end:
            sent[len(sent)] = now
            own.send((len(sent) - 1).to_bytes(8, "big") + bytes(ASKED_BYTES - 28 - 8))
            next_at += 1 / ASKED_HZ
        wake = next_at if next_at < end else end + 2.0
        for _ in chosen.select(timeout=max(wake - now, 0.0)):
            number = int.from_bytes(own.recv(2_048)[:8], "big")
            times.append(time.monotonic() - sent[number])
    if len(times) < len(sent) / 2:
        raise SystemExit(f"run.py: {len(times)} of {len(sent)} questions were answered: the path loses most of them")
    times.sort()
    at = {"rtt_ms_p50": 0.5, "rtt_ms_p99": 0.99}
    return {column: times[min(math.ceil(len(times) * share), len(times)) - 1] * 1e3 for column, share in at.items()}


def role(task: dict[str, object]) -> int:
    """Runs one of the roles inside its site, and writes what it has to say."""
    roles = {"source": role_source, "sink": role_sink, "pull": role_pull, "echo": role_echo, "ask": role_ask}
    said = roles[str(task["role"])](task)
    place = pathlib.Path(str(task["result"]))
    place.with_suffix(".new").write_text(json.dumps(said))
    place.with_suffix(".new").rename(place)
    if task["role"] == "ask":
        others = [pathlib.Path(str(path)) for path in task["others"]]  # type: ignore[attr-defined]
        for _ in range(1_000):
            if all(path.exists() for path in others):
                return 0
            time.sleep(0.01)
        raise SystemExit("run.py: a party said nothing: its message is above")
    return 0


def emulate(binary: pathlib.Path, cell: Cell) -> list[Row]:
    """The rows of one emulated trial.

    Raises
    ------
    SystemExit
        If it fails, or is not trusted three times.
    """
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(prefix="gather-fairness-") as name:
            rows, is_trusted = emulate_once(binary, cell, pathlib.Path(name))
        if is_trusted:
            return rows
    raise SystemExit(f"run.py: {cell}: the emulation was too late {TRIES} times")


def emulate_once(binary: pathlib.Path, cell: Cell, folder: pathlib.Path) -> tuple[list[Row], bool]:
    """The rows of one emulation, and whether it is to be trusted."""
    subprocess.run([str(binary), "-q", "gather", "keys", "--out", str(folder / "keys")], check=True)
    (folder / "shared.toml").write_text(cell.topology())
    (folder / "served").mkdir()
    with (folder / "served" / "object").open("wb") as file:
        file.truncate(cell.object_bytes())
    sites = [line.split('"')[1] for line in cell.topology().splitlines() if line.startswith('name = "')][1:]

    def own(site: str, name: str, **more: object) -> str:
        times = {"folder": str(folder), "run_s": cell.run_s, "warmup_s": cell.warmup_s}
        task = {"role": name, "result": str(folder / f"{site}.json"), **times, **more}
        (folder / f"{site}.task").write_text(json.dumps(task))
        return f"{sys.executable} {HERE / 'run.py'} role {folder / site}.task"

    programs, results = ["--run", f"echo=exec {own('echo', 'echo')}"], []
    for number, (kind, count) in enumerate(cell.parties()):
        site = f"p{number}"
        results.append(folder / f"{site}.json")
        if kind == "gather":
            holders = ",".join(f"{{@{site}s{server}}}:{PORT}" for server in range(count))
            get = [str(binary), "-q", "gather", "get", f"{holders}/object", "-o", str(folder / site), "--keys", str(folder / "keys"), "--no-sync"]
            serve = f"exec {binary} -q gather serve {folder / 'served'} --keys {folder / 'keys'} --listen $ANABRANCH_ADDRESS:{PORT}"
            for server in range(count):
                programs += ["--run", f"{site}s{server}={serve}"]
            # `emulate` puts addresses into the line, which so has to hold the command.
            command = own(site, "pull") + " " + " ".join(get)
        else:
            programs += ["--run", f"{site}s0=exec {own(f'{site}s0', 'source', control=kind)}"]
            command = own(site, "sink", count=count) + f" {{@{site}s0}}"
        programs += ["--run", f"{site}=exec {command}"]
    report, asked = folder / "report.json", folder / "asker.json"
    command = [str(binary), "-q", "emulate", str(folder / "shared.toml"), "--site", "asker", "--tcp-buffer", "16 MiB"]
    command += ["--report", str(report), "--duration", f"{cell.run_s + 60} s", "--settle", f"{1_000 + 200 * len(sites)} ms", *programs]
    command += ["--", *own("asker", "ask", others=[str(path) for path in results]).split()]
    subprocess.run(command, check=True)
    emulated = json.loads(report.read_text())["report"]
    figures = {column: round(value, 3) for column, value in json.loads(asked.read_text()).items()}
    figures["lateness_us_p99"] = emulated["lateness_us_p99"]
    rows: list[Row] = []
    for (kind, count), result in zip(cell.parties(), results, strict=True):
        party = f"gather-{count}" if kind == "gather" else kind
        rows += [{"party": party, "rate_mbps": round(rate, 3), **figures} for rate in json.loads(result.read_text())]
    return rows, bool(emulated["trusted"])


def run_all(args: argparse.Namespace) -> int:
    """All cells of one clock that are not in the rows yet."""
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    done = {tuple(row[column] for column in ("clock", *CELL, "trial")) for row in read(args.rows)}
    for trial in range(args.trials):
        for queue in args.queue:
            for mix in args.mix or MIXES:
                cell = Cell(mix, args.rate, args.rtt, queue, args.seconds, args.warmup)
                what: Row = {"clock": args.verb, **dataclasses.asdict(cell), "trial": trial}
                if not cell.can_be(args.verb) or tuple(map(str, what.values())) in done:
                    continue
                rows = simulate(args.binary, cell, trial) if args.verb == "simulated" else emulate(args.binary, cell)
                write(args.rows, [{**what, "number": number, **row} for number, row in enumerate(rows)])
                rates = " ".join(f"{row['party']}={row['rate_mbps']}" for row in rows)
                print(f"{args.verb} {mix} queue {queue}: {rates} rtt {rows[0]['rtt_ms_p50']} {rows[0]['rtt_ms_p99']}", flush=True)
    table(args)
    return 0


def read(path: pathlib.Path) -> list[dict[str, str]]:
    """The rows so far."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: pathlib.Path, rows: list[Row]) -> None:
    """All rows of a cell at once, so that one that was broken off leaves none."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def jain(rates: list[float]) -> float:
    """Jain's index: 1 where all are the same, 1 / n where one has all.

    >>> jain([1.0, 1.0]), jain([1.0, 0.0])
    (1.0, 0.5)
    """
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates)) if any(rates) else 1.0


def broken(parties: list[str], shares: list[float], least: float, apart: float) -> list[str]:
    """Which bounds do not hold, a few words each; `shares` are of the fair rate, `least` is the least in a trial, and two pulls are so far `apart`.

    >>> broken(["gather-1", "cubic"], [1.5, 0.5], 0.5, 1.0)
    []
    >>> broken(["gather-1", "cubic"], [1.95, 0.05], 0.05, 1.0)
    ['somebody starves with 0.05']
    >>> broken(["gather-1", "gather-1"], [1.0, 1.0], 0.8, 1.5)
    ['two pulls 1.50 apart']
    """
    ours = [number for number, party in enumerate(parties) if party.startswith("gather")]
    found = [f"{parties[n]} has {shares[n]:.2f}" for n in ours if not SHARES[0] <= shares[n] <= SHARES[1]]
    if least < STARVED:
        found.append(f"somebody starves with {least:.2f}")
    if len(ours) == 2 and apart > RATIO_MAX:
        found.append(f"two pulls {apart:.2f} apart")
    return found


@dataclasses.dataclass(frozen=True)
class Summary:
    """A cell's medians over its trials.

    What is said of several parties of a trial is reckoned for each trial first: two of which now one and now the other has more have the same
    median, and are not alike.

    Attributes
    ----------
    clock, mix, link_mbps, queue
        The cell.
    parties
        Their names: a pull is one, and so is each flow of TCP.
    rates, shares
        Of each party, in Mbit/s and of the fair rate, which is what all have together over their number.
    as_flows
        Of each pull, its share where each of its servers counts as a flow.
    least
        The least share that any has.
    apart, apart_most
        The ratio of the highest and the lowest rate, in the median and in the worst trial.
    whole_mbps, jain
        Of all together.
    rtt_ms
        The interactive flow's median and 99th percentile.
    """

    clock: str
    mix: str
    link_mbps: float
    queue: float
    parties: list[str]
    rates: list[float]
    shares: list[float]
    as_flows: list[float]
    least: float
    apart: float
    apart_most: float
    whole_mbps: float
    jain: float
    rtt_ms: list[float]

    def broken(self) -> list[str]:
        """Which bounds do not hold."""
        return broken(self.parties, self.shares, self.least, self.apart) if len(self.rates) > 1 else []


def summaries(path: pathlib.Path) -> list[Summary]:
    """What the rows say of each cell, in the order of clocks, queues and mixes."""
    cells: dict[tuple[str, ...], dict[str, list[dict[str, str]]]] = {}
    for row in read(path):
        cell = tuple(row[column] for column in ("clock", *CELL))
        cells.setdefault(cell, {}).setdefault(row["trial"], []).append(row)
    found = []
    for cell in sorted(cells, key=lambda cell: (cell[0], float(cell[4]), MIXES.index(cell[1]))):
        clock, mix, link, _, queue, *_ = cell
        trials = list(cells[cell].values())
        parties = [row["party"] for row in trials[0]]
        flows = [int(party[7:]) if party.startswith("gather") else 1 for party in parties]
        all_rates = [[float(row["rate_mbps"]) for row in trial] for trial in trials]
        all_shares = [[rate * len(one) / max(sum(one), 1e-9) for rate in one] for one in all_rates]
        # Medians of what each trial says: those of parties do not add up to any trial's sum.
        rates = [statistics.median(of_one) for of_one in zip(*all_rates, strict=True)]
        shares = [statistics.median(of_one) for of_one in zip(*all_shares, strict=True)]
        as_flows = [share * sum(flows) / len(flows) / own for share, own, party in zip(shares, flows, parties, strict=True) if party.startswith("gather")]
        whole, index = (statistics.median(map(of, all_rates)) for of in (sum, jain))
        rtt_ms = [statistics.median(float(trial[0][column]) for trial in trials) for column in ("rtt_ms_p50", "rtt_ms_p99")]
        least = statistics.median(map(min, all_shares))
        ratios = [max(one) / max(min(one), 1e-9) for one in all_rates]
        cell_of = (clock, mix, float(link), float(queue), parties)
        found.append(Summary(*cell_of, rates, shares, as_flows, least, statistics.median(ratios), max(ratios), whole, index, rtt_ms))
    return found


def table(args: argparse.Namespace) -> int:
    """Prints a line for each cell, or with `--brief` the tables of the README."""
    if args.brief:
        return brief(summaries(args.rows))
    print("| clock | parties | queue | Mbit/s | of the link | of the fair share | as flows | Jain | rtt ms p50, p99 | does not hold |")
    print("| --- | --- | ---: | --- | ---: | --- | --- | ---: | --- | --- |")
    for it in summaries(args.rows):
        told = [
            *(it.clock, it.mix, str(it.queue), ", ".join(f"{rate:.1f}" for rate in it.rates)),
            f"{it.whole_mbps / it.link_mbps:.3f}",
            *(", ".join(f"{share:.2f}" for share in it.shares), ", ".join(f"{share:.2f}" for share in it.as_flows)),
            *(f"{it.jain:.3f}", ", ".join(f"{ms:.0f}" for ms in it.rtt_ms), "; ".join(it.broken())),
        ]
        print("| " + " | ".join(told) + " |")
    return 0


def brief(all_cells: list[Summary]) -> int:
    """For each mix and queue the first party's share, as flows where a pull has several servers; how far two alike are apart; then the interactive
    flow's round trip.

    Simulated and emulated stand beside each other, and what is outside its bounds is bold.
    """
    cells = {(it.clock, it.mix, it.queue): it for it in all_cells}
    clocks = sorted({it.clock for it in all_cells}, reverse=True)
    queues = sorted({it.queue for it in all_cells})

    def share(it: Summary | None) -> str:
        if it is None:
            return "-"
        one = f"**{it.shares[0]:.2f}**" if it.broken() else f"{it.shares[0]:.2f}"
        return one + (f" ({it.as_flows[0]:.2f})" if it.as_flows and not it.mix.startswith("gather-1") else "")

    def apart(it: Summary | None) -> str:
        if it is None:
            return "-"
        one = f"**{it.apart:.2f}**" if it.broken() else f"{it.apart:.2f}"
        return f"{one} ({it.apart_most:.2f})"

    def rtt(it: Summary | None) -> str:
        return "-" if it is None else f"{it.rtt_ms[0]:.0f}, {it.rtt_ms[1]:.0f}"

    alike = [mix for mix in MIXES if len(set(mix.split("+"))) < len(mix.split("+"))]
    for title, mixes, of in (
        ("first party's share", [mix for mix in MIXES if "+" in mix and mix not in alike], share),
        ("two alike, times apart, and in the worst trial", alike, apart),
        ("rtt ms p50, p99, beside one alone", [mix for mix in MIXES if "+" not in mix], rtt),
    ):
        print(f"| {title}: {' / '.join(clocks)} | " + " | ".join(f"queue {queue:g}" for queue in queues) + " |")
        print("| --- |" + " --- |" * len(queues))
        for mix in mixes:
            print(f"| {mix} | " + " | ".join(" / ".join(of(cells.get((clock, mix, queue))) for clock in clocks) for queue in queues) + " |")
        print()
    return 0


def smoke(args: argparse.Namespace) -> int:
    """Some simulated seconds: each party gets something, all together no more than the link has, and nothing is as fast as light."""
    for mix in ("gather-3+cubic-1", "gather-1+gather-1"):
        cell = Cell(mix, 10.0, 20.0, 2.0, 4.0, 1.0)
        rows = simulate(args.binary, cell, 0)
        rates = [float(str(row["rate_mbps"])) for row in rows]
        rtt_ms = [float(str(rows[0][column])) for column in ("rtt_ms_p50", "rtt_ms_p99")]
        print(f"{mix}: Mbit/s {rates}, round trips {rtt_ms} ms")
        assert len(rows) == 2 and all(rate > 0.1 for rate in rates), "a party got nothing"
        assert 0.7 * cell.link_mbps < sum(rates) < 1.02 * cell.link_mbps, "all together fill the link, and not more"
        # The queue holds two round trips, of which a bucket's width may be missing.
        assert 20.0 <= rtt_ms[0] <= rtt_ms[1] <= 3.1 * cell.rtt_ms + 1.0, "a round trip is the path's and at most a full queue's"
    return 0


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    rows = {"type": pathlib.Path, "default": ROOT / "runs" / "gather-fairness" / "rows.csv"}
    binary = {"type": pathlib.Path, "default": ROOT / "target" / "release" / "anabranch"}
    for name in ("simulated", "emulated"):
        verb = verbs.add_parser(name)
        verb.set_defaults(brief=False)
        verb.add_argument("--rows", **rows)
        verb.add_argument("--binary", **binary)
        verb.add_argument("--mix", action="append", choices=MIXES, help="these parties alone; may be repeated")
        verb.add_argument("--queue", type=float, nargs="+", default=QUEUES, help="products of rate and round trip")
        verb.add_argument("--rate", type=float, default=50.0, help="Mbit/s of the shared link")
        verb.add_argument("--rtt", type=float, default=40.0, help="ms")
        verb.add_argument("--seconds", type=float, default=60.0)
        verb.add_argument("--warmup", type=float, default=10.0, help="seconds of these that do not count")
        verb.add_argument("--trials", type=int, default=5 if name == "simulated" else 1)
    shown = verbs.add_parser("table")
    shown.add_argument("--rows", **rows)
    shown.add_argument("--brief", action="store_true", help="the README's tables")
    verbs.add_parser("smoke").add_argument("--binary", **binary)
    own = verbs.add_parser("role")
    own.add_argument("task", type=pathlib.Path)
    own.add_argument("more", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if hasattr(args, "binary"):
        # Trials run in other folders.
        args.binary = args.binary.resolve()
    if args.verb == "role":
        task = json.loads(args.task.read_text())
        task |= {"pull": {"command": args.more}, "sink": {"from": args.more and args.more[0]}}.get(task["role"], {})
        return role(task)
    if args.verb in ("simulated", "emulated"):
        return run_all(args)
    return table(args) if args.verb == "table" else smoke(args)


if __name__ == "__main__":
    sys.exit(main())
