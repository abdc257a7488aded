"""The optimiser of ``live`` beside HiGHS and a second evaluator, which shares no code with it.

`evaluate` checks an answer against the corrected program of Figure 4.8, and computes its objective
from the network's file, the demand and the printed trees.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from oracle_highs import oracle
from oracle_live import model

from anabranch_lab.binary import find

#: Number of instances: all with `ANABRANCH_LONG=1`, otherwise some of them.
INSTANCES = 50 if os.environ.get("ANABRANCH_LONG") else 16
#: Value of a viewer by its bitrate in Mbit/s, for each priority.
PRIORITIES: dict[str, Callable[[float], float]] = {
    "quality": lambda mbps: mbps,
    "balanced": lambda mbps: 1.0,
    "quantity": lambda mbps: 1.0 / mbps,
}
#: Path cost to which ``--cost-share`` refers.
NORMAL_PATH_COST = 60.0
#: Capacity that no stream exceeds, in Mbit/s.
UNLIMITED = float("inf")

Toml = dict[str, list[dict[str, Any]]]


def drawn(draw: random.Random) -> tuple[Toml, Toml]:
    """Draw a network whose links are ample to far too narrow, and its demand."""
    tiers = {"source": draw.randint(1, 3), "reflector": draw.randint(1, 4), "edge": draw.randint(2, 6)}
    names = {tier: [f"{tier[0]}{number}" for number in range(count)] for tier, count in tiers.items()}
    nodes: list[dict[str, Any]] = []
    for tier, members in names.items():
        for name in members:
            port = 1000 + len(nodes)
            node = {"name": name, "tier": tier, "media": f"http://10.0.0.1:{port}"}
            nodes.append(node if tier == "edge" else node | {"control": f"10.0.0.2:{port}"})
    scale = 10 ** draw.uniform(0.3, 2)
    links = [
        {
            "from": start,
            "to": end,
            "capacity": f"{round(1e6 * scale * draw.uniform(0.3, 1))}bit/s",
            "cost": draw.randint(1, 40),
        }
        for above, below in (("source", "reflector"), ("reflector", "edge"))
        for start in names[above]
        for end in names[below]
        if draw.random() < 0.85
    ]
    groups = []
    for number in range(draw.randint(2, 8)):
        edges = draw.sample(names["edge"], draw.randint(1, min(3, tiers["edge"])))
        groups.append({"name": f"g{number}", "edges": [{"edge": edge, "cost": draw.randint(0, 30)} for edge in edges]})
    rates = {"low": 200_000, "middle": 600_000, "high": 1_400_000}
    channels = [
        {"name": f"c{number}", "renditions": {name: f"{rate}bit/s" for name, rate in rates.items()}}
        for number in range(draw.randint(2, 8))
    ]
    demand = [
        {
            "group": group["name"],
            "channel": channel["name"],
            "rendition": draw.choice(list(rates)),
            "viewers": draw.choice([1, 1, 2, 5, 40]),
        }
        for group in groups
        for channel in channels
        if draw.random() < 0.6
    ]
    if not demand:
        demand = [{"group": "g0", "channel": "c0", "rendition": "low", "viewers": 1}]
    return {"node": nodes, "link": links, "group": groups, "channel": channels}, {"demand": demand}


def mbps_of(channels: list[dict[str, Any]], row: dict[str, Any]) -> float:
    """Return the bitrate of a rendition."""
    (channel,) = (of for of in channels if of["name"] == row["channel"])
    return float(channel["renditions"][row["rendition"]].removesuffix("bit/s")) / 1e6


def weights(network: Toml, demand: Toml, priority: str, cost_share: float) -> tuple[list[float], float]:
    """Return the value of each request and the weight of cost (section 4.5): a mean viewer is worth 1."""
    rates = [mbps_of(network["channel"], row) for row in demand["demand"]]
    viewers = [row["viewers"] for row in demand["demand"]]
    worth = [PRIORITIES[priority](rate) for rate in rates]
    service_weight = sum(viewers) / sum(count * of for count, of in zip(viewers, worth, strict=True))
    carried = sum(count * rate for count, rate in zip(viewers, rates, strict=True))
    cost_weight = cost_share * sum(viewers) / (NORMAL_PATH_COST * carried)
    return [service_weight * count * of for count, of in zip(viewers, worth, strict=True)], cost_weight


def program(network: Toml, demand: Toml, slack: float, values: list[float], cost_weight: float) -> dict[str, Any]:
    """Return the program as `oracle_live.model` reads it."""
    nodes = [node["name"] for node in network["node"]]
    groups = [group["name"] for group in network["group"]]
    links = []
    for link in network["link"]:
        bps = int(link["capacity"].removesuffix("bit/s"))
        # The slack is rounded as the planner rounds it: down to a bit/s.
        usable = bps * (1_000_000 - round(1e6 * slack)) // 1_000_000
        links.append((nodes.index(link["from"]), nodes.index(link["to"]), usable / 1e6, link["cost"]))
    group_links = [
        (nodes.index(edge["edge"]), number, UNLIMITED, edge["cost"])
        for number, group in enumerate(network["group"])
        for edge in group["edges"]
    ]
    objects: defaultdict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    rates = {}
    for row, value in zip(demand["demand"], values, strict=True):
        key = (row["channel"], row["rendition"])
        rates[key] = mbps_of(network["channel"], row)
        objects[key].append((groups.index(row["group"]), value))
    sources = sum(node["tier"] == "source" for node in network["node"])
    listed = [(rates[key], requests) for key, requests in objects.items()]
    return {
        "sources": sources,
        "cost_weight": cost_weight,
        "links": links,
        "group_links": group_links,
        "objects": listed,
    }


def evaluate(network: Toml, demand: Toml, of: dict[str, Any], answer: dict[str, Any], values: list[float]) -> float:
    """Check the answer against the program's constraints, and return its objective.

    Each stream that a node sends comes to it from one parent, or it is a source; only served
    groups have an edge, one that the network gives them; no link carries more than the slack
    leaves.
    """
    tiers = {node["name"]: node["tier"] for node in network["node"]}
    nodes = list(tiers)
    limits = {(nodes[start], nodes[end]): (usable, cost) for start, end, usable, cost in of["links"]}
    prices = {(group["name"], edge["edge"]): edge["cost"] for group in network["group"] for edge in group["edges"]}
    value_of = {
        (row["group"], row["channel"], row["rendition"]): value
        for row, value in zip(demand["demand"], values, strict=True)
    }
    used: defaultdict[tuple[str, str], float] = defaultdict(float)
    objective, seen = 0.0, set()
    for tree in answer["trees"]:
        mbps = tree["bitrate_bps"] / 1e6
        parents: dict[str, str] = {}
        for hop in tree["links"]:
            assert hop["to"] not in parents, "one parent for each node"
            assert (hop["from"], hop["to"]) in limits, "a link of the network"
            parents[hop["to"]] = hop["from"]
            used[hop["from"], hop["to"]] += mbps
            objective -= of["cost_weight"] * mbps * limits[hop["from"], hop["to"]][1]
        for parent in parents.values():
            assert parent in parents or tiers[parent] == "source", "nothing is sent that does not arrive"
        for watched in tree["groups"]:
            key = (watched["group"], tree["channel"], tree["rendition"])
            assert key in value_of, "a request"
            assert key not in seen, "once"
            seen.add(key)
            if watched["edge"] is not None:
                assert watched["edge"] in parents, "the edge has the stream"
                objective += value_of[key] - of["cost_weight"] * mbps * prices[watched["group"], watched["edge"]]
    assert seen == set(value_of)
    for link, mbps in used.items():
        assert mbps <= limits[link][0] + 1e-9, f"{link}: {mbps} of {limits[link][0]} Mbit/s"
    return objective


def test_answers_are_feasible_and_within_their_certified_gaps(tmp_path: Path) -> None:
    """HiGHS's bound limits the objective; its best answer is no better than the certified gap allows."""
    draw = random.Random(1)
    exact = partly_served = 0
    for number in range(INSTANCES):
        network, demand = drawn(draw)
        priority, cost_share, slack = (
            draw.choice(list(PRIORITIES)),
            draw.choice([0.02, 0.1, 0.5]),
            draw.choice([0.0, 0.05, 0.2]),
        )
        paths = [tmp_path / f"{number}-{name}.toml" for name in ("network", "demand")]
        for path, tables in zip(paths, (network, demand), strict=True):
            path.write_text(tomli_w.dumps(tables))
        options = ["--priority", priority, "--cost-share", str(cost_share), "--slack", str(slack)]
        command = [find().path, "-q", "live", "plan", paths[0], "--demand", paths[1], "--json", *options]
        answer = json.loads(
            subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout
        )
        values, cost_weight = weights(network, demand, priority, cost_share)
        of = program(network, demand, slack, values, cost_weight)
        objective = evaluate(network, demand, of, answer, values)
        # The share is of the certified bound, which is zero if nothing can be served with profit.
        gap = answer["gap_share"]
        bound = objective / (1 - gap) if gap < 1 else None
        found = oracle(model(of), 5.0)
        best, most = -found.cost, -found.bound
        small = 1e-6 * max(1.0, abs(most))
        assert objective <= most + small, f"{number}: better than HiGHS's bound"
        if bound is not None:
            assert best <= bound + small, f"{number}: HiGHS has {best}, the certified bound is {bound}"
        exact += abs(best - objective) <= small
        partly_served += 0 < answer["requests_served"] < answer["requests"]
    assert exact > INSTANCES / 2
    assert partly_served > INSTANCES / 4, "capacity binds in some instances"


