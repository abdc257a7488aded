"""Random kill schedules over real processes: brokers that share an etcd, networks' agents, players that ask, and an operator that looks.

``run.py all`` runs a schedule for each seed and writes a row for it; seeds that are in the file are not run again. ``run.py one`` runs one, says
what was done and what was wrong, and keeps its logs with ``--keep``. ``run.py table`` sums rows up. ``run.py smoke`` is a short schedule and a test
of the check itself; where there is no etcd it says ``skipped: 1 (why)``. Standard library only, and the program ``etcd`` (Debian: etcd-server).

Read first: `draw`, which says what happens; `Observed` and `Kept`, what is noted; `wrong`, what must hold.
"""

from __future__ import annotations

import argparse
import base64
import bisect
import concurrent.futures
import contextlib
import csv
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
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
Row = dict[str, Any]

BROKERS, AGENTS, CLUSTERS = 3, 4, 2
LEASE_S, EVERY_S, BIDS_WITHIN_S, TTL_S = 2, 1, 1, 2
#: For how long faults are drawn, and how long after one the next comes in the mean.
FAULTS_S, GAP_S = 12.0, 1.8
#: The longest fault, and how long an answer may take: longer than that, so that a process that was stopped still answers.
FAULT_S_MAX, ANSWER_WITHIN_S = 4.0, 8.0
#: How long a broker may take from its start to its first answer; all brokers to their first round; and to a new one after all faults.
READY_WITHIN_S, BEGIN_WITHIN_S, AGAIN_WITHIN_S = 10.0, 30.0, 20.0
#: How often a broker is asked by a player, and looked at by the operator.
QUESTION_EVERY_S, LOOK_EVERY_S = 0.06, 0.12
PREFIX = "/anabranch/broker/"
PLACES = [("berlin", "one"), ("berlin", "two"), ("lima", "one"), ("oslo", "two"), ("pune", "one")]
KINDS, DEEDS = ("broker", "agent", "etcd"), ("kill", "stop")
COLUMNS = [
    "commit", "seed", "etcd_members", *(f"{kind}_{deed}s" for kind in KINDS for deed in DEEDS),
    "leads", "rounds", "answers", "shown", "told", "again_s", "wrong", "first_wrong",
]  # fmt: skip


# What happens.


@dataclasses.dataclass(frozen=True)
class Fault:
    """A process is killed and begins again later, or is stopped and goes on later.

    Attributes
    ----------
    at_s, lasts_s
        When, from the first round on; and for how long.
    kind, whom
        Which processes, by number.
    of_leader
        The broker that leads then, if etcd says which one does.
    does
        ``kill`` is SIGKILL, ``stop`` is SIGSTOP.
    aims_s
        Not at once, but so long after the leader will have decided the next round, which it then has etcd keep.
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
    """How many members etcd has, and what happens."""
    rng = random.Random(seed)
    members = rng.choice((1, 3))
    every = tuple(range(members))
    faults: list[Fault] = []
    at_s = rng.uniform(0.2, 1.2)
    while at_s < faults_s:
        aims_s = rng.uniform(-0.002, 0.008) if rng.random() < 0.7 else None
        if rng.random() < 0.15:
            # The leader has asked etcd to keep a round, or to renew its lease, and hears nothing. Then it stops itself, for longer than the lease.
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
                # Its lease runs out while it believes that it leads.
                lasts_s = rng.uniform(LEASE_S, FAULT_S_MAX)
            faults.append(Fault(at_s, kind, whom, of_leader, does, lasts_s, aims_s if of_leader or kind == "etcd" else None))
        at_s += rng.expovariate(1 / GAP_S)
    return members, sorted((fault for fault in faults if fault.at_s < faults_s), key=lambda fault: fault.at_s)


def write_world(seed: int, folder: pathlib.Path) -> None:
    """The file of contracts and the networks' own files: prices and scores have all their digits, and there is room for everybody."""
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


# What is noted.


@dataclasses.dataclass
class Kept:
    """A decision as etcd kept it.

    Attributes
    ----------
    revision
        Of etcd, when `last` named this decision.
    round, epoch
        As `last` has them.
    lead
        The revision at which `leader` was made that was there then; none if nobody led.
    decision
        All of its parts; none if they were not there, or were no JSON.
    changed_at
        A later revision at which it was the last decision still, and had other contents.
    """

    revision: int
    round: int
    epoch: int
    lead: int | None
    decision: dict[str, Any] | None
    changed_at: int | None = None

    @functools.cached_property
    def text(self) -> str:
        """As text in which the same decision is the same."""
        return canonical(self.decision)


