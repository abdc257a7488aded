"""Random kill schedules over real processes: brokers that share an etcd, networks' agents, players
and an operator.

``run.py all`` runs a schedule for each seed and writes a row for it; seeds that have a row are not
run again. ``run.py one`` runs one schedule, prints the faults and the problems, and keeps its logs
with ``--keep``. ``run.py table`` summarises the rows. ``run.py smoke`` runs a short schedule
and a test of the check itself; without etcd it says ``skipped: 1 (why)``. It needs the program
``etcd`` (Debian: etcd-server).

Read first: `draw`, which chooses the faults, and `check.py`, which checks the observations.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import heapq
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Option, Row, Rows, commit, measure, numbers, product
from anabranch_lab.programs import Failed, Skipped, operator_tls

from check import AGAIN_WITHIN_S, Answer, Kept, Life, Observed, Shown, Told, canonical, check_the_check, wrong

LAB = Experiment(__file__, __doc__)
BROKERS, AGENTS, CLUSTERS = 3, 4, 2
LEASE_S, EVERY_S, BIDS_WITHIN_S, TTL_S = 2, 1, 1, 2
#: Seconds in which faults begin, and mean seconds from one fault to the next.
FAULTS_S, GAP_S = 12.0, 1.8
#: The longest fault, and the longest wait for an answer in seconds: longer than a fault, so that a
#: stopped process still answers.
FAULT_S_MAX, ANSWER_WITHIN_S = 4.0, 8.0
#: Maximum time in seconds until all brokers have their first round.
BEGIN_WITHIN_S = 30.0
#: Intervals in seconds between a player's questions to a broker, and between the operator's looks.
QUESTION_EVERY_S, LOOK_EVERY_S = 0.06, 0.12
PREFIX = "/anabranch/broker/"
PLACES = [("berlin", "one"), ("berlin", "two"), ("lima", "one"), ("oslo", "two"), ("pune", "one")]
KINDS, DEEDS = ("broker", "agent", "etcd"), ("kill", "stop")
COLUMNS = [
    "commit", "seed", "etcd_members", *(f"{kind}_{deed}s" for kind in KINDS for deed in DEEDS),
    "leads", "rounds", "answers", "shown", "told", "again_s", "wrong", "first_wrong",
]  # fmt: skip


# Faults of a schedule.


@dataclasses.dataclass(frozen=True)
class Fault:
    """A process is killed and restarted later, or is stopped and continued later.

    Attributes
    ----------
    at_s, lasts_s
        Seconds from the first round to the fault, and its length in seconds.
    kind, whom
        Kind and numbers of the processes.
    of_leader
        Whether the fault hits the current leader instead, if etcd names it.
    does
        ``kill`` is SIGKILL, ``stop`` is SIGSTOP.
    aims_s
        If given, the fault waits until this many seconds after the leader decides the next round,
        while etcd stores it.
    """

    at_s: float
    kind: str
    whom: tuple[int, ...]
    of_leader: bool
    does: str
    lasts_s: float
    aims_s: float | None = None

    def __str__(self) -> str:
        whom = f"that leads, or {self.whom[0]}" if self.of_leader else ", ".join(map(str, self.whom))
        aims = f", {1e3 * self.aims_s:.0f} ms after the next round is decided" if self.aims_s is not None else ""
        return f"{self.at_s:6.2f} s  {self.does} {self.kind} {whom} for {self.lasts_s:.2f} s{aims}"


def draw(seed: int, faults_s: float = FAULTS_S) -> tuple[int, list[Fault]]:
    """Draw the number of etcd's members and the faults."""
    rng = random.Random(seed)
    members = rng.choice((1, 3))
    every = tuple(range(members))
    faults: list[Fault] = []
    at_s = rng.uniform(0.2, 1.2)
    while at_s < faults_s:
        aims_s = rng.uniform(-0.002, 0.008) if rng.random() < 0.7 else None
        if rng.random() < 0.15:
            # The leader has asked etcd to store a round, or to renew its lease, and gets no answer.
            # Then the leader itself is stopped, for longer than the lease.
            faults.append(Fault(at_s, "etcd", every, False, "stop", rng.uniform(0.2, 1.6), aims_s))
            later_s, lasts_s = rng.uniform(0.05, 1.2), rng.uniform(LEASE_S, FAULT_S_MAX)
            faults.append(Fault(at_s + later_s, "broker", (rng.randrange(BROKERS),), True, "stop", lasts_s))
        else:
            kind = rng.choices(KINDS, (5, 2, 3))[0]
            does = rng.choice(DEEDS)
            count = {"broker": BROKERS, "agent": AGENTS, "etcd": members}[kind]
            whom = every if kind == "etcd" and rng.random() < 0.5 else (rng.randrange(count),)
            lasts_s = rng.uniform(0.1, 1.5 if kind == "etcd" else 2.5)
            of_leader = kind == "broker" and rng.random() < 0.5
            if kind == "broker" and does == "stop" and rng.random() < 0.6:
                # The broker's lease runs out while the broker still acts as the leader.
                lasts_s = rng.uniform(LEASE_S, FAULT_S_MAX)
            faults.append(Fault(at_s, kind, whom, of_leader, does, lasts_s, aims_s if of_leader or kind == "etcd" else None))
        at_s += rng.expovariate(1 / GAP_S)
    return members, sorted((fault for fault in faults if fault.at_s < faults_s), key=lambda fault: fault.at_s)


