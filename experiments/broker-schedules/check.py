"""Observations of brokers, agents and etcd in a schedule, a check of these observations, and a test
of the check.

Read first: `Observed` and `Kept`, the observations; `wrong`, the check.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

#: Maximum seconds from a broker's start to its first answer, and from the end of all faults to its
#: next round.
READY_WITHIN_S, AGAIN_WITHIN_S = 10.0, 20.0


@dataclasses.dataclass
class Kept:
    """A decision as etcd stored it.

    Attributes
    ----------
    revision
        Etcd's revision at which `last` named this decision.
    round, epoch
        Values in `last`.
    lead
        The revision that created the key `leader` of that time; `None` if there was no leader.
    decision
        The decision with all its parts; `None` if a part was missing or was no JSON.
    changed_at
        A later revision at which it was still the last decision but had other contents; `None`
        without one.
    """

    revision: int
    round: int
    epoch: int
    lead: int | None
    decision: dict[str, Any] | None
    changed_at: int | None = None

    @functools.cached_property
    def text(self) -> str:
        """The decision as text; equal decisions have equal texts."""
        return canonical(self.decision)


@dataclasses.dataclass
class Life:
    """A process from its start to its end. Times are of the monotonic clock.

    Attributes
    ----------
    who, number
        Name of the process, such as `broker 2`, and number of this life.
    began_at, ended_at
        Time when it was started, and time just before it was killed.
    stops
        Intervals from just before SIGSTOP until just after SIGCONT.
    ready_at
        Time of its first answer, by port.
    """

    who: str
    number: int
    began_at: float
    ended_at: float | None = None
    stops: list[list[float]] = dataclasses.field(default_factory=list)
    ready_at: dict[str, float] = dataclasses.field(default_factory=dict)

    def ran(self, port: str, since: float, until: float) -> bool:
        """Whether the process ran for the whole interval and had answered on that port before."""
        if self.ready_at.get(port, float("inf")) > since or (self.ended_at is not None and self.ended_at <= until):
            return False
        return all(until < begins or since > ends for begins, ends in self.stops)

    def __str__(self) -> str:
        return f"{self.who} (life {self.number})"


@dataclasses.dataclass
class Shown:
    """Response of a broker to an operator: a decision, or the problem that occurred."""

    life: Life
    asked_at: float
    got_at: float
    decision: dict[str, Any] | None
    problem: str | None = None
    text: str = ""

    @property
    def round(self) -> int:
        """Round of the decision; 0 before the first decision."""
        return self.decision["round"] if self.decision else 0


@dataclasses.dataclass
class Answer:
    """Response of a broker to a player: ways, the best first; or the problem that occurred."""

    life: Life
    asked_at: float
    got_at: float
    place: tuple[str, str]
    ways: list[str]
    problem: str | None = None


@dataclasses.dataclass
class Told:
    """A line of a log: number of clients of this round for a network, with their total `rate`; or for
    all networks together, without a rate."""

    life: Life
    network: str | None
    round: int
    clients: int
    rate: str | None


@dataclasses.dataclass
class Observed:
    """All observations of brokers and agents.

    Attributes
    ----------
    ended_at
        Time after which no questions were asked.
    exits
        Processes that ended without having been killed.
    again_s
        Time from the end of all faults to a broker's first new round, by broker; `None` if it did
        not show one in time.
    """

    lives: list[Life] = dataclasses.field(default_factory=list)
    shown: list[Shown] = dataclasses.field(default_factory=list)
    answers: list[Answer] = dataclasses.field(default_factory=list)
    told: list[Told] = dataclasses.field(default_factory=list)
    exits: list[str] = dataclasses.field(default_factory=list)
    again_s: dict[str, float | None] = dataclasses.field(default_factory=dict)
    again_within_s: float = AGAIN_WITHIN_S
    ended_at: float = 0.0


def canonical(value: Any) -> str:
    """Encode as JSON so that equal values have equal texts; 1 differs from 1.0."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def difference(one: Any, other: Any, at: str = "") -> str:
    """Describe the first difference between two JSON values."""
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
    """Count the clients that a decision gives a network, and their bit/s; without a network all
    clients, placed or not."""
    placed = decision["placed"]
    if network is not None:
        placed = [of for of in placed if of["to"] is not None and decision["networks"][of["to"][0]] == network]
    return sum(of["sessions"] for of in placed), sum(of["sessions"] * of["bitrate_bps"] for of in placed)


def ways_of(decision: dict[str, Any], place: tuple[str, str]) -> set[str]:
    """Return the ways by which a decision serves the clients of a place; for a place that is not in
    the decision, all its ways."""
    ways: dict[tuple[str, str] | None, set[str]] = {}
    for of in decision["placed"]:
        if of["to"] is not None:
            way = f"{decision['networks'][of['to'][0]]}.{of['to'][1]}"
            ways.setdefault(tuple(decision["places"][of["place"]]), set()).add(way)
            ways.setdefault(None, set()).add(way)
    return ways.get(place) or ways.get(None, set())


def is_rate(text: str, bps: int) -> bool:
    """Whether a printed rate, which has three decimals, equals `bps`."""
    number, unit = text.split()
    factor = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}[unit]
    return abs(float(number) * factor - bps) <= 0.000_501 * factor


def wrong_kept(kept: list[Kept]) -> list[str]:
    """Return the problems in etcd's history alone."""
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
    """Return a line for each decision that a broker showed but that etcd stored differently, and for
    each round that went backwards."""
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
        # A round shown before this life began was stored by then, and etcd's answers are never old.
        first = next((one for one in ones if one.round), None)
        known = max((one.round for one in shown if one.got_at < life.began_at), default=0)
        if first is not None and first.round < known:
            said[str(life), first.round, "old"] = f"{life} began with round {first.round}, though round {known} was kept before it was started"
    return list(said.values())


def wrong_answers(observed: Observed, kept: dict[int, Kept]) -> list[str]:
    """Return a line for each question that a running broker did not answer, or answered by no decision
    that it may have known."""
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
            # The decision is between two looks: the last one that ended before the question, and
            # the second one that began after the answer. A broker tells players first.
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
    """Return the lines in logs of agents and brokers that differ from etcd's history."""
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
    """Return brokers that did not answer again after a fault, and processes that ended by themselves."""
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
    """Group observations by life; the order of lives and of observations stays."""
    lives: dict[int, tuple[Life, list[Any]]] = {}
    for one in ones:
        lives.setdefault(id(one.life), (one.life, []))[1].append(one)
    return list(lives.values())


def wrong(observed: Observed, kept: list[Kept]) -> list[str]:
    """Return a line for each problem: the observations are compared with every version that etcd
    stored."""
    by_round = {one.round: one for one in kept}
    said = wrong_kept(kept) + wrong_shown(observed.shown, by_round) + wrong_answers(observed, by_round)
    return said + wrong_told(observed.told, by_round) + wrong_lives(observed)


def check_the_check() -> None:
    """Check that `wrong` reports nothing in a correct history, and each mistake that is put into one."""

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

    # A process that is stopped or killed need not answer.
    for stops, ended_at in (([[2.55, 2.9]], None), ([], 2.55)):
        seen = observed()
        seen.answers = [dataclasses.replace(seen.answers[0], ways=[], problem="reset")]
        seen.lives[0].stops, seen.lives[0].ended_at = stops, ended_at
        assert wrong(seen, kept()) == [], wrong(seen, kept())
    assert is_rate("1.235 Mbit/s", 1_234_567) and not is_rate("1.235 Mbit/s", 1_236_567)