def test_evaluator_refuses_wrong_answers(tmp_path: Path) -> None:
    """A second parent, a missing hop, and an overfull link are found."""
    edge = {"name": "e", "tier": "edge", "media": "http://10.0.0.1:3"}
    nodes: list[dict[str, Any]] = [
        {"name": "s", "tier": "source"},
        {"name": "x", "tier": "reflector"},
        {"name": "y", "tier": "reflector"},
        edge,
    ]
    links = [
        {"from": a, "to": b, "capacity": "1000000bit/s", "cost": 1}
        for a, b in (("s", "x"), ("s", "y"), ("x", "e"), ("y", "e"))
    ]
    channel = {"name": "c", "renditions": {"high": "800000bit/s"}}
    other = {"name": "d", "renditions": {"high": "800000bit/s"}}
    network: Toml = {
        "node": nodes,
        "link": links,
        "group": [{"name": "g", "edges": [{"edge": "e", "cost": 0}]}],
        "channel": [channel, other],
    }
    rows = [{"group": "g", "channel": name, "rendition": "high", "viewers": 1} for name in ("c", "d")]
    values, cost_weight = weights(network, {"demand": rows}, "balanced", 0.1)
    of = program(network, {"demand": rows}, 0.0, values, cost_weight)

    def tree(name: str, *hops: tuple[str, str]) -> dict[str, Any]:
        listed = [{"from": start, "to": end} for start, end in hops]
        watched = [{"group": "g", "edge": "e", "viewers": 1}]
        return {"channel": name, "rendition": "high", "bitrate_bps": 800_000, "links": listed, "groups": watched}

    by_x, by_y = [("s", "x"), ("x", "e")], [("s", "y"), ("y", "e")]
    good = {"trees": [tree("c", *by_x), tree("d", *by_y)]}
    assert evaluate(network, {"demand": rows}, of, good, values) == pytest.approx(2 - 4 * 0.8 * cost_weight)
    for wrong in (
        [tree("c", *by_x), tree("d", *by_x)],
        [tree("c", *by_x), tree("d", *by_y, ("x", "e"))],
        [tree("c", *by_x), tree("d", ("y", "e"))],
        [tree("c", *by_x)],
    ):
        with pytest.raises(AssertionError):
            evaluate(network, {"demand": rows}, of, {"trees": wrong}, values)
