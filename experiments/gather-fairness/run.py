"""Shares of a link that `gather` shares with other senders, and the delay of an interactive flow on
it.

``run.py simulated`` and ``run.py emulated`` run the same cells: some parties share one link behind
a queue for 60 s, and a flow of small datagrams, 20 a second, crosses it with them. In the
emulation, a party is `gather get`, or TCP flows of the kernel that this program sends; in the
simulation, a party is the state machine of the same protocol. Both write a row for each party to ``rows.csv``;
cells that have rows are not run again. ``run.py table`` prints the rows and the bounds that do not
hold. ``run.py smoke`` simulates some seconds and checks that the rows are plausible. Standard
library only.

Read first: `Cell`, `scenario`, `emulate`.
"""

from __future__ import annotations

import dataclasses
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Option, Row, Rows, grouped, measure, numbers, product, read_csv, repeatable, table
from anabranch_lab.programs import Failed, json_lines, quantile, toml, topology

LAB = Experiment(__file__, __doc__)
PORT = 7180
#: Packets of a second of the interactive flow, and their bytes on the wire.
ASKED_HZ, ASKED_BYTES = 20, 100
#: Bytes of a full packet, of TCP's data in it, and of `gather`'s data in it; rates count whole
#: packets.
PACKET_BYTES, SEGMENT_BYTES, SYMBOL_BYTES = 1500, 1448, 1434
#: Parties on the link. `gather-3` is one pull from three servers, `bbr-4` four flows of TCP with
#: BBR's first version, which the kernel has, and `bbr3-4` with BBR's third version, which kernels
#: lack.
MIXES = (
    *("gather-1", "gather-3", "cubic-1", "bbr-1"),
    *(f"{ours}+{theirs}" for ours in ("gather-1", "gather-3") for theirs in ("cubic-1", "cubic-4", "bbr-1", "bbr-4", "bbr3-1", "bbr3-4")),
    *("gather-1+gather-1", "gather-3+gather-3", "bbr-1+cubic-1", "bbr-1+cubic-4"),
    *("cubic-1+cubic-1", "bbr-1+bbr-1", "bbr3-1+bbr3-1"),
)
#: The simulator's names of TCP's congestion controls.
SIMULATED = {"cubic": "cubic", "bbr": "bbr1", "bbr3": "bbr"}
QUEUES = (0.5, 1.0, 2.0, 4.0)
#: Bounds on a pull's share of the fair rate and on the ratio of two pulls' rates; the share below
#: which a party starves.
SHARES, RATIO_MAX, STARVED = (0.5, 2.0), 1.3, 0.1


@dataclasses.dataclass(frozen=True)
class Cell:
    """Parties on one link.

    Attributes
    ----------
    mix
        One of `MIXES`.
    link_mbps, rtt_ms
        The shared link's rate, and the round trip between any two communicating sites.
    queue_bdps
        The queue before the shared link, in products of rate and round trip.
    run_s, warmup_s
        Seconds that all parties send, and seconds at the beginning that do not count.
    """

    mix: str
    link_mbps: float
    rtt_ms: float
    queue_bdps: float
    run_s: float
    warmup_s: float

    def parties(self) -> list[tuple[str, int]]:
        """Kind of each party, and number of its servers or flows."""
        split = (party.rsplit("-", 1) for party in self.mix.split("+"))
        return [(kind, int(count)) for kind, count in split]

    def can_be(self, clock: str) -> bool:
        """Whether the mix can run under that clock: the emulation has no BBRv3."""
        return clock == "simulated" or all(kind != "bbr3" for kind, _ in self.parties())

    def queue_bytes(self) -> int:
        """Bytes of the queue: at least four packets."""
        return max(int(self.link_mbps * 1e6 / 8 * self.rtt_ms / 1e3 * self.queue_bdps), 4 * PACKET_BYTES)

    def topology(self) -> str:
        """Two switches with the shared link between them and the parties' hosts at both; a client
        precedes its servers in the list."""
        hosts = [("right", "asker"), ("left", "echo")]
        for number, (kind, count) in enumerate(self.parties()):
            hosts.append(("right", f"p{number}"))
            hosts += [("left", f"p{number}s{server}") for server in range(count if kind == "gather" else 1)]
        # The hosts' links are no bottleneck, and lose no packets.
        ends = [(switch, host, 4 * self.link_mbps, 1.0, 4_000_000) for switch, host in hosts]
        ends.append(("left", "right", self.link_mbps, self.rtt_ms / 2 - 2.0, self.queue_bytes()))
        cables = [
            (a, b, {"capacity": f"{rate} Mbit/s", "delay": f"{delay_ms * 1e3:.0f} us", "queue": f"{queue} B"})
            for a, b, rate, delay_ms, queue in ends
        ]
        return topology("shared", ["left", "right"], [host for _, host in hosts], cables)

    def object_bytes(self) -> int:
        """Bytes of the object: more than the link carries during the run."""
        return int(self.link_mbps * 1e6 / 8 * (self.run_s + 10.0) * 1.1)