def write_world(seed: int, folder: pathlib.Path) -> None:
    """Write the file of contracts and the networks' own files: prices and scores have all their
    digits, and capacities suffice for all clients."""
    rng = random.Random(f"world {seed}")
    contracts = []
    for agent in range(AGENTS):
        name = f"cdn-{agent}"
        contracts.append(f'[[network]]\nname = "{name}"\n')
        clusters, scores = [], ["location,isp,cluster,score"]
        for cluster in range(1, CLUSTERS + 1):
            contracts.append(f'[[network.cluster]]\nnumber = {cluster}\nhost = "{name}-{cluster}.example"\n')
            clusters.append(f'[[cluster]]\nnumber = {cluster}\ncost = {rng.uniform(1, 10)!r}\ncapacity = "100 Gbit/s"\n')
            scores += [f"{location},{isp},{cluster},{rng.uniform(5, 30)!r}" for location, isp in PLACES]
        (folder / f"{name}.toml").write_text("".join(clusters))
        (folder / f"{name}.csv").write_text("\n".join(scores) + "\n")
    (folder / "contracts.toml").write_text("".join(contracts))


# The processes.


class Ended(Exception):
    """This program is to end before its schedule does."""


class Ports:
    """Ports that the system does not assign by itself: below the range for outgoing connections."""

    def __init__(self) -> None:
        self.lock, self.range = threading.Lock(), pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
        self.high = int(self.range.read_text().split()[0]) if self.range.exists() else 32_768
        self.next = random.randrange(10_240, self.high)

    def take(self) -> int:
        """Return a free port that this program has not given out."""
        with self.lock:
            for _ in range(self.high):
                self.next = self.next + 1 if self.next + 1 < self.high else 10_240
                with socket.socket() as tried:
                    try:
                        tried.bind(("127.0.0.1", self.next))
                    except OSError:
                        continue
                    return self.next
        raise Failed("no port is free")


#: Set once this program is to end.
ENDING = threading.Event()
PORTS = Ports()