@dataclasses.dataclass
class Life:
    """A process from its start to its end. Times are of the monotonic clock.

    Attributes
    ----------
    who, number
        Which process, as `broker 2`, and which of its lives.
    began_at, ended_at
        When it was started, and just before it was killed.
    stops
        From just before it was stopped until just after it was told to go on.
    ready_at
        By port, when it first answered.
    """

    who: str
    number: int
    began_at: float
    ended_at: float | None = None
    stops: list[list[float]] = dataclasses.field(default_factory=list)
    ready_at: dict[str, float] = dataclasses.field(default_factory=dict)

    def ran(self, port: str, since: float, until: float) -> bool:
        """Whether it ran all that time, and had answered on that port before."""
        if self.ready_at.get(port, float("inf")) > since or (self.ended_at is not None and self.ended_at <= until):
            return False
        return all(until < begins or since > ends for begins, ends in self.stops)

    def __str__(self) -> str:
        return f"{self.who} (life {self.number})"


@dataclasses.dataclass
class Shown:
    """What a broker showed an operator: a decision, or else what was wrong."""

    life: Life
    asked_at: float
    got_at: float
    decision: dict[str, Any] | None
    problem: str | None = None
    text: str = ""

    @property
    def round(self) -> int:
        """0 before there was one."""
        return self.decision["round"] if self.decision else 0


@dataclasses.dataclass
class Answer:
    """What a broker answered a player: ways, the best first; or else what was wrong."""

    life: Life
    asked_at: float
    got_at: float
    place: tuple[str, str]
    ways: list[str]
    problem: str | None = None


@dataclasses.dataclass
class Told:
    """A line of a log: `clients` of this round, for a network at so many bit/s together, or for all at any rate."""

    life: Life
    network: str | None
    round: int
    clients: int
    rate: str | None


@dataclasses.dataclass
class Observed:
    """All that was seen of brokers and agents.

    Attributes
    ----------
    ended_at
        When nothing was asked any more.
    exits
        What ended though nobody had killed it.
    again_s
        How long after all faults each broker first showed a new round; none if it did not in time.
    """

    lives: list[Life] = dataclasses.field(default_factory=list)
    shown: list[Shown] = dataclasses.field(default_factory=list)
    answers: list[Answer] = dataclasses.field(default_factory=list)
    told: list[Told] = dataclasses.field(default_factory=list)
    exits: list[str] = dataclasses.field(default_factory=list)
    again_s: dict[str, float | None] = dataclasses.field(default_factory=dict)
    again_within_s: float = AGAIN_WITHIN_S
    ended_at: float = 0.0


# What must hold.


def canonical(value: Any) -> str:
    """JSON in which equal values are equal texts, and 1 is not 1.0."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def difference(one: Any, other: Any, at: str = "") -> str:
    """Where two JSON values differ first."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs: Iterable[tuple[Any, Any, str]] = ((one[key], other[key], f"{at}.{key}") for key in one)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = ((a, b, f"{at}[{number}]") for number, (a, b) in enumerate(zip(one, other)))
    else:
        return f"{at.lstrip('.')} is {one!r} and not {other!r}"[:300]
    for a, b, place in pairs:
        if canonical(a) != canonical(b):
            return difference(a, b, place)
    return ""


def given(decision: dict[str, Any], network: str | None = None) -> tuple[int, int]:
    """How many clients a decision gives a network, and how many bit/s together; or all that it has, placed or not."""
    placed = decision["placed"]
    if network is not None:
        placed = [of for of in placed if of["to"] is not None and decision["networks"][of["to"][0]] == network]
    return sum(of["sessions"] for of in placed), sum(of["sessions"] * of["bitrate_bps"] for of in placed)


def ways_of(decision: dict[str, Any], place: tuple[str, str]) -> set[str]:
    """The ways by which a decision has the clients of a place served; of a place that it does not have, all its ways."""
    ways: dict[tuple[str, str] | None, set[str]] = {}
    for of in decision["placed"]:
        if of["to"] is not None:
            way = f"{decision['networks'][of['to'][0]]}.{of['to'][1]}"
            ways.setdefault(tuple(decision["places"][of["place"]]), set()).add(way)
            ways.setdefault(None, set()).add(way)
    return ways.get(place) or ways.get(None, set())


def is_rate(text: str, bps: int) -> bool:
    """Whether a rate as the programs print it, with three decimals, is this one."""
    number, unit = text.split()
    factor = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}[unit]
    return abs(float(number) * factor - bps) <= 0.000_501 * factor


def wrong_kept(kept: list[Kept]) -> list[str]:
    """What is wrong with etcd's own history."""
    said = []
    for before, after in zip(kept, kept[1:]):
        if after.round <= before.round:
            said.append(f"etcd kept round {after.round} (revision {after.revision}) after round {before.round} (revision {before.revision})")
    for one in kept:
        name = f"round {one.round}, kept at revision {one.revision}"
        if one.lead != one.epoch:
            said.append(f"{name}: was decided in lead {one.epoch}, and the lead was {one.lead} then")
        if one.decision is None:
            said.append(f"{name}: its parts were not there")
            continue
        if one.decision["round"] != one.round:
            said.append(f"{name}: its contents are of round {one.decision['round']}")
        if one.changed_at is not None:
            said.append(f"{name}: had other contents at revision {one.changed_at}, when it was still the last")
        unplaced = sum(of["sessions"] for of in one.decision["placed"] if of["to"] is None)
        if unplaced or not one.decision["placed"]:
            said.append(f"{name}: {unplaced} clients have no place, of {given(one.decision)[0]}")
    return said