CELL = [field.name for field in dataclasses.fields(Cell)]
#: A row is a party. The round trips are the interactive flow's, the same for all parties of a cell.
KEY = ["clock", *CELL, "trial"]
COLUMNS = [*KEY, "number", "party", "rate_mbps", "rtt_ms_p50", "rtt_ms_p99", "lateness_us_p99"]


def scenario(cell: Cell, network: Path) -> str:
    """Return the cell as a scenario of `anabranch simulate`: one workload for each pull and each
    flow, and one for the interactive flow."""
    work: list[Row] = []
    for number, (kind, count) in enumerate(cell.parties()):
        if kind == "gather":
            pull = {"kind": "gather", "client": f"p{number}", "servers": count, "rounds": 1}
            work.append(pull | {"block": f"{cell.object_bytes()} B", "symbol": f"{SYMBOL_BYTES} B", "knows_link": False})
        else:
            work += [{"kind": "long", "pairs": [[f"p{number}s0", f"p{number}"]], "control": SIMULATED[kind], "jitter": "500 ms"}] * count
    asked = {"kind": "udp", "pairs": [["echo", "asker"]], "rate": f"{ASKED_HZ * ASKED_BYTES * 8} bit/s", "packet": f"{ASKED_BYTES} B"}
    work.append(asked | {"random": True, "start": f"{cell.warmup_s} s"})
    return toml(
        {
            "duration": f"{cell.run_s} s",
            "warmup": f"{cell.warmup_s} s",
            # A jitter of one packet's time on the shared link prevents synchronised flows.
            "network": {"topology": str(network), "jitter": f"{PACKET_BYTES * 8 / cell.link_mbps:.0f} us"},
            # TCP as in Linux; see experiments/sim-vs-emu.
            "transport": {"control": "cubic", "rack": True, "quick_ack": 16},
            "workload": work,
        }
    )


def simulate(binary: Path, cell: Cell, trial: int) -> list[Row]:
    """Simulate one trial, and return its rows."""
    with tempfile.TemporaryDirectory(prefix="gather-fairness-") as name:
        folder = Path(name)
        (folder / "shared.toml").write_text(cell.topology())
        (folder / "cell.toml").write_text(scenario(cell, folder / "shared.toml"))
        said = json_lines([binary, "-q", "simulate", folder / "cell.toml", "--json", "--set", f"seed={trial + 1}"])
    asked = next(row for row in said if row["workload"] == "udp")
    # The delay to the echo is measured for all packets; the way back has no other traffic.
    rtt_ms = {column: round(asked[f"delay_us_{column[7:]}"] / 1e3 + cell.rtt_ms / 2, 3) for column in ("rtt_ms_p50", "rtt_ms_p99")}
    rates = iter(row["goodput_mbps"] for row in said if row["workload"] != "udp")
    rows: list[Row] = []
    for kind, count in cell.parties():
        for party in [f"gather-{count}"] if kind == "gather" else [kind] * count:
            data = SYMBOL_BYTES if kind == "gather" else SEGMENT_BYTES
            rows.append({"party": party, "rate_mbps": round(next(rates) * PACKET_BYTES / data, 3), **rtt_ms, "lateness_us_p99": ""})
    return rows