class Process:
    """A process that is killed and restarted with the same command; every life writes a separate
    log."""

    def __init__(self, kind: str, number: int, command: list[str], folder: pathlib.Path) -> None:
        self.kind, self.number, self.command, self.folder = kind, number, command, folder
        self.who = f"{kind} {number}"
        self.lives: list[Life] = []
        self.child: subprocess.Popen[bytes] | None = None
        self.is_stopped = False

    def log(self, life: int) -> pathlib.Path:
        """Path of a life's log."""
        return self.folder / f"{self.kind}-{self.number}.{life}.log"

    def start(self) -> None:
        """Start a new life of the process."""
        life = Life(self.who, len(self.lives) + 1, time.monotonic())
        environment = {**os.environ, "ANABRANCH_LOG": "error,anabranch=info"}
        with self.log(life.number).open("wb") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            # A separate session, so that Ctrl-C reaches only this program.
            self.child = subprocess.Popen(self.command, cwd=self.folder, env=environment, start_new_session=True, **streams)
        self.lives.append(life)

    def life(self) -> Life | None:
        """The current life; `None` while the process is stopped or has ended."""
        return self.lives[-1] if self.child is not None and not self.is_stopped else None

    def kill(self) -> None:
        """Kill the process by SIGKILL."""
        if self.child is not None:
            self.lives[-1].ended_at = time.monotonic()
            child, self.child = self.child, None
            child.kill()
            child.wait()
        self.is_stopped = False

    def stop(self) -> None:
        """Stop the process by SIGSTOP."""
        if self.child is not None and not self.is_stopped:
            self.lives[-1].stops.append([time.monotonic(), float("inf")])
            self.is_stopped = True
            self.child.send_signal(signal.SIGSTOP)

    def restore(self) -> None:
        """Start the process again, or continue it."""
        if self.child is None:
            self.start()
        elif self.is_stopped:
            self.child.send_signal(signal.SIGCONT)
            self.lives[-1].stops[-1][1] = time.monotonic()
            self.is_stopped = False

    def own_end(self) -> str | None:
        """Describe how the process ended by itself, if it did; from then on it counts as killed."""
        if self.child is None or self.child.poll() is None:
            return None
        last = self.log(self.lives[-1].number).read_text(errors="replace").splitlines()[-5:]
        said = f"{self.lives[-1]} ended by itself with {self.child.returncode}: {' | '.join(last)}"
        self.lives[-1].ended_at, self.child = time.monotonic(), None
        return said


def b64(text: str) -> str:
    """Encode a text in base64, as keys and values in etcd's JSON."""
    return base64.b64encode(text.encode()).decode()


class Store:
    """Client of etcd that asks its members in turn until one answers."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports

    def post(self, path: str, body: dict[str, Any], within_s: float) -> dict[str, Any]:
        """Send a request to the members in turn, and return the first answer.

        Raises
        ------
        OSError
            No member answers.
        """
        said: Exception = OSError("etcd has no members")
        for port in self.ports:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=within_s)
            try:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                response = connection.getresponse()
                text = response.read()
                if response.status == 200:
                    answer: dict[str, Any] = json.loads(text)
                    return answer
                said = OSError(f"etcd answers {response.status}: {text[:200]!r}")
            except (OSError, http.client.HTTPException) as error:
                said = OSError(f"etcd at port {port}: {error}")
            finally:
                connection.close()
        raise said

    def keys(self, revision: int, within_s: float = 5.0) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return the current revision, and all keys below the prefix at a revision (0: the current
        one), by their names without the prefix."""
        asked = {"key": b64(PREFIX), "range_end": b64(PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1)), "revision": str(revision)}
        answer = self.post("/v3/kv/range", asked, within_s)
        name = lambda kv: base64.b64decode(kv["key"]).decode().removeprefix(PREFIX)
        return int(answer["header"]["revision"]), {name(kv): kv for kv in answer.get("kvs", [])}

    def leader(self) -> str | None:
        """Return the address of the leading broker, if etcd answers quickly."""
        try:
            _, keys = self.keys(0, within_s=0.2)
        except OSError:
            return None
        found = keys.get("leader")
        return json.loads(base64.b64decode(found["value"]))["address"] if found else None

    def history(self) -> tuple[list[Kept], set[int]]:
        """Return every decision that was ever the last one, and the leads. Etcd keeps all revisions
        until it is told to compact them."""
        kept: list[Kept] = []
        leads = set()
        now, _ = self.keys(0)
        for revision in range(1, now + 1):
            _, keys = self.keys(revision)
            leader = int(keys["leader"]["create_revision"]) if "leader" in keys else None
            leads |= {leader} if leader is not None else set()
            if "last" not in keys:
                continue
            last = json.loads(base64.b64decode(keys["last"]["value"]))
            parts = [f"decision/{last['round']:020}-{last['epoch']:020}/{part:06}" for part in range(last["parts"])]
            decision = None
            with contextlib.suppress(KeyError, ValueError):
                decision = json.loads(b"".join(base64.b64decode(keys[part]["value"]) for part in parts))
            if int(keys["last"]["mod_revision"]) == revision:
                kept.append(Kept(revision, last["round"], last["epoch"], leader, decision))
            elif kept[-1].changed_at is None and canonical(decision) != kept[-1].text:
                kept[-1].changed_at = revision
        return kept, leads