def wrong_shown(shown: list[Shown], kept: dict[int, Kept]) -> list[str]:
    """What brokers showed and etcd did not keep so, and rounds that fell."""
    said: dict[tuple[str, int, str], str] = {}
    for life, ones in grouped([one for one in shown if not one.problem]):
        last = 0
        for one in ones:
            if one.round < last:
                said.setdefault((str(life), one.round, "fell"), f"{life} showed round {one.round} after round {last}")
            last = max(last, one.round)
            if not one.round:
                continue
            truth = kept.get(one.round)
            if truth is None:
                said.setdefault((str(life), one.round, ""), f"{life} showed round {one.round}, which etcd never kept")
            elif one.text != truth.text:
                where = difference(one.decision, truth.decision)
                said.setdefault((str(life), one.round, ""), f"{life} showed round {one.round} otherwise than etcd kept it: {where}")
        # What was shown anywhere before this life began was kept by then, and etcd's answers are never old.
        first = next((one for one in ones if one.round), None)
        known = max((one.round for one in shown if one.got_at < life.began_at), default=0)
        if first is not None and first.round < known:
            said[str(life), first.round, "old"] = f"{life} began with round {first.round}, though round {known} was kept before it was started"
    return list(said.values())


def wrong_answers(observed: Observed, kept: dict[int, Kept]) -> list[str]:
    """Questions that a running broker did not answer, or by no decision that it may have known."""
    said = []
    for one in observed.shown:
        if one.problem and one.life.ran("operators", one.asked_at, one.got_at):
            said.append(f"{one.life} did not answer the operator after {one.got_at - one.asked_at:.1f} s: {one.problem}")
    shown = {id(life): ones for life, ones in grouped([one for one in observed.shown if not one.problem])}
    rounds = sorted(kept)
    for life, answers in grouped(observed.answers):
        looks = shown.get(id(life), [])
        asked, got = [one.asked_at for one in looks], [one.got_at for one in looks]
        for one in answers:
            place = "/".join(one.place)
            if one.problem or not one.ways:
                if life.ran("players", one.asked_at, one.got_at):
                    said.append(f"{life} told a player in {place} no way after {one.got_at - one.asked_at:.1f} s: {one.problem or 'an empty list'}")
                continue
            # Between the last look that was over, and the second that began later: a broker tells players first.
            before = bisect.bisect_right(got, one.asked_at) - 1
            after = bisect.bisect_left(asked, one.got_at) + 1
            low = looks[before].round if before >= 0 else 0
            high = looks[after].round if after < len(looks) and looks[after].round else rounds[-1] if rounds else 0
            if not low:
                continue
            between = rounds[bisect.bisect_left(rounds, low) : bisect.bisect_right(rounds, high)]
            decisions = [decision for number in between if (decision := kept[number].decision)]
            if decisions and not any(one.ways[0] in ways_of(decision, one.place) for decision in decisions):
                said.append(f"{life} sent a player in {place} by {one.ways[0]}, as no decision says from round {low} to {high}")
    return said


def wrong_told(told: list[Told], kept: dict[int, Kept]) -> list[str]:
    """Lines in logs of agents and brokers that etcd's history does not bear out."""
    said = []
    for life, ones in grouped(told):
        last = 0
        for one in ones:
            truth = kept.get(one.round)
            if truth is None or truth.decision is None:
                said.append(f"{life} was told of round {one.round}, which etcd never kept")
                continue
            clients, bps = given(truth.decision, one.network)
            if one.clients != clients or (one.rate is not None and not is_rate(one.rate, bps)):
                rate = f", {one.rate}" if one.rate else ""
                said.append(f"{life} was told of {one.clients} clients{rate} in round {one.round}, where etcd kept {clients}, {bps} bit/s")
            if one.network is None and one.round <= last:
                said.append(f"{life} took round {one.round} after round {last}")
            last = one.round
    return said


def wrong_lives(observed: Observed) -> list[str]:
    """Brokers that did not come back, and processes that ended by themselves."""
    said = list(observed.exits)
    for life in observed.lives:
        until = min([life.ended_at or observed.ended_at, *(begins for begins, _ in life.stops)])
        for port in ("players", "operators") if life.who.startswith("broker") else ():
            if life.ready_at.get(port, float("inf")) > life.began_at + READY_WITHIN_S < until:
                said.append(f"{life} did not answer {port} within {READY_WITHIN_S:.0f} s of its start")
    late = [who for who, again_s in observed.again_s.items() if again_s is None]
    if late:
        said.append(f"{', '.join(late)}: no new round within {observed.again_within_s:.0f} s after all faults were over")
    return said