def received_bytes() -> int:
    """Bytes that this site's device has received, including IP headers."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    counts = (line.split(":", 1)[1].split() for line in lines[2:] if not line.strip().startswith("lo:"))
    return sum(int(count[0]) for count in counts)


def wait_until(at: float) -> None:
    """Sleeps until this time of the machine's monotonic clock."""
    time.sleep(max(at - time.monotonic(), 0.0))


def begin(task: Row) -> tuple[float, float, float]:
    """Wait for the start; return the times of the start, of the end of the warm-up and of the end."""
    go = Path(task["folder"]) / "go"
    for _ in range(60_000):
        if go.exists():
            began = float(go.read_text())
            wait_until(began)
            return began, began + task["warmup_s"], began + task["run_s"]
        time.sleep(0.002)
    raise Failed("the start was never said")


@LAB.inside
def source(task: Row) -> None:
    """Send without end on every accepted connection, with the task's congestion control."""
    listener = socket.create_server((os.environ["ANABRANCH_ADDRESS"], PORT))
    listener.setblocking(False)
    chosen = selectors.DefaultSelector()
    chosen.register(listener, selectors.EVENT_READ)
    block = bytes(1 << 16)
    while True:
        for key, _ in chosen.select():
            if key.fileobj is listener:
                flow, _ = listener.accept()
                flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, task["control"].encode())
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


@LAB.inside
def sink(task: Row) -> list[float]:
    """Receive the flows of a source, and return the rate of each in whole packets."""
    _, warm, end = begin(task)
    chosen = selectors.DefaultSelector()
    flows = range(task["count"])
    for number in flows:
        flow = socket.create_connection((task["words"][0], PORT), timeout=10)
        flow.setblocking(False)
        chosen.register(flow, selectors.EVENT_READ, number)
    counted, before = [0 for _ in flows], [0 for _ in flows]
    warm_at = None
    while (now := time.monotonic()) < end:
        if warm_at is None and now >= warm:
            warm_at, before = now, counted.copy()
        for key, _ in chosen.select(timeout=min(end, warm if warm_at is None else end) - now):
            counted[key.data] += len(key.fileobj.recv(1 << 20))
    assert warm_at is not None, "the warm-up ends before the rest"
    took = time.monotonic() - warm_at
    return [(after - first) * 8 / took / 1e6 * PACKET_BYTES / SEGMENT_BYTES for after, first in zip(counted, before, strict=True)]


@LAB.inside
def pull(task: Row) -> list[float]:
    """Pull by `gather get`, and return the rate of all packets that the site received."""
    _, warm, end = begin(task)
    get = subprocess.Popen(task["words"], stderr=subprocess.PIPE, text=True)
    wait_until(warm)
    warm_at, before = time.monotonic(), received_bytes()
    wait_until(end)
    took, bytes_ = time.monotonic() - warm_at, received_bytes() - before
    if get.poll() is not None:
        said = get.stderr.read() if get.stderr else ""
        raise Failed(f"`gather get` ended early, with {get.returncode}: {' '.join(said.split())}")
    get.terminate()
    get.wait()
    return [bytes_ * 8 / took / 1e6]


@LAB.inside
def echo(_: Row) -> None:
    """Send each datagram back."""
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind((os.environ["ANABRANCH_ADDRESS"], PORT))
    while True:
        data, to = own.recvfrom(2_048)
        own.sendto(data, to)