# A schedule.

class Schedule:
    """The processes of a schedule, the threads that question them, and the observations."""

    def __init__(self, binary: pathlib.Path, members: int, folder: pathlib.Path) -> None:
        self.folder, self.over = folder, threading.Event()
        self.observed, self.done, self.troubles = Observed(), [], []
        self.latest: dict[str, dict[str, Any]] = {}
        self.counts = {(kind, deed): 0 for kind in KINDS for deed in DEEDS}
        take = PORTS.take
        clients, peers = [take() for _ in range(members)], [take() for _ in range(members)]
        self.store = Store(clients)
        url = lambda port: f"http://127.0.0.1:{port}"
        self.etcd = []
        for number in range(members):
            command = ["etcd", "--name", f"m{number}", "--data-dir", str(folder / f"etcd-{number}")]
            command += ["--initial-cluster", ",".join(f"m{member}={url(port)}" for member, port in enumerate(peers))]
            command += ["--listen-client-urls", url(clients[number]), "--advertise-client-urls", url(clients[number])]
            command += ["--listen-peer-urls", url(peers[number]), "--initial-advertise-peer-urls", url(peers[number])]
            self.etcd.append(Process("etcd", number, command, folder))
        self.listen, self.players = [take() for _ in range(BROKERS)], [take() for _ in range(BROKERS)]
        self.brokers = []
        for number, (listen, players) in enumerate(zip(self.listen, self.players)):
            command = [binary, "broker", "serve", "--listen", f"127.0.0.1:{listen}", "--players", f"127.0.0.1:{players}"]
            command += ["--etcd", ",".join(map(url, clients)), "--advertise", f"127.0.0.1:{listen}", "--lease", str(LEASE_S)]
            command += ["--every", str(EVERY_S), "--bids-within", str(BIDS_WITHIN_S), "--ttl", str(TTL_S)]
            self.brokers.append(Process("broker", number, command, folder))
        every = ",".join(f"127.0.0.1:{port}" for port in self.listen)
        self.agents = []
        for number in range(AGENTS):
            name = f"cdn-{number}"
            command = [binary, "broker", "cdn", "--name", name, "--broker", every, "--clusters", f"{name}.toml", "--scores", f"{name}.csv"]
            self.agents.append(Process("agent", number, command, folder))
        keys = [binary, "-q", "broker", "keys", "--networks", ",".join(f"cdn-{number}" for number in range(AGENTS)), "--operators", "operator"]
        made = subprocess.run(keys, cwd=folder, capture_output=True, text=True, check=False)
        if made.returncode:
            raise Failed(made.stderr.strip())
        self.tls = operator_tls(folder / "keys/broker")

    def processes(self) -> list[Process]:
        """All processes."""
        return [*self.etcd, *self.brokers, *self.agents]

    def group(self, kind: str) -> list[Process]:
        """All processes of a kind."""
        return {"etcd": self.etcd, "broker": self.brokers, "agent": self.agents}[kind]

    def wait(self, seconds: float) -> None:
        """Wait, then note the processes that have ended by themselves."""
        if ENDING.wait(max(seconds, 0.0)):
            raise Ended
        if self.troubles:
            raise self.troubles[0]
        self.observed.exits += [said for process in self.processes() if (said := process.own_end())]

    def sleep_until(self, at: float) -> None:
        """Wait until this time of the monotonic clock."""
        while (left_s := at - time.monotonic()) > 0:
            self.wait(min(left_s, 0.04))

    def within(self, seconds: float, holds: Callable[[], bool]) -> bool:
        """Wait until `holds()` is true, at most `seconds`; return whether it was."""
        until = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > until:
                return False
            self.wait(0.04)
        return True

    def watch(self, broker: Process, port: int, every_s: float, ask: Callable[[Life, http.client.HTTPConnection], bool], is_secret: bool) -> None:
        """Ask a broker repeatedly while it runs, over one connection as long as that lasts."""
        connection, of = None, None
        try:
            while not self.over.wait(every_s):
                life = broker.life()
                if life is None or life is not of:
                    if connection is not None:
                        connection.close()
                    connection, of = None, life
                if life is None:
                    continue
                if connection is None:
                    one = functools.partial(http.client.HTTPSConnection, context=self.tls) if is_secret else http.client.HTTPConnection
                    connection = one("127.0.0.1", port, timeout=ANSWER_WITHIN_S)
                if ask(life, connection):
                    life.ready_at.setdefault("operators" if is_secret else "players", time.monotonic())
                else:
                    connection.close()
                    connection = None
        except Exception as error:  # noqa: BLE001 - `wait` raises it in the schedule's thread
            self.troubles.append(error)

    def get(self, connection: http.client.HTTPConnection, path: str) -> tuple[bytes, str | None]:
        """Return the body of the response, or the problem that occurred."""
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            return b"", f"{type(error).__name__}: {error}"
        return body, None if response.status == 200 else f"status {response.status}: {body[:200].decode(errors='replace')}"

    def looker(self) -> Callable[[Life, http.client.HTTPConnection], bool]:
        """Return a function that asks a broker for its last decision, as an operator."""
        last: tuple[bytes, dict[str, Any] | None, str] = (b"", None, "")

        def look(life: Life, connection: http.client.HTTPConnection) -> bool:
            nonlocal last
            asked_at = time.monotonic()
            body, problem = self.get(connection, "/v1/decision")
            got_at = time.monotonic()
            if problem is None and body != last[0]:
                try:
                    decision = json.loads(body)
                    last = body, decision, canonical(decision)
                except ValueError as error:
                    problem = f"no decision: {error}"
            decision, text = last[1:] if problem is None else (None, "")
            self.observed.shown.append(Shown(life, asked_at, got_at, decision, problem, text))
            if decision is not None:
                self.latest[life.who] = decision
            return problem is None

        return look

    def player(self, seed: int) -> Callable[[Life, http.client.HTTPConnection], bool]:
        """Return a function that asks as a new random player on every call."""
        rng = random.Random(seed)

        def ask(life: Life, connection: http.client.HTTPConnection) -> bool:
            place = rng.choice(PLACES)
            query = urllib.parse.urlencode({"location": place[0], "isp": place[1], "viewer": f"{rng.getrandbits(64):x}"})
            asked_at = time.monotonic()
            body, problem = self.get(connection, f"/steering/hls?{query}")
            got_at = time.monotonic()
            ways = []
            if problem is None:
                try:
                    ways = json.loads(body)["PATHWAY-PRIORITY"]
                except (ValueError, KeyError, TypeError):
                    problem = f"no steering: {body[:200].decode(errors='replace')}"
            self.observed.answers.append(Answer(life, asked_at, got_at, place, ways, problem))
            return problem is None

        return ask

    def begin(self, threads: list[threading.Thread]) -> None:
        """Start all processes, and wait until each broker has its first round."""
        for process in self.etcd:
            process.start()

        def is_there() -> bool:
            try:
                return self.store.keys(0, within_s=1.0)[0] > 0
            except OSError:
                return False

        if not self.within(BEGIN_WITHIN_S, is_there):
            last = " | ".join(self.etcd[0].log(1).read_text(errors="replace").splitlines()[-5:])
            raise Failed(f"etcd does not begin within {BEGIN_WITHIN_S:.0f} s: {last}")
        for process in [*self.brokers, *self.agents]:
            process.start()
        for number, broker in enumerate(self.brokers):
            player = (broker, self.players[number], QUESTION_EVERY_S, self.player(number), False)
            operator = (broker, self.listen[number], LOOK_EVERY_S, self.looker(), True)
            threads += [threading.Thread(target=self.watch, args=of, daemon=True) for of in (player, operator)]
        for thread in threads:
            thread.start()
        if not self.within(BEGIN_WITHIN_S, lambda: all(self.latest.get(broker.who, {}).get("round") for broker in self.brokers)):
            self.observed.exits.append(f"no round at all brokers within {BEGIN_WITHIN_S:.0f} s of the start")

    def targets(self, fault: Fault) -> list[Process]:
        """Return the running processes that the fault hits."""
        group = self.group(fault.kind)
        whom = [group[number] for number in fault.whom]
        if fault.of_leader and (address := self.store.leader()):
            whom = [group[number] for number, port in enumerate(self.listen) if address == f"127.0.0.1:{port}"]
        return [process for process in whom if process.life() is not None]

    def note(self, began_at: float, what: str) -> None:
        """Append a line to the list of actions, with the time."""
        self.done.append(f"{time.monotonic() - began_at:6.2f} s  {what}")

    def aimed(self, aims_s: float) -> float:
        """Return the time of an aimed fault on the monotonic clock: now, if no round was decided
        recently."""
        decided_s = max((decision["accepted_unix_ms"] / 1e3 for decision in self.latest.values()), default=0.0)
        passed_s = time.time() - decided_s
        return time.monotonic() + (EVERY_S - passed_s % EVERY_S + aims_s if passed_s < 2 * EVERY_S else 0.0)

    def run_faults(self, faults: list[Fault], faults_s: float) -> None:
        """Carry out the faults, and restore all processes at the end."""
        began_at = time.monotonic()
        numbers = itertools.count()
        due: list[tuple[float, int, Callable[[], None]]] = []

        def later(at: float, deed: Callable[..., None], *args: Any) -> None:
            heapq.heappush(due, (at, next(numbers), functools.partial(deed, *args)))

        def befall(fault: Fault) -> None:
            later(time.monotonic() if fault.aims_s is None else self.aimed(fault.aims_s), fell, fault, self.targets(fault))

        def fell(fault: Fault, whom: list[Process]) -> None:
            for process in whom:
                if process.life() is not None:
                    (process.kill if fault.does == "kill" else process.stop)()
                    self.counts[fault.kind, fault.does] += 1
                    self.note(began_at, f"{fault.does} {process.who}")
                    later(time.monotonic() + fault.lasts_s, restore, process)

        def restore(process: Process) -> None:
            process.restore()
            self.note(began_at, f"{process.who} runs again")

        for fault in faults:
            later(began_at + fault.at_s, befall, fault)
        while due and due[0][0] < began_at + faults_s:
            at, _, deed = heapq.heappop(due)
            self.sleep_until(at)
            deed()
        self.sleep_until(began_at + faults_s)
        for process in self.processes():
            if process.life() is None:
                restore(process)

    def await_again(self, within_s: float) -> None:
        """Wait until each broker shows a round that was decided after all faults."""
        restored_at, restored_unix_ms = time.monotonic(), 1e3 * time.time()
        again_s: dict[str, float | None] = {broker.who: None for broker in self.brokers}

        def are_there() -> bool:
            for who in again_s:
                if again_s[who] is None and self.latest.get(who, {}).get("accepted_unix_ms", 0) > restored_unix_ms:
                    again_s[who] = time.monotonic() - restored_at
            return None not in again_s.values()

        self.within(within_s, are_there)
        self.observed.again_s, self.observed.again_within_s = again_s, within_s

    def read_logs(self) -> None:
        """Collect the decisions that agents and brokers logged."""
        line = re.compile(r" INFO round (\d+): (\d+) clients(?:, (\d[^,]*it/s)| placed, .*)$")
        for process in [*self.agents, *self.brokers]:
            network = f"cdn-{process.number}" if process.kind == "agent" else None
            for life in process.lives:
                for text in process.log(life.number).read_text(errors="replace").splitlines():
                    if found := line.search(text):
                        self.observed.told.append(Told(life, network, int(found[1]), int(found[2]), found[3]))

    def run(self, faults: list[Fault], faults_s: float, again_within_s: float) -> tuple[list[Kept], set[int]]:
        """Run the whole schedule. Etcd's history is read last, so that it contains every shown
        decision."""
        threads: list[threading.Thread] = []
        try:
            self.begin(threads)
            self.run_faults(faults, faults_s)
            self.await_again(again_within_s)
            self.wait(0.0)
            self.over.set()
            for thread in threads:
                thread.join(2 * ANSWER_WITHIN_S)
            self.observed.ended_at = time.monotonic()
            for process in [*self.agents, *self.brokers]:
                process.kill()
            self.observed.lives = [life for process in self.processes() for life in process.lives]
            self.read_logs()
            return self.store.history()
        finally:
            self.over.set()
            for process in self.processes():
                process.kill()