def grouped(ones: list[Any]) -> list[tuple[Life, list[Any]]]:
    """By life, in the order in which they are."""
    lives: dict[int, tuple[Life, list[Any]]] = {}
    for one in ones:
        lives.setdefault(id(one.life), (one.life, []))[1].append(one)
    return list(lives.values())


def wrong(observed: Observed, kept: list[Kept]) -> list[str]:
    """All that does not hold: what was observed, beside every version that etcd kept. A line each."""
    by_round = {one.round: one for one in kept}
    said = wrong_kept(kept) + wrong_shown(observed.shown, by_round) + wrong_answers(observed, by_round)
    return said + wrong_told(observed.told, by_round) + wrong_lives(observed)


# The processes.


class Trouble(Exception):
    """This machine could not run the schedule, which therefore says nothing."""


class Ended(Exception):
    """Someone has asked for the end."""


class Ports:
    """Ports that nothing takes by itself: below those that the system gives to who connects."""

    def __init__(self) -> None:
        self.lock, self.range = threading.Lock(), pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
        self.high = int(self.range.read_text().split()[0]) if self.range.exists() else 32_768
        self.next = random.randrange(10_240, self.high)

    def take(self) -> int:
        """One that is free, and that this program has not given out."""
        with self.lock:
            for _ in range(self.high):
                self.next = self.next + 1 if self.next + 1 < self.high else 10_240
                with socket.socket() as tried:
                    try:
                        tried.bind(("127.0.0.1", self.next))
                    except OSError:
                        continue
                    return self.next
        raise Trouble("no port is free")


class Process:
    """One that is killed and begins again, with the same command; each life has a log of its own."""

    def __init__(self, kind: str, number: int, command: list[str], folder: pathlib.Path) -> None:
        self.kind, self.number, self.command, self.folder = kind, number, command, folder
        self.who = f"{kind} {number}"
        self.lives: list[Life] = []
        self.child: subprocess.Popen[bytes] | None = None
        self.is_stopped = False

    def log(self, life: int) -> pathlib.Path:
        """Where a life's lines are."""
        return self.folder / f"{self.kind}-{self.number}.{life}.log"

    def start(self) -> None:
        """Begins a life."""
        life = Life(self.who, len(self.lives) + 1, time.monotonic())
        environment = {**os.environ, "ANABRANCH_LOG": "error,anabranch=info"}
        with self.log(life.number).open("wb") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            # In a session of its own, so that Ctrl-C is this program's alone.
            self.child = subprocess.Popen(self.command, cwd=self.folder, env=environment, start_new_session=True, **streams)
        self.lives.append(life)

    def life(self) -> Life | None:
        """The present one, of a process that runs."""
        return self.lives[-1] if self.child is not None and not self.is_stopped else None

    def kill(self) -> None:
        """SIGKILL."""
        if self.child is not None:
            self.lives[-1].ended_at = time.monotonic()
            child, self.child = self.child, None
            child.kill()
            child.wait()
        self.is_stopped = False

    def stop(self) -> None:
        """SIGSTOP."""
        if self.child is not None and not self.is_stopped:
            self.lives[-1].stops.append([time.monotonic(), float("inf")])
            self.is_stopped = True
            self.child.send_signal(signal.SIGSTOP)

    def restore(self) -> None:
        """It runs again."""
        if self.child is None:
            self.start()
        elif self.is_stopped:
            self.child.send_signal(signal.SIGCONT)
            self.lives[-1].stops[-1][1] = time.monotonic()
            self.is_stopped = False

    def own_end(self) -> str | None:
        """How it ended by itself, if it did; it counts as killed from then on."""
        if self.child is None or self.child.poll() is None:
            return None
        last = self.log(self.lives[-1].number).read_text(errors="replace").splitlines()[-5:]
        said = f"{self.lives[-1]} ended by itself with {self.child.returncode}: {' | '.join(last)}"
        self.lives[-1].ended_at, self.child = time.monotonic(), None
        return said


def b64(text: str) -> str:
    """As etcd has keys and values in JSON."""
    return base64.b64encode(text.encode()).decode()