@LAB.inside
def ask(task: Row) -> dict[str, float]:
    """Give the start signal, send requests until the end, and wait for the results of the parties."""
    folder = Path(task["folder"])
    (folder / "go.new").write_text(repr(time.monotonic() + 0.5))
    (folder / "go.new").rename(folder / "go")
    _, warm, end = begin(task)
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.connect((os.environ["ANABRANCH_ADDRESS_ECHO"], PORT))
    own.setblocking(False)
    chosen = selectors.DefaultSelector()
    chosen.register(own, selectors.EVENT_READ)
    sent: dict[int, float] = {}
    times: list[float] = []
    next_at = warm
    # Answers that arrive within 2 s after the end still count.
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
        raise Failed(f"{len(times)} of {len(sent)} questions were answered: the path loses most of them")
    for _ in range(1_000):
        if all(Path(path).exists() for path in task["others"]):
            return {"rtt_ms_p50": quantile(times, 0.5) * 1e3, "rtt_ms_p99": quantile(times, 0.99) * 1e3}
        time.sleep(0.01)
    raise Failed("a party said nothing: its message is above")


def emulate(binary: Path, cell: Cell) -> list[Row]:
    """Emulate one trial, and return its rows."""
    with tempfile.TemporaryDirectory(prefix="gather-fairness-") as name:
        folder = Path(name)
        subprocess.run([binary, "-q", "gather", "keys", "--out", folder / "keys"], check=True)
        (folder / "served").mkdir()
        with (folder / "served" / "object").open("wb") as file:
            file.truncate(cell.object_bytes())
        times = {"run_s": cell.run_s, "warmup_s": cell.warmup_s}
        programs: list[tuple[str, object]] = [("echo", f"exec {LAB.task(echo, folder, **times)}")]
        parties = []
        for number, (kind, count) in enumerate(cell.parties()):
            site = f"p{number}"
            if kind == "gather":
                holders = ",".join(f"{{@{site}s{server}}}:{PORT}" for server in range(count))
                get = f"{binary} -q gather get {holders}/object -o {folder / site} --keys {folder / 'keys'} --no-sync"
                serve = f"exec {binary} -q gather serve {folder / 'served'} --keys {folder / 'keys'} --listen $ANABRANCH_ADDRESS:{PORT}"
                programs += [(f"{site}s{server}", serve) for server in range(count)]
                # `emulate` replaces names by addresses only in this line, so the command is in it.
                parties.append(LAB.task(pull, folder, site, **times))
                programs.append((site, f"exec {parties[-1]} {get}"))
            else:
                programs.append((f"{site}s0", f"exec {LAB.task(source, folder, f'{site}s0', control=kind)}"))
                parties.append(LAB.task(sink, folder, site, count=count, **times))
                programs.append((site, f"exec {parties[-1]} {{@{site}s0}}"))
        results = [party.result for party in parties]
        asker = LAB.task(ask, folder, others=results, **times)
        sites = cell.topology().count("[[site]]")
        options = ["--tcp-buffer", "16 MiB", "--duration", f"{cell.run_s + 60} s", "--settle", f"{1_000 + 200 * sites} ms"]

        def clear() -> None:
            for path in (folder / "go", *results, *(folder / f"p{number}" for number in range(len(parties)))):
                path.unlink(missing_ok=True)
            # A pull would resume from parts of the previous try.
            for part in folder.glob(".anabranch-*"):
                part.unlink()

        emulated = LAB.emulate(binary, folder, cell.topology(), asker, *options, site="asker", programs=programs, prepare=clear)
        figures = {column: round(value, 3) for column, value in emulated.result.items()}
        figures["lateness_us_p99"] = emulated.report["lateness_us_p99"]
        rows: list[Row] = []
        for (kind, count), party in zip(cell.parties(), parties, strict=True):
            name = f"gather-{count}" if kind == "gather" else kind
            rows += [{"party": name, "rate_mbps": round(rate, 3), **figures} for rate in party.read_result()]
        return rows


CELLS = {
    "rows": LAB.runs / "rows.csv",
    "binary": BINARY,
    "mix": repeatable(MIXES, "these parties alone; may be repeated"),
    "queue": Option(QUEUES, "products of rate and round trip"),
    "rate": Option(50.0, "Mbit/s of the shared link"),
    "rtt": Option(40.0, "ms"),
    "seconds": 60.0,
    "warmup": Option(10.0, "seconds of these that do not count"),
}