def run_schedule(
    binary: pathlib.Path,
    seed: int,
    members: int,
    faults: list[Fault],
    faults_s: float = FAULTS_S,
    again_within_s: float = AGAIN_WITHIN_S,
    keep: pathlib.Path | None = None,
    keep_wrong: pathlib.Path | None = None,
) -> tuple[Row, Schedule, list[str]]:
    """Run one schedule; return its row and all problems. Logs go to `keep`, or to `keep_wrong` if
    there are problems."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="broker-schedules-"))
    try:
        write_world(seed, folder)
        schedule = Schedule(binary, members, folder)
        try:
            kept, leads = schedule.run(faults, faults_s, again_within_s)
        except OSError as error:
            raise Failed(str(error)) from error
        observed = schedule.observed
        said = wrong(observed, kept)
        again_s = list(observed.again_s.values())
        row = {
            "commit": commit(),
            "seed": seed,
            "etcd_members": members,
            **{f"{kind}_{deed}s": count for (kind, deed), count in schedule.counts.items()},
            "leads": len(leads),
            "rounds": len(kept),
            "answers": sum(1 for one in observed.answers if one.ways),
            "shown": len({(id(one.life), one.text) for one in observed.shown if one.round}),
            "told": len(observed.told),
            "again_s": "" if None in again_s or not again_s else f"{max(filter(None, again_s)):.2f}",
            "wrong": len(said),
            "first_wrong": said[0] if said else "",
        }
        keep = keep or (keep_wrong if said else None)
        if keep is not None:
            notes = {"faults": list(map(str, faults)), "done": schedule.done, "wrong": said, "kept": list(map(dataclasses.asdict, kept))}
            keep_logs(folder, keep, notes)
        return row, schedule, said
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep_logs(folder: pathlib.Path, into: pathlib.Path, notes: dict[str, Any]) -> None:
    """Copy the logs, and write the actions and etcd's history."""
    into.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, into)
    (into / "notes.json").write_text(json.dumps(notes, indent=1))