class Store:
    """What etcd says, by whichever member answers."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports

    def post(self, path: str, body: dict[str, Any], within_s: float) -> dict[str, Any]:
        """An answer.

        Raises
        ------
        OSError
            If no member answers.
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
        """All keys below the prefix as they were at a revision, 0 for now, by the rest of their names; and the revision that is now."""
        asked = {"key": b64(PREFIX), "range_end": b64(PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1)), "revision": str(revision)}
        answer = self.post("/v3/kv/range", asked, within_s)
        name = lambda kv: base64.b64decode(kv["key"]).decode().removeprefix(PREFIX)
        return int(answer["header"]["revision"]), {name(kv): kv for kv in answer.get("kvs", [])}

    def leader(self) -> str | None:
        """Where the broker listens that leads, if etcd says so at once."""
        try:
            _, keys = self.keys(0, within_s=0.2)
        except OSError:
            return None
        found = keys.get("leader")
        return json.loads(base64.b64decode(found["value"]))["address"] if found else None

    def history(self) -> tuple[list[Kept], set[int]]:
        """Every decision that was ever the last, and the leads: etcd keeps all revisions until it is told not to."""
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
    """The processes of a schedule, who watches them, and what was seen."""

    def __init__(self, args: argparse.Namespace, members: int, folder: pathlib.Path, ending: threading.Event) -> None:
        self.folder, self.ending, self.over = folder, ending, threading.Event()
        self.observed, self.done, self.troubles = Observed(), [], []
        self.latest: dict[str, dict[str, Any]] = {}
        self.counts = {(kind, deed): 0 for kind in KINDS for deed in DEEDS}
        take = args.ports.take
        clients, peers = [take() for _ in range(members)], [take() for _ in range(members)]
        self.store = Store(clients)
        url = lambda port: f"http://127.0.0.1:{port}"
        self.etcd = []
        for number in range(members):
            command = [args.etcd, "--name", f"m{number}", "--data-dir", str(folder / f"etcd-{number}")]
            command += ["--initial-cluster", ",".join(f"m{member}={url(port)}" for member, port in enumerate(peers))]
            command += ["--listen-client-urls", url(clients[number]), "--advertise-client-urls", url(clients[number])]
            command += ["--listen-peer-urls", url(peers[number]), "--initial-advertise-peer-urls", url(peers[number])]
            self.etcd.append(Process("etcd", number, command, folder))
        self.listen, self.players = [take() for _ in range(BROKERS)], [take() for _ in range(BROKERS)]
        binary = str(args.binary)
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
            raise Trouble(made.stderr.strip())
        keys_folder = folder / "keys/broker"
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.tls.check_hostname = False  # a broker's certificate has a name by its role, not by its host
        self.tls.load_verify_locations(keys_folder / "ca.pem")
        self.tls.load_cert_chain(keys_folder / "operators/operator.pem", keys_folder / "operators/operator.key")

    def processes(self) -> list[Process]:
        """All."""
        return [*self.etcd, *self.brokers, *self.agents]

    def group(self, kind: str) -> list[Process]:
        """All of a kind."""
        return {"etcd": self.etcd, "broker": self.brokers, "agent": self.agents}[kind]

    def wait(self, seconds: float) -> None:
        """Waits, and notes what ends by itself meanwhile."""
        if self.ending.wait(max(seconds, 0.0)):
            raise Ended
        if self.troubles:
            raise self.troubles[0]
        self.observed.exits += [said for process in self.processes() if (said := process.own_end())]

    def sleep_until(self, at: float) -> None:
        """Waits until then."""
        while (left_s := at - time.monotonic()) > 0:
            self.wait(min(left_s, 0.04))

    def within(self, seconds: float, holds: Callable[[], bool]) -> bool:
        """Waits until something holds, no longer than that."""
        until = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > until:
                return False
            self.wait(0.04)
        return True

    def watch(self, broker: Process, port: int, every_s: float, ask: Callable[[Life, http.client.HTTPConnection], bool], is_secret: bool) -> None:
        """Asks a broker again and again while it runs, by one connection as long as that holds."""
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
        except Exception as error:  # noqa: BLE001 - it is raised where the schedule waits
            self.troubles.append(error)

    def get(self, connection: http.client.HTTPConnection, path: str) -> tuple[bytes, str | None]:
        """What is answered, or what is wrong with it."""
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            return b"", f"{type(error).__name__}: {error}"
        return body, None if response.status == 200 else f"status {response.status}: {body[:200].decode(errors='replace')}"

    def looker(self) -> Callable[[Life, http.client.HTTPConnection], bool]:
        """An operator, who looks at a broker's last decision."""
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
        """Players, each of whom asks once."""
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
        """Starts all, and waits for the first round."""
        for process in self.etcd:
            process.start()

        def is_there() -> bool:
            try:
                return self.store.keys(0, within_s=1.0)[0] > 0
            except OSError:
                return False

        if not self.within(BEGIN_WITHIN_S, is_there):
            last = " | ".join(self.etcd[0].log(1).read_text(errors="replace").splitlines()[-5:])
            raise Trouble(f"etcd does not begin within {BEGIN_WITHIN_S:.0f} s: {last}")
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
        """Whom it befalls: those of them that run."""
        group = self.group(fault.kind)
        whom = [group[number] for number in fault.whom]
        if fault.of_leader and (address := self.store.leader()):
            whom = [group[number] for number, port in enumerate(self.listen) if address == f"127.0.0.1:{port}"]
        return [process for process in whom if process.life() is not None]

    def note(self, began_at: float, what: str) -> None:
        """Something was done."""
        self.done.append(f"{time.monotonic() - began_at:6.2f} s  {what}")

    def aimed(self, aims_s: float) -> float:
        """When, on the monotonic clock: now, if no round was decided of late."""
        decided_s = max((decision["accepted_unix_ms"] / 1e3 for decision in self.latest.values()), default=0.0)
        passed_s = time.time() - decided_s
        return time.monotonic() + (EVERY_S - passed_s % EVERY_S + aims_s if passed_s < 2 * EVERY_S else 0.0)

    def run_faults(self, faults: list[Fault], faults_s: float) -> None:
        """Does what was drawn, and has everything run again in the end."""
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
        """Waits until each broker shows a round that was decided after all faults."""
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
        """What agents and brokers say that they were told."""
        line = re.compile(r" INFO round (\d+): (\d+) clients(?:, (\d[^,]*it/s)| placed, .*)$")
        for process in [*self.agents, *self.brokers]:
            network = f"cdn-{process.number}" if process.kind == "agent" else None
            for life in process.lives:
                for text in process.log(life.number).read_text(errors="replace").splitlines():
                    if found := line.search(text):
                        self.observed.told.append(Told(life, network, int(found[1]), int(found[2]), found[3]))

    def run(self, faults: list[Fault], faults_s: float, again_within_s: float) -> tuple[list[Kept], set[int]]:
        """All of it. What etcd kept is read last, so that it is behind nothing."""
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
    args: argparse.Namespace, seed: int, members: int, faults: list[Fault], faults_s: float, again_within_s: float, keep: pathlib.Path | None = None
) -> tuple[Row, Schedule, list[str]]:
    """One schedule: its row, and all that was wrong. Its logs stay in `keep`, or where something was wrong and there are rows, beside those."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="broker-schedules-"))
    try:
        write_world(seed, folder)
        schedule = Schedule(args, members, folder, args.ending)
        try:
            kept, leads = schedule.run(faults, faults_s, again_within_s)
        except OSError as error:
            raise Trouble(str(error)) from error
        observed = schedule.observed
        said = wrong(observed, kept)
        again_s = list(observed.again_s.values())
        row = {
            "commit": args.commit,
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
        if said and keep is None and args.rows is not None:
            keep = args.rows.parent / f"seed-{seed}"
        if keep is not None:
            notes = {"faults": list(map(str, faults)), "done": schedule.done, "wrong": said, "kept": list(map(dataclasses.asdict, kept))}
            keep_logs(folder, keep, notes)
        return row, schedule, said
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep_logs(folder: pathlib.Path, into: pathlib.Path, notes: dict[str, Any]) -> None:
    """Copies logs, and writes what was done and kept."""
    into.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, into)
    (into / "notes.json").write_text(json.dumps(notes, indent=1))


# The verbs.


def sentence(row: Row) -> str:
    """A row in words."""
    seen = f"{row['rounds']} rounds, {row['leads']} leads, {row['answers']} answers, a new round after {row['again_s'] or '-'} s"
    return f"{seen}, {row['wrong']} wrong{row['first_wrong'] and ': '}{row['first_wrong']}"


def read(path: pathlib.Path) -> list[Row]:
    """The rows that there are."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames != COLUMNS:
            raise SystemExit(f"run.py: {path}: has other columns: name another file, or move it away")
        return list(rows)