@LAB.verb("simulated", trials=5, **CELLS)
@LAB.verb("emulated", trials=1, **CELLS)
def all_cells(args) -> int:
    """Runs all cells of one clock that have no rows."""
    cells = []
    for at in product(trial=range(args.trials), queue=args.queue, mix=args.mix or MIXES):
        cell = Cell(at["mix"], args.rate, args.rtt, at["queue"], args.seconds, args.warmup)
        if cell.can_be(args.verb):
            cells.append({"clock": args.verb, **dataclasses.asdict(cell), "trial": at["trial"]})

    def run(row: Row) -> list[Row]:
        cell = Cell(**{column: row[column] for column in CELL})
        found = simulate(args.binary, cell, row["trial"]) if args.verb == "simulated" else emulate(args.binary, cell)
        return [{"number": number, **one} for number, one in enumerate(found)]

    def show(rows: list[Row]) -> str:
        first, rates = rows[0], " ".join(f"{row['party']}={row['rate_mbps']}" for row in rows)
        return f"{args.verb} {first['mix']} queue {first['queue_bdps']}: {rates} rtt {first['rtt_ms_p50']} {first['rtt_ms_p99']}"

    code = measure(Rows(args.rows, KEY, COLUMNS), cells, run, show=show)
    print(whole(summaries(args.rows)))
    return code


def jain(rates: list[float]) -> float:
    """Return Jain's index of n rates: 1 if all are equal, 1 / n if only one is not 0.

    >>> jain([1.0, 1.0]), jain([1.0, 0.0])
    (1.0, 0.5)
    """
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates)) if any(rates) else 1.0