# The verbs.


def sentence(row: Row) -> str:
    """Return a row as a sentence."""
    seen = f"{row['rounds']} rounds, {row['leads']} leads, {row['answers']} answers, a new round after {row['again_s'] or '-'} s"
    return f"{seen}, {row['wrong']} wrong{row['first_wrong'] and ': '}{row['first_wrong']}"


def rows_in(path: pathlib.Path) -> Rows:
    """Open the file of rows of schedules."""
    return Rows(path, ["seed"], COLUMNS)


def require_etcd(missing: type[Exception] = Failed) -> None:
    """Raise `missing` if this machine has no etcd."""
    if shutil.which("etcd") is None:
        raise missing("several brokers share an etcd, and this machine has none (Debian: etcd-server)")


ROWS = LAB.runs / "schedules.csv"


@LAB.verb(
    "all",
    binary=BINARY,
    rows=ROWS,
    seeds=Option([1, 200], "the first, and how many"),
    jobs=Option(2, "schedules at once: most of one is waiting"),
)
def all_seeds(args) -> int:
    """Runs each seed that has no row."""
    require_etcd()

    def run(cell: Row) -> Row:
        keep_wrong = args.rows.parent / f"seed-{cell['seed']}"
        return run_schedule(args.binary, cell["seed"], *draw(cell["seed"]), keep_wrong=keep_wrong)[0]

    rows, (first, count) = rows_in(args.rows), args.seeds
    try:
        code = measure(rows, product(seed=range(first, first + count)), run, args.jobs, lambda of: f"seed {of[0]['seed']}: {sentence(of[0])}")
    except BaseException:
        ENDING.set()
        raise
    show_sums(args)
    return 1 if code or sum(numbers(rows.read(), "wrong")) else 0