def run_all(args: argparse.Namespace) -> int:
    """Each seed that has no row."""
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    there = {int(row["seed"]) for row in read(args.rows)}
    first, count = args.seeds
    seeds = [seed for seed in range(first, first + count) if seed not in there]
    is_new = not args.rows.exists()
    troubles = 0
    with args.rows.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()

        def one(seed: int) -> Row:
            members, faults = draw(seed)
            return run_schedule(args, seed, members, faults, FAULTS_S, AGAIN_WITHIN_S)[0]

        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            jobs = {pool.submit(one, seed): seed for seed in seeds}
            try:
                for job in concurrent.futures.as_completed(jobs):
                    try:
                        row = job.result()
                    except Trouble as trouble:
                        troubles += 1
                        print(f"seed {jobs[job]}: has no row: {trouble}", file=sys.stderr)
                        continue
                    writer.writerow(row)
                    file.flush()
                    print(f"seed {row['seed']}: {sentence(row)}", flush=True)
            except BaseException:
                args.ending.set()
                for job in jobs:
                    job.cancel()
                raise
    table(args)
    return 1 if troubles or any(int(row["wrong"]) for row in read(args.rows)) else 0


def table(args: argparse.Namespace) -> int:
    """Sums of all rows."""
    rows = read(args.rows)
    if not rows:
        print("no rows")
        return 0
    total = lambda column: sum(int(row[column]) for row in rows)
    print(f"{len(rows)} schedules, {sum(1 for row in rows if row['etcd_members'] == '3')} of them with three members of etcd")
    for kind in KINDS:
        print(f"{kind}: {total(f'{kind}_kills')} killed, {total(f'{kind}_stops')} stopped")
    counts = [f"{total(column):,} {name}" for column, name in (("rounds", "rounds kept"), ("leads", "leads"), ("answers", "players' answers"))]
    print(", ".join([*counts, f"{total('shown'):,} decisions shown", f"{total('told'):,} lines of logs"]))
    if again_s := sorted(float(row["again_s"]) for row in rows if row["again_s"]):
        print(f"a new round everywhere after {statistics.median(again_s):.1f} s in the middle, {again_s[-1]:.1f} s at the most")
    print(f"{total('wrong')} wrong, in {sum(1 for row in rows if int(row['wrong']))} schedules")
    return 0