def broken(parties: list[str], shares: list[float], least: float, apart: float) -> list[str]:
    """List the bounds that do not hold; `shares` are multiples of the fair rate, `least` is the
    least share, `apart` the ratio of two pulls' rates.

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

    Values that compare parties of a trial are computed for each trial first: two parties that take
    turns at the larger share have equal medians although they are unequal in every trial.

    Attributes
    ----------
    clock, mix, link_mbps, queue
        The settings of the cell.
    parties
        Names of the parties: a pull is one party, and so is each flow of TCP.
    rates, shares
        Rate of each party in Mbit/s, and as a multiple of the fair rate, which is the total rate
        over the number of parties.
    as_flows
        Share of each pull if each of its servers counts as a flow.
    least
        The least share of any party.
    apart, apart_most
        Ratio of the highest to the lowest rate, in the median and in the worst trial.
    whole_mbps, jain
        Total rate of all parties, and Jain's index of their rates.
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
        """List the bounds that do not hold."""
        return broken(self.parties, self.shares, self.least, self.apart) if len(self.rates) > 1 else []


def summaries(path: Path) -> list[Summary]:
    """Return summaries of all cells, in the order of clocks, queues and mixes."""
    found = []
    cells = grouped(read_csv(path), "clock", *CELL)
    for cell in sorted(cells, key=lambda cell: (cell[0], float(cell[4]), MIXES.index(cell[1]))):
        clock, mix, link, _, queue, *_ = cell
        trials = list(grouped(cells[cell], "trial").values())
        parties = [row["party"] for row in trials[0]]
        flows = [int(party[7:]) if party.startswith("gather") else 1 for party in parties]
        all_rates = [numbers(trial, "rate_mbps") for trial in trials]
        all_shares = [[rate * len(one) / max(sum(one), 1e-9) for rate in one] for one in all_rates]
        # Each value is the median over the trials; the parties' medians need not add up to the
        # total of any trial.
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


@LAB.verb("table", rows=LAB.runs / "rows.csv", brief=Option(False, "the README's tables"))
def show_table(args) -> None:
    """Prints a line for each cell, or with `--brief` the tables of the README."""
    found = summaries(args.rows)
    print(brief(found) if args.brief else whole(found))


def whole(all_cells: list[Summary]) -> str:
    """Return a table with a line for each cell."""
    lines = []
    for it in all_cells:
        told = [it.clock, it.mix, it.queue, ", ".join(f"{rate:.1f}" for rate in it.rates), f"{it.whole_mbps / it.link_mbps:.3f}"]
        told += [", ".join(f"{share:.2f}" for share in of) for of in (it.shares, it.as_flows)]
        lines.append([*told, f"{it.jain:.3f}", ", ".join(f"{ms:.0f}" for ms in it.rtt_ms), "; ".join(it.broken())])
    head = ["clock", "parties", "queue", "Mbit/s", "of the link", "of the fair share", "as flows", "Jain", "rtt ms p50, p99", "does not hold"]
    return table(head, lines, "llrlrllrll")


def brief(all_cells: list[Summary]) -> str:
    """Return the tables of the README.

    For each mix and queue the first party's share (as flows if a pull has several servers), the
    ratio of two equal parties' rates, and the interactive flow's round trip. Simulated and emulated
    values stand side by side; values of cells outside their bounds are bold.
    """
    cells = {(it.clock, it.mix, it.queue): it for it in all_cells}
    clocks = sorted({it.clock for it in all_cells}, reverse=True)
    queues = sorted({it.queue for it in all_cells})

    def marked(it: Summary, value: float) -> str:
        return f"**{value:.2f}**" if it.broken() else f"{value:.2f}"

    def share(it: Summary) -> str:
        return marked(it, it.shares[0]) + (f" ({it.as_flows[0]:.2f})" if it.as_flows and not it.mix.startswith("gather-1") else "")

    def apart(it: Summary) -> str:
        return f"{marked(it, it.apart)} ({it.apart_most:.2f})"

    def rtt(it: Summary) -> str:
        return f"{it.rtt_ms[0]:.0f}, {it.rtt_ms[1]:.0f}"

    alike = [mix for mix in MIXES if len(set(mix.split("+"))) < len(mix.split("+"))]
    tables = []
    for title, mixes, of in (
        ("first party's share", [mix for mix in MIXES if "+" in mix and mix not in alike], share),
        ("two alike, times apart, and in the worst trial", alike, apart),
        ("rtt ms p50, p99, beside one alone", [mix for mix in MIXES if "+" not in mix], rtt),
    ):
        lines = []
        for mix in mixes:
            those = [[cells.get((clock, mix, queue)) for clock in clocks] for queue in queues]
            lines.append([mix, *(" / ".join("-" if it is None else of(it) for it in pair) for pair in those)])
        tables.append(table([f"{title}: {' / '.join(clocks)}", *(f"queue {queue:g}" for queue in queues)], lines))
    return "\n\n".join(tables) + "\n"


@LAB.verb(binary=BINARY)
def smoke(args) -> None:
    """Simulates some seconds: each party gets a share, the total is at most the link's rate, and
    round trips are plausible."""
    for mix in ("gather-3+cubic-1", "gather-1+gather-1"):
        cell = Cell(mix, 10.0, 20.0, 2.0, 4.0, 1.0)
        rows = simulate(args.binary, cell, 0)
        rates = numbers(rows, "rate_mbps")
        rtt_ms = [rows[0][column] for column in ("rtt_ms_p50", "rtt_ms_p99")]
        print(f"{mix}: Mbit/s {rates}, round trips {rtt_ms} ms")
        assert len(rows) == 2 and all(rate > 0.1 for rate in rates), "a party got nothing"
        assert 0.7 * cell.link_mbps < sum(rates) < 1.02 * cell.link_mbps, "all together fill the link, and not more"
        # The queue holds two round trips; a value may be up to one bucket of the histogram too low.
        assert 20.0 <= rtt_ms[0] <= rtt_ms[1] <= 3.1 * cell.rtt_ms + 1.0, "a round trip is the path's and at most a full queue's"


if __name__ == "__main__":
    sys.exit(LAB.main())