@LAB.verb("table", rows=ROWS)
def show_sums(args) -> None:
    """Prints sums of all rows."""
    rows = rows_in(args.rows).read()
    if not rows:
        print("no rows")
        return
    total = lambda column: int(sum(numbers(rows, column)))
    print(f"{len(rows)} schedules, {sum(1 for row in rows if row['etcd_members'] == '3')} of them with three members of etcd")
    for kind in KINDS:
        print(f"{kind}: {total(f'{kind}_kills')} killed, {total(f'{kind}_stops')} stopped")
    counts = [f"{total(column):,} {name}" for column, name in (("rounds", "rounds kept"), ("leads", "leads"), ("answers", "players' answers"))]
    print(", ".join([*counts, f"{total('shown'):,} decisions shown", f"{total('told'):,} lines of logs"]))
    if again_s := numbers(rows, "again_s"):
        print(f"a new round everywhere after {statistics.median(again_s):.1f} s in the middle, {max(again_s):.1f} s at the most")
    print(f"{total('wrong')} wrong, in {sum(1 for row in rows if int(row['wrong']))} schedules")


@LAB.verb("one", binary=BINARY, seed=Option(1), keep=Option(False, "keep logs, and say where they are"))
def one_seed(args) -> int:
    """Runs one schedule; prints its faults, its row and its problems."""
    require_etcd()
    members, faults = draw(args.seed)
    print(f"seed {args.seed}: etcd has {members} member{'s' if members > 1 else ''}; drawn:")
    print("\n".join(f"  {fault}" for fault in faults))
    keep = pathlib.Path(tempfile.mkdtemp(prefix=f"broker-schedule-{args.seed}-")) if args.keep else None
    row, schedule, said = run_schedule(args.binary, args.seed, members, faults, keep=keep)
    print("done:")
    print("\n".join(f"  {line}" for line in schedule.done))
    print(json.dumps(row))
    print("\n".join(f"wrong: {line}" for line in said) or "nothing is wrong")
    if keep is not None:
        print(f"logs and notes: {keep}")
    return 1 if said else 0


@LAB.verb(binary=BINARY)
def smoke(args) -> int:
    """Tests the check itself, and runs a short schedule."""
    check_the_check()
    assert draw(3) == draw(3) and draw(3) != draw(4), "a seed is a schedule"
    require_etcd(Skipped)
    faults = [
        Fault(0.2, "agent", (1,), False, "kill", 1.0),
        Fault(0.3, "broker", (0,), True, "stop", LEASE_S + 0.8),
        Fault(0.6, "etcd", (0,), False, "stop", 0.2),
        Fault(3.3, "broker", (1,), False, "kill", 0.3),
    ]
    row, schedule, said = run_schedule(args.binary, 1, 1, faults, 4.0, 3 * AGAIN_WITHIN_S)
    print("\n".join(schedule.done))
    for line in said:
        print(f"wrong: {line}")
    assert set(row) == set(COLUMNS), "a row has every column"
    print(f"broker-schedules: {sentence(row)}")
    return 1 if said else 0


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        # A process that ignores hangups continues to do so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    sys.exit(LAB.main())