def run_one(args: argparse.Namespace) -> int:
    """A schedule, with all that is said of it."""
    members, faults = draw(args.seed)
    print(f"seed {args.seed}: etcd has {members} member{'s' if members > 1 else ''}; drawn:")
    print("\n".join(f"  {fault}" for fault in faults))
    keep = pathlib.Path(tempfile.mkdtemp(prefix=f"broker-schedule-{args.seed}-")) if args.keep else None
    row, schedule, said = run_schedule(args, args.seed, members, faults, FAULTS_S, AGAIN_WITHIN_S, keep)
    print("done:")
    print("\n".join(f"  {line}" for line in schedule.done))
    print(json.dumps(row))
    print("\n".join(f"wrong: {line}" for line in said) or "nothing is wrong")
    if keep is not None:
        print(f"logs and notes: {keep}")
    return 1 if said else 0


def check_the_check() -> None:
    """`wrong` says nothing of a sound history, and names each mistake that is put into it."""

    def decision(number: int, score: float = 20.0, to: list[Any] | None = None) -> dict[str, Any]:
        placed = [{"place": 0, "bitrate_bps": 3_000_000, "sessions": 5, "to": to or [0, 1, score]}]
        return {"round": number, "places": [["berlin", "one"]], "networks": ["cdn-0", "cdn-1"], "placed": placed}

    def kept() -> list[Kept]:
        return [Kept(revision, number, 2, 2, decision(number)) for revision, number in ((4, 10), (6, 11), (8, 12))]

    def observed() -> Observed:
        broker, agent = Life("broker 0", 1, 0.0), Life("agent 0", 1, 0.0)
        broker.ready_at = {"players": 0.1, "operators": 0.1}
        seen = Observed([broker, agent], ended_at=60.0, again_s={"broker 0": 2.0})
        for at, number in enumerate((10, 11, 12, 12, 12, 12), 1):
            seen.shown.append(Shown(broker, float(at), at + 0.1, decision(number), None, canonical(decision(number))))
        seen.answers = [Answer(broker, 2.5, 2.6, ("berlin", "one"), ["cdn-0.1", "cdn-0"]), Answer(broker, 4.2, 4.3, ("berlin", "one"), ["cdn-0.1"])]
        seen.told = [Told(agent, "cdn-0", 11, 5, "15 Mbit/s"), Told(broker, None, 11, 5, None), Told(broker, None, 12, 5, None)]
        return seen

    def says(what: str, mistake: Callable[[Observed, list[Kept]], None]) -> None:
        seen, truth = observed(), kept()
        mistake(seen, truth)
        said = wrong(seen, truth)
        assert len(said) == 1 and what in said[0], f"`{what}` is to be said, and {said} is"

    def show(seen: Observed, at: int, new: dict[str, Any]) -> None:
        seen.shown[at].decision, seen.shown[at].text = new, canonical(new)

    def fall(seen: Observed, _: list[Kept]) -> None:
        show(seen, 4, decision(11))

    def contradict(seen: Observed, _: list[Kept]) -> None:
        show(seen, 1, decision(11, to=[1, 1, 20.0]))

    def last_digit(seen: Observed, _: list[Kept]) -> None:
        show(seen, 1, decision(11, score=20.000000000000004))

    def unkept(seen: Observed, _: list[Kept]) -> None:
        show(seen, 5, decision(13))

    def old(seen: Observed, _: list[Kept]) -> None:
        life = Life("broker 1", 2, 5.0)
        seen.lives.append(life)
        seen.shown.append(Shown(life, 6.0, 6.1, decision(11), None, canonical(decision(11))))
        life.ready_at = {"players": 5.1, "operators": 5.1}

    def unplaced(seen: Observed, truth: list[Kept]) -> None:
        of = truth[2].decision
        assert of is not None
        of["placed"].append({"place": 0, "bitrate_bps": 3_000_000, "sessions": 2, "to": None})
        seen.told.pop()
        for at in range(2, 6):
            show(seen, at, of)

    def twice(seen: Observed, truth: list[Kept]) -> None:
        truth.insert(2, Kept(7, 11, 2, 2, decision(11)))

    def ended_lead(_: Observed, truth: list[Kept]) -> None:
        truth[1].lead = None

    def changed(_: Observed, truth: list[Kept]) -> None:
        truth[1].changed_at = 7

    def halved(seen: Observed, truth: list[Kept]) -> None:
        truth[0].decision = None
        seen.shown.pop(0)

    assert wrong(observed(), kept()) == [], wrong(observed(), kept())
    says("broker 0 (life 1) showed round 11 after round 12", fall)
    says("broker 0 (life 1) showed round 11 otherwise than etcd kept it: placed[0].to[0] is 1 and not 0", contradict)
    says("placed[0].to[2] is 20.000000000000004 and not 20.0", last_digit)
    says("showed round 13, which etcd never kept", unkept)
    says("began with round 11, though round 12 was kept before", old)
    says("2 clients have no place, of 7", unplaced)
    says("etcd kept round 11 (revision 7) after round 11", twice)
    says("was decided in lead 2, and the lead was None", ended_lead)
    says("had other contents at revision 7", changed)
    says("its parts were not there", halved)
    says("agent 0 (life 1) was told of round 9, which etcd never kept", lambda seen, _: setattr(seen.told[0], "round", 9))
    says("was told of 6 clients, 15 Mbit/s in round 11", lambda seen, _: setattr(seen.told[0], "clients", 6))
    says("was told of 5 clients, 16 Mbit/s in round 11", lambda seen, _: setattr(seen.told[0], "rate", "16 Mbit/s"))
    says("took round 11 after round 12", lambda seen, _: seen.told.append(seen.told[1]))
    says("no way after 0.1 s: an empty list", lambda seen, _: seen.answers[0].ways.clear())
    says("status 410", lambda seen, _: setattr(seen.answers[1], "problem", "status 410"))
    says("sent a player in berlin/one by cdn-0, as no decision says from round 11 to", lambda seen, _: seen.answers[0].ways.pop(0))
    says("ended by itself", lambda seen, _: seen.exits.append("broker 1 ended by itself"))
    says("no new round within 20 s", lambda seen, _: seen.again_s.update({"broker 0": None}))
    says("did not answer players within 10 s", lambda seen, _: seen.lives[0].ready_at.update({"players": 11.0}) or seen.answers.clear())

    # A process that does not run need not answer.
    for stops, ended_at in (([[2.55, 2.9]], None), ([], 2.55)):
        seen = observed()
        seen.answers = [dataclasses.replace(seen.answers[0], ways=[], problem="reset")]
        seen.lives[0].stops, seen.lives[0].ended_at = stops, ended_at
        assert wrong(seen, kept()) == [], wrong(seen, kept())
    assert draw(3) == draw(3) and draw(3) != draw(4), "a seed is a schedule"
    assert is_rate("1.235 Mbit/s", 1_234_567) and not is_rate("1.235 Mbit/s", 1_236_567)


def smoke(args: argparse.Namespace) -> int:
    """The check itself, and a short schedule."""
    check_the_check()
    if args.etcd is None:
        print("broker-schedules: skipped: 1 (several brokers share an etcd, and this machine has none (Debian: etcd-server))")
        return 0
    faults = [
        Fault(0.2, "agent", (1,), False, "kill", 1.0),
        Fault(0.3, "broker", (0,), True, "stop", LEASE_S + 0.8),
        Fault(0.6, "etcd", (0,), False, "stop", 0.2),
        Fault(3.3, "broker", (1,), False, "kill", 0.3),
    ]
    row, schedule, said = run_schedule(args, 1, 1, faults, 4.0, 3 * AGAIN_WITHIN_S)
    print("\n".join(schedule.done))
    for line in said:
        print(f"wrong: {line}")
    assert set(row) == set(COLUMNS), "a row has every column"
    print(f"broker-schedules: {sentence(row)}")
    return 1 if said else 0


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    every, one = verbs.add_parser("all"), verbs.add_parser("one")
    every.add_argument("--seeds", type=int, nargs=2, default=[1, 200], metavar=("FROM", "COUNT"))
    every.add_argument("--jobs", type=int, default=2, help="schedules at once: most of one is waiting")
    one.add_argument("--seed", type=int, required=True)
    one.add_argument("--keep", action="store_true", help="keep logs, and say where they are")
    small, shown = verbs.add_parser("smoke"), verbs.add_parser("table")
    for verb in (every, one, small):
        verb.add_argument("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "anabranch")
    for verb in (every, shown):
        verb.add_argument("--rows", type=pathlib.Path, default=ROOT / "runs" / "broker-schedules" / "schedules.csv")
    args = parser.parse_args()
    if args.verb == "table":
        return table(args)
    # Processes run in other folders.
    args.binary, args.etcd = args.binary.resolve(), shutil.which("etcd")
    args.rows = getattr(args, "rows", None)
    args.ports, args.ending, args.commit = Ports(), threading.Event(), ""
    with contextlib.suppress(FileNotFoundError):
        args.commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()
    if args.verb != "smoke" and args.etcd is None:
        raise SystemExit("run.py: there is no etcd (Debian: etcd-server)")
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Who ignores hangups goes on doing so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        return {"all": run_all, "one": run_one, "smoke": smoke}[args.verb](args)
    except KeyboardInterrupt:
        return 130
    except Trouble as trouble:
        print(f"run.py: {trouble}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
