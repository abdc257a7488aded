"""The designs by which content networks and a broker may decide together, in worlds that are drawn: the thesis's Tables 3.1 and 3.3, Figures 3.11 to 3.19; several brokers, and networks that lie.

``run.py all`` runs every setting on every seed and writes rows to a folder, a file for each setting; seeds that are in a file are not run again.
``run.py table`` prints the thesis's tables beside what the rows say, and which of its conclusions hold on how many seeds. ``run.py draw``
draws the figures. ``run.py speed`` measures the optimiser on markets of more and more viewers, beside HiGHS where ``--peer`` names a Python that has highspy. ``run.py smoke`` runs a small
world of each and checks that rows make sense. All but ``draw`` needs the standard library only.

Read first: `SETTINGS`, `CONCLUSIONS`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import dataclasses
import json
import math
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
Row = dict[str, Any]

SEEDS = tuple(range(1, 21))
#: What cost weighs in Table 3.3; the thesis does not say what it took.
WEIGHT = 1.0
WEIGHTS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0, 30.0)
BIDS = (1, 2, 3, 5, 10, 20, 50, 100)
#: Designs in the order of Table 3.3.
DESIGNS = (
    *("brokered", "multicluster-2", "multicluster-100", "dynamic-pricing", "dynamic-multicluster"),
    *("best-lookup", "marketplace", "omniscient"),
)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is run.

    Attributes
    ----------
    verb
        Of `anabranch broker`.
    arguments
        What follows it.
    designs, weights
        What `evaluate` runs on each seed.
    sessions
        Clients of a world; without, what the verb has by itself.
    seeds
        How many of the seeds are run.
    """

    verb: str
    arguments: tuple[str, ...] = ()
    designs: tuple[str, ...] = ()
    weights: tuple[float, ...] = (WEIGHT,)
    sessions: int | None = None
    seeds: int = len(SEEDS)

    def command(self, binary: pathlib.Path, seed: int, sessions: int | None) -> list[str]:
        """The command for one seed."""
        command = [str(binary), "-q", "broker", self.verb, "--json", "--seed", str(seed), *self.arguments]
        if self.verb == "evaluate":
            command += ["--design", *self.designs, "--cost-weight", *(str(weight) for weight in self.weights)]
        sessions = sessions or self.sessions
        return command + (["--sessions", str(sessions)] if sessions else [])


BOTH = ("brokered", "marketplace")
SETTINGS: dict[str, Setting] = {
    "alternatives": Setting("evaluate", ("--rows", "alternatives"), ("brokered",)),
    "designs": Setting("evaluate", designs=DESIGNS, weights=(WEIGHT / 2, WEIGHT, WEIGHT * 2)),
    "networks": Setting("evaluate", ("--rows", "networks"), BOTH),
    "countries": Setting("evaluate", ("--rows", "countries"), BOTH),
    "city-networks": Setting("evaluate", ("--rows", "networks", "--city-networks", "200"), BOTH),
    "weights": Setting(
        "evaluate",
        designs=("brokered", "multicluster-100", "dynamic-pricing", "best-lookup", "marketplace"),
        weights=WEIGHTS,
    ),
    "bids": Setting("evaluate", designs=tuple(f"marketplace-{bids}" if bids < 100 else "marketplace" for bids in BIDS)),
    "several": Setting("several", ("--brokers", "3", "--design", "marketplace"), sessions=1_500, seeds=10),
    "asked": Setting(
        "several", ("--brokers", "3", "--design", "transactions", "--reserve", "nothing"), sessions=1_500, seeds=10
    ),
    "lies": Setting("lies", ("--design", "brokered", "dynamic-pricing", "marketplace"), seeds=10),
    "claims": Setting(
        "lies",
        ("--design", "marketplace", "--price", "1.2", "--claim", "0.5", "1", "2", "4", "--capacity", "0.1"),
        seeds=10,
    ),
}


def path_of(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Where a setting's rows are."""
    return folder / f"{name}.csv"


def read(folder: pathlib.Path, name: str) -> list[Row]:
    """The rows of a setting, with numbers as numbers."""
    path = path_of(folder, name)
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows: list[Row] = [dict(row) for row in csv.DictReader(file)]
    for row in rows:
        for column, value in row.items():
            if column not in ("design", "reserve"):
                row[column] = float(value)
    return rows


def evaluate(command: list[str]) -> list[Row]:
    """What the command says."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_all(args: argparse.Namespace) -> int:
    """Runs what is not there yet."""
    args.rows.mkdir(parents=True, exist_ok=True)
    for name in args.setting or SETTINGS:
        there = {int(row["seed"]) for row in read(args.rows, name)}
        left = [seed for seed in args.seeds[: SETTINGS[name].seeds] if seed not in there]
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            commands = [SETTINGS[name].command(args.binary, seed, args.sessions) for seed in left]
            for seed, rows in zip(left, pool.map(evaluate, commands), strict=True):
                path = path_of(args.rows, name)
                is_new = not path.exists()
                with path.open("a", newline="") as file:
                    writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
                    if is_new:
                        writer.writeheader()
                    writer.writerows(
                        {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()}
                        for row in rows
                    )
                print(f"{name}: seed {seed}: {len(rows)} rows", flush=True)
    return 0


# What follows reads rows.


class Worlds:
    """Rows by seed."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.rows = {name: read(folder, name) for name in SETTINGS}

    def seeds(self, name: str) -> list[int]:
        """The seeds of a setting."""
        return sorted({int(row["seed"]) for row in self.rows[name]})

    def of(self, name: str, seed: int, design: str, weight: float | None = None) -> list[Row]:
        """A design's rows of a seed."""
        return [
            row
            for row in self.rows[name]
            if row["seed"] == seed and row["design"] == design and (weight is None or row["cost_weight"] == weight)
        ]

    def value(self, seed: int, design: str, column: str, weight: float = WEIGHT) -> float:
        """A value of Table 3.3 in one world."""
        return float(self.of("designs", seed, design, weight)[0][column])

    def beside_brokered(self, design: str, column: str, weight: float = WEIGHT) -> list[float]:
        """A design's values, world by world, as multiples of Brokered's."""
        seeds = self.seeds("designs")
        return [
            self.value(seed, design, column, weight) / self.value(seed, "brokered", column, weight) for seed in seeds
        ]

    def share(self, name: str, seed: int, design: str, holds: Callable[[Row], bool]) -> float:
        """The share of a world's accounts with traffic of which something holds."""
        rows = [row for row in self.of(name, seed, design) if row["traffic_mbps"] > 0]
        return sum(map(holds, rows)) / len(rows)


#: Student's t for 95 % by degrees of freedom; beyond 30 it is 2.
STUDENT = {4: 2.776, 9: 2.262, 14: 2.145, 19: 2.093, 24: 2.064, 29: 2.045}


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and half of the interval that holds it with 95 % over seeds."""
    if len(values) < 2:
        return statistics.fmean(values), math.nan
    freedom = len(values) - 1
    student = next((student for most, student in STUDENT.items() if freedom <= most), 2.0)
    return statistics.fmean(values), student * statistics.stdev(values) / math.sqrt(len(values))


#: Table 3.3 as the thesis has it: cost, score, distance, load and congested in per cent.
THESIS = {
    "brokered": (136, 132, 297, 9, 0),
    "multicluster-2": (155, 87, 194, 14, 27),
    "multicluster-100": (171, 85, 141, 20, 39),
    "dynamic-pricing": (126, 148, 318, 11, 0),
    "dynamic-multicluster": (115, 122, 219, 40, 14),
    "best-lookup": (94, 108, 166, 14, 14),
    "marketplace": (93, 112, 178, 23, 0),
    "omniscient": (86, 111, 172, 48, 0),
}
COLUMNS = ("cost_p50", "score_p50", "distance_km_p50", "load_p50", "congested_share")


def loses(row: Row) -> bool:
    """Whether an account is paid less than it costs."""
    return float(row["paid"]) < float(row["cost"])


def dearest(worlds: Worlds, seed: int, design: str, count: int = 5) -> float:
    """The share of traffic that leaves from clusters in the dearest countries."""
    rows = worlds.of("countries", seed, design)
    total = sum(row["traffic_mbps"] for row in rows)
    rows = sorted((row for row in rows if row["clusters"]), key=lambda row: -float(row["cost_per_mbps"]))
    return float(sum(row["traffic_mbps"] for row in rows[:count]) / total)


def ranks(values: list[float]) -> list[float]:
    """Each value's place among them."""
    order = sorted(range(len(values)), key=values.__getitem__)
    return [float(order.index(number)) for number in range(len(values))]


def dear_countries_lose(worlds: Worlds, seed: int) -> bool:
    """Whether with one price the dearer a country is the less of its cost is paid: Spearman's rank correlation below -0.5."""
    rows = [row for row in worlds.of("countries", seed, "brokered") if row["traffic_mbps"] > 0]
    costs = ranks([row["cost_per_mbps"] for row in rows])
    return statistics.correlation(costs, ranks([row["paid"] / row["cost"] for row in rows])) < -0.5


def traffic_share(worlds: Worlds, seed: int, design: str, number: int) -> float:
    """A network's share of all traffic."""
    rows = worlds.of("networks", seed, design)
    return float(rows[number]["traffic_mbps"] / sum(row["traffic_mbps"] for row in rows))


def curve(worlds: Worlds, seed: int, design: str) -> list[tuple[float, float]]:
    """Cost and distance at each weight of cost."""
    rows = sorted(worlds.of("weights", seed, design), key=lambda row: float(row["cost_weight"]))
    return [(float(row["cost_p50"]), float(row["distance_km_p50"])) for row in rows]


def trade(worlds: Worlds, seed: int) -> tuple[float, float, tuple[float, float]]:
    """By how much the marketplace is cheaper where it is no farther than Brokered in the table, by how much nearer where it is no dearer, and both
    where the smaller of the two is greatest."""
    (before,) = worlds.of("weights", seed, "brokered", WEIGHT)
    cost, distance = float(before["cost_p50"]), float(before["distance_km_p50"])
    points = curve(worlds, seed, "marketplace")
    cheaper = max((1 - c / cost for c, d in points if d <= distance), default=0.0)
    nearer = max((1 - d / distance for c, d in points if c <= cost), default=0.0)
    knee = max(((1 - c / cost, 1 - d / distance) for c, d in points), key=min)
    return cheaper, nearer, knee


def bid_scores(worlds: Worlds, seed: int, column: str) -> list[float]:
    """A median at each number of bids."""
    designs = SETTINGS["bids"].designs
    return [float(worlds.of("bids", seed, design)[0][column]) for design in designs]


def is_best_step_the_second(worlds: Worlds, seed: int) -> bool:
    """Whether no later step to more bids lowers the score as much as the second bid does."""
    scores = bid_scores(worlds, seed, "score_p50")
    drops = [a - b for a, b in zip(scores, scores[1:], strict=False)]
    return drops[0] >= max(drops[1:])


#: A test of one world, for Table 3.3 at a weight of cost; others have one weight.
Test = Callable[["Worlds", int, float], bool]


def beside(design: str, column: str, test: Callable[[float], bool]) -> Test:
    """A test of a value as a multiple of Brokered's."""
    return lambda worlds, seed, weight: test(
        worlds.value(seed, design, column, weight) / worlds.value(seed, "brokered", column, weight)
    )


def less(value: float) -> bool:
    """Below Brokered."""
    return value < 1


def more(value: float) -> bool:
    """Above Brokered."""
    return value > 1


def congests(design: str, yes: bool) -> Test:
    """Whether a design sends clients to clusters that have more than they can send."""
    return lambda worlds, seed, weight: (worlds.value(seed, design, "congested_share", weight) > 0) == yes


#: What the thesis concludes: where, in words, from which rows, and the test.
CONCLUSIONS: tuple[tuple[str, str, str, Test], ...] = (
    (
        "Table 3.3",
        "several clusters at one price: better scores (2 clusters)",
        "designs",
        beside("multicluster-2", "score_p50", less),
    ),
    ("", "... (100)", "designs", beside("multicluster-100", "score_p50", less)),
    ("", "... at higher cost (2)", "designs", beside("multicluster-2", "cost_p50", more)),
    ("", "... (100)", "designs", beside("multicluster-100", "cost_p50", more)),
    ("", "... and clusters are congested (2)", "designs", congests("multicluster-2", True)),
    ("", "... (100)", "designs", congests("multicluster-100", True)),
    ("", "prices by cluster alone: cheaper", "designs", beside("dynamic-pricing", "cost_p50", less)),
    ("", "... with worse scores", "designs", beside("dynamic-pricing", "score_p50", more)),
    ("", "... and nothing congested", "designs", congests("dynamic-pricing", False)),
    ("", "both without capacities: cheaper than today", "designs", beside("dynamic-multicluster", "cost_p50", less)),
    ("", "... with better scores", "designs", beside("dynamic-multicluster", "score_p50", less)),
    ("", "... and congested", "designs", congests("dynamic-multicluster", True)),
    ("", "with whole capacities: cheaper", "designs", beside("best-lookup", "cost_p50", less)),
    ("", "... with better scores", "designs", beside("best-lookup", "score_p50", less)),
    ("", "... and congested", "designs", congests("best-lookup", True)),
    ("", "the marketplace: cheaper", "designs", beside("marketplace", "cost_p50", less)),
    ("", "... with better scores", "designs", beside("marketplace", "score_p50", less)),
    ("", "... nearer", "designs", beside("marketplace", "distance_km_p50", less)),
    ("", "... and nothing congested", "designs", congests("marketplace", False)),
    (
        *("", "who knows all is the cheapest", "designs"),
        lambda worlds, seed, weight: (
            min(DESIGNS, key=lambda design: worlds.value(seed, design, "cost_p50", weight)) == "omniscient"
        ),
    ),
    (
        *("Figure 3.11", "at one price most networks lose", "networks"),
        lambda worlds, seed, _: worlds.share("networks", seed, "brokered", loses) > 0.5,
    ),
    (
        *("", "... the highly distributed one among them", "networks"),
        lambda worlds, seed, _: loses(worlds.of("networks", seed, "brokered")[0]),
    ),
    (
        *("Figure 3.12", "the marketplace sends more to the highly distributed one", "networks"),
        lambda worlds, seed, _: (
            traffic_share(worlds, seed, "marketplace", 0) > traffic_share(worlds, seed, "brokered", 0)
        ),
    ),
    (
        *("Figure 3.13", "in the marketplace none loses", "networks"),
        lambda worlds, seed, _: worlds.share("networks", seed, "marketplace", loses) == 0,
    ),
    (
        "Figure 3.14",
        "at one price dear countries lose",
        "countries",
        lambda worlds, seed, _: dear_countries_lose(worlds, seed),
    ),
    (
        *("Figure 3.15", "the marketplace avoids the five dearest countries", "countries"),
        lambda worlds, seed, _: dearest(worlds, seed, "marketplace") < dearest(worlds, seed, "brokered"),
    ),
    (
        *("Figure 3.16", "in the marketplace no country loses", "countries"),
        lambda worlds, seed, _: worlds.share("countries", seed, "marketplace", loses) == 0,
    ),
    (
        *("Figure 3.17", "at one price no network of one city loses", "city-networks"),
        lambda worlds, seed, _: (
            not any(loses(row) for row in worlds.of("city-networks", seed, "brokered")[14:] if row["traffic_mbps"] > 0)
        ),
    ),
    (
        *("", "... while others lose", "city-networks"),
        lambda worlds, seed, _: any(loses(row) for row in worlds.of("city-networks", seed, "brokered")[:14]),
    ),
    (
        *("", "... and some of them have no traffic", "city-networks"),
        lambda worlds, seed, _: any(
            row["traffic_mbps"] == 0 for row in worlds.of("city-networks", seed, "brokered")[:14]
        ),
    ),
    (
        *("Figure 3.18", "the marketplace can be cheaper at Brokered's distance", "weights"),
        lambda worlds, seed, _: trade(worlds, seed)[0] > 0,
    ),
    ("", "... or nearer at its cost", "weights", lambda worlds, seed, _: trade(worlds, seed)[1] > 0),
    ("", "... or both", "weights", lambda worlds, seed, _: min(trade(worlds, seed)[2]) > 0),
    (
        "Figure 3.19",
        "the second bid lowers the score the most",
        "bids",
        lambda worlds, seed, _: is_best_step_the_second(worlds, seed),
    ),
    (
        *("", "... and more bids cost more", "bids"),
        lambda worlds, seed, _: bid_scores(worlds, seed, "cost_p50")[-1] > bid_scores(worlds, seed, "cost_p50")[0],
    ),
)


def percent(values: Iterable[float], digits: int = 0) -> str:
    """A mean with its interval, in per cent."""
    mean, half = interval(list(values))
    return f"{100 * mean:.{digits}f} ± {100 * half:.{digits}f}"


def tables(worlds: Worlds) -> str:
    """All tables, as Markdown."""
    lines = []
    if rows := worlds.rows["alternatives"]:
        shares = [percent(row[f"with_{count}"] for row in rows) for count in (1, 2, 3, 4)]
        lines += [
            "| alternatives within 25 % of the best score, Table 3.1 | 1 | 2 | 3 | 4 |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += ["| thesis | 77.8 % | 64.5 % | 53.7 % | 43.8 % |", f"| ours: % | {' | '.join(shares)} |", ""]
    if worlds.rows["designs"]:
        lines += [
            "| Table 3.3, to Brokered: % | cost | thesis | score | thesis | distance | thesis | load | thesis | congested | thesis |"
        ]
        lines += ["| --- " * 11 + "|"]
        for design in DESIGNS:
            cells = [design]
            for number, column in enumerate(COLUMNS[:3]):
                cells += [
                    percent(worlds.beside_brokered(design, column)),
                    f"{100 * THESIS[design][number] / THESIS['brokered'][number]:.0f}",
                ]
            for number, column in enumerate(COLUMNS[3:], 3):
                values = [worlds.value(seed, design, column) for seed in worlds.seeds("designs")]
                cells += [percent(values, 1), str(THESIS[design][number])]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    if worlds.rows["weights"]:
        trades = [trade(worlds, seed) for seed in worlds.seeds("weights")]
        lines += ["| the marketplace beside Brokered, Figure 3.18: % | thesis | ours |", "| --- | --- | --- |"]
        lines += [f"| cheaper, no farther | 44 | {percent(cheaper for cheaper, _, _ in trades)} |"]
        lines += [f"| nearer, no dearer | 74 | {percent(nearer for _, nearer, _ in trades)} |"]
        lines += [f"| at the knee, cheaper | 31 | {percent(knee[0] for _, _, knee in trades)} |"]
        lines += [f"| at the knee, nearer | 40 | {percent(knee[1] for _, _, knee in trades)} |", ""]
    lines += [
        "| conclusion | | worlds in which it holds | cost weighs half | twice |",
        "| --- | --- | --- | --- | --- |",
    ]
    for where, words, name, holds in CONCLUSIONS:
        seeds = worlds.seeds(name)
        weights = SETTINGS["designs"].weights if name == "designs" else (WEIGHT,)
        counts = {weight: sum(holds(worlds, seed, weight) for seed in seeds) for weight in weights}
        others = [str(counts.get(weight, "")) for weight in (WEIGHT / 2, WEIGHT * 2)]
        lines.append(f"| {where} | {words} | {counts[WEIGHT]} of {len(seeds)} | {' | '.join(others)} |")
    return "\n".join([*lines, "", *several_table(worlds), "", *lies_table(worlds)])


def several_table(worlds: Worlds) -> list[str]:
    """What several brokers do to each other."""
    rows = [*worlds.rows["several"], *worlds.rows["asked"]]
    lines = [
        "| brokers | design | kept for others | overloaded % | no room % | cost | score | surprise % | void % |",
        "| --- " * 9 + "|",
    ]
    for key in dict.fromkeys((row["brokers"], row["design"], row["reserve"]) for row in rows):
        those = [row for row in rows if (row["brokers"], row["design"], row["reserve"]) == key]
        shares = [percent((row[column] for row in those), 1) for column in ("overloaded_share", "unserved_share")]
        means = [f"{statistics.fmean(row[column] for row in those):.2f}" for column in ("cost_mean", "score_mean")]
        rest = [percent((row[column] for row in those), 1) for column in ("surprise_share", "void_share")]
        lines.append(f"| {key[0]:.0f} | {key[1]} | {key[2]} | {' | '.join([*shares, *means, *rest])} |")
    return lines


def lies_table(worlds: Worlds) -> list[str]:
    """What networks gain by their best lie about costs, by either rule; and what comes of false capacities."""
    lines = [
        "| design | networks that gain by a lie | by the best lie, of honest profit % | gain by a lie under Clarke's rule | by the best lie, of honest profit % |",
        "| --- " * 5 + "|",
    ]
    rows = worlds.rows["lies"]
    for design in dict.fromkeys(row["design"] for row in rows):
        games: dict[tuple[float, float], list[Row]] = {}
        for row in rows:
            if row["design"] == design:
                games.setdefault((row["seed"], row["network"]), []).append(row)
        gains: dict[str, list[float]] = {"as_bid": [], "clarke": []}
        profits = []
        for game in games.values():
            # Honest is the markup that all have; by Clarke's rule it is the cost itself.
            honest = {
                rule: next(row for row in game if row["price"] == price)
                for rule, price in (("as_bid", 1.2), ("clarke", 1.0))
            }
            for rule, found in gains.items():
                found.append(max(row[rule] for row in game) - honest[rule][rule])
            profits.append(honest["as_bid"]["as_bid"])
        whole = sum(map(abs, profits))
        # Less than a thousandth of all profits is the optimiser's noise.
        noise = 1e-3 * whole / len(profits)
        counts = {rule: sum(gain > noise for gain in found) / len(found) for rule, found in gains.items()}
        shares = {rule: 100 * sum(found) / whole for rule, found in gains.items()}
        lines.append(
            f"| {design} | {100 * counts['as_bid']:.0f} % | {shares['as_bid']:.0f} | {100 * counts['clarke']:.0f} % | {shares['clarke']:.2f} |"
        )
    lines += [
        "",
        "| claims of what clusters can send | profit to honest % | of its traffic cannot be sent % |",
        "| --- | --- | --- |",
    ]
    claims = worlds.rows["claims"]
    for claim in dict.fromkeys(row["claim"] for row in claims):
        those = [row for row in claims if row["claim"] == claim]
        honest = sum(row["as_bid"] for row in claims if row["claim"] == 1)
        over = [row["overloaded_share"] for row in those if row["traffic_mbps"] > 0]
        lines.append(
            f"| {claim:g} | {100 * sum(row['as_bid'] for row in those) / honest:.0f} | {100 * statistics.fmean(over):.1f} |"
        )
    return lines


def table(args: argparse.Namespace) -> int:
    """Prints the tables."""
    print(tables(Worlds(args.rows)))
    print("\n".join(["", *speed_table(read_speed(args.rows))]))
    return 0


def by_number(
    worlds: Worlds, name: str, design: str, value: Callable[[Row], float], order: Callable[[Row], float]
) -> list[float]:
    """The mean over worlds of each account's value, accounts in an order of their own in each world."""
    columns: list[list[float]] = []
    for seed in worlds.seeds(name):
        rows = sorted((row for row in worlds.of(name, seed, design) if row["clusters"]), key=order)
        for place, row in enumerate(rows):
            if place == len(columns):
                columns.append([])
            columns[place].append(value(row))
    return [statistics.fmean(column) for column in columns]


def draw(args: argparse.Namespace) -> int:
    """Draws Figures 3.11 to 3.19 and what searches took, two themes each."""
    from anabranch_lab.figures import THEMES, add_legend, name_axes, panels, save

    worlds = Worlds(args.rows)
    both = ("brokered", "marketplace")

    def bars(
        axes: Any,
        theme: str,
        name: str,
        value: Callable[[Row], float],
        order: Callable[[Row], float],
        designs: tuple[str, ...],
    ) -> None:
        for number, design in enumerate(designs):
            values = by_number(worlds, name, design, value, order)
            width = 0.8 / len(designs)
            at = [place + 1 + (number - (len(designs) - 1) / 2) * width for place in range(len(values))]
            axes.bar(at, values, width, color=THEMES[theme].lines[number], label=design)
        axes.axhline(0, color=THEMES[theme].lines[0], linewidth=0.5)

    def accounts(theme: str) -> Any:
        canvas, grid = panels(theme, 2, 3, size=(12.0, 7.0))
        for line, name, order, x in (
            (grid[0], "networks", lambda row: -float(row["clusters"]), "network, the one with the most clusters first"),
            (grid[1], "countries", lambda row: -float(row["cost_per_mbps"]), "country, the dearest first"),
        ):
            bars(line[0], theme, name, lambda row: row["paid"] / row["cost"] if row["cost"] else 0.0, order, both[:1])
            line[0].axhline(1, color=THEMES[theme].lines[1], linewidth=1, linestyle="--")
            name_axes(line[0], theme, title="paid for each unit of cost, Brokered", x=x)
            bars(line[1], theme, name, lambda row: float(row["traffic_mbps"]) / 1e3, order, both)
            name_axes(line[1], theme, title="traffic: Gbit/s", x=x)
            bars(line[2], theme, name, lambda row: float(row["profit"]) / 1e3, order, both)
            name_axes(line[2], theme, title="profit: thousands", x=x)
        add_legend(canvas, theme, columns=2)
        return canvas

    def city(theme: str) -> Any:
        canvas, grid = panels(theme, 1, 1, size=(7.0, 3.6))
        axes = grid[0][0]
        for number, design in enumerate(both):
            profits = [
                statistics.fmean(
                    float(worlds.of("city-networks", seed, design)[network]["profit"]) / 1e3
                    for seed in worlds.seeds("city-networks")
                )
                for network in range(14)
            ]
            rest = [
                statistics.fmean(float(row["profit"]) / 1e3 for row in worlds.of("city-networks", seed, design)[14:])
                for seed in worlds.seeds("city-networks")
            ]
            values = [*profits, statistics.fmean(rest)]
            axes.bar(
                [place + 1 + (number - 0.5) * 0.4 for place in range(15)],
                values,
                0.4,
                color=THEMES[theme].lines[number],
                label=design,
            )
        axes.set_xticks(range(1, 16), [*(str(number) for number in range(1, 15)), "city"])
        name_axes(
            axes,
            theme,
            title="profit beside 200 networks of one city: thousands",
            x="network; the mean of those of one city",
        )
        add_legend(canvas, theme, columns=2)
        return canvas

    def tradeoff(theme: str) -> Any:
        canvas, grid = panels(theme, 1, 2, size=(11.0, 3.8))
        for number, design in enumerate(SETTINGS["weights"].designs):
            curves = [curve(worlds, seed, design) for seed in worlds.seeds("weights")]
            points = [
                tuple(statistics.fmean(axis) for axis in zip(*at, strict=True)) for at in zip(*curves, strict=True)
            ]
            grid[0][0].plot(
                *zip(*points, strict=True), color=THEMES[theme].lines[number], marker="o", markersize=3, label=design
            )
        name_axes(grid[0][0], theme, title="median distance: km", x="median cost")
        for number, column in enumerate(("cost_p50", "score_p50")):
            values = [bid_scores(worlds, seed, column) for seed in worlds.seeds("bids")]
            means = [statistics.fmean(value[place] / value[0] for value in values) for place in range(len(BIDS))]
            grid[0][1].plot(
                BIDS,
                means,
                color=THEMES[theme].lines[number],
                marker="o",
                markersize=3,
                label=("cost", "score")[number],
            )
        grid[0][1].set_xscale("log")
        name_axes(
            grid[0][1], theme, title="median cost and score, to those with one bid", x="bids of a network for a place"
        )
        grid[0][1].legend(frameon=False, labelcolor=THEMES[theme].ink)
        add_legend(canvas, theme, columns=6)
        return canvas

    def searches(theme: str) -> Any:
        canvas, grid = panels(theme, 1, 2, size=(11.0, 3.8))
        rows = sorted(read_speed(args.rows), key=lambda row: float(row["sessions"]))
        look = THEMES[theme]
        for number, (whose, name) in enumerate((("", "ours"), ("peer_", "HiGHS"))):
            for capacity, words, line in zip(CAPACITIES, ("as published", "a twentieth"), ("-", "--"), strict=True):
                those = [row for row in rows if row["capacity"] == capacity and row[f"{whose}cpu_s"] is not None]
                for axes, column, unit in ((grid[0][0], "cpu_s", 1.0), (grid[0][1], "rss_bytes", 1e6)):
                    axes.plot(
                        [row["sessions"] for row in those],
                        [row[f"{whose}{column}"] / unit for row in those],
                        color=look.lines[number],
                        linestyle=line,
                        marker="o",
                        markersize=3,
                        label=f"{name}, capacities {words}",
                    )
        for axes, title in ((grid[0][0], "processor seconds of a search"), (grid[0][1], "memory: MB")):
            axes.set_xscale("log")
            axes.set_yscale("log")
            name_axes(axes, theme, title=title, x="viewers")
        add_legend(canvas, theme, columns=4)
        return canvas

    figures = (("accounts", accounts), ("city-networks", city), ("tradeoff", tradeoff), ("speed", searches))
    for name, make in figures:
        for theme in THEMES:
            path = args.folder / f"{name}{'' if theme == 'light' else '-dark'}.svg"
            save(make(theme), path, {})
            print(path)
    return 0


#: The thesis's viewers, and decades and halves of them around.
SESSIONS = (1_000, 3_162, 10_000, 31_623, 33_400, 100_000, 316_228, 500_000, 1_000_000)
CAPACITIES = (1.0, 0.05)
#: Beyond so many viewers HiGHS is not asked.
PEER_SESSIONS_MAX = 33_400
#: What is measured, by the files that it depends on.
OPTIMISER = tuple(f"crates/broker-proto/src/{name}.rs" for name in ("optimiser", "branch"))
PEER_COLUMNS = ("name", "version", "cost", "gap", "cpu_s", "rss_bytes", "ended")
SPEED_COLUMNS = (
    *("commit", "sessions", "capacity", "clusters", "variables", "unserved", "cost", "gap", "cpu_s", "rss_bytes"),
    *(f"peer_{column}" for column in PEER_COLUMNS),
)


def read_speed(folder: pathlib.Path) -> list[Row]:
    """What searches took, with numbers as numbers; what was not measured is none."""
    path = path_of(folder, "speed")
    if not path.exists():
        return []
    words = ("commit", "peer_name", "peer_version", "peer_ended")
    with path.open(newline="") as file:
        rows: list[Row] = [dict(row) for row in csv.DictReader(file)]

    def read_value(column: str, value: str) -> str | float | int | None:
        if not value or column in words:
            return value or None
        return int(value) if value.isdigit() else float(value)

    return [{column: read_value(column, value) for column, value in row.items()} for row in rows]


def rounded(row: Row) -> Row:
    """A row with as many digits as mean something."""
    is_rounded = {key: key.endswith(("gap", "cpu_s")) and value is not None for key, value in row.items()}
    return {key: float(f"{value:.4g}") if is_rounded[key] else value for key, value in row.items()}


def speed(args: argparse.Namespace) -> int:
    """Measures all instances. Of one that is there the faster row stays, as machines are shared; HiGHS solves each once."""
    args.rows.mkdir(parents=True, exist_ok=True)
    rows = {(row["sessions"], row["capacity"]): row for row in read_speed(args.rows)}
    last = ["git", "log", "-1", "--format=%h", "--", *OPTIMISER]
    commit = subprocess.run(last, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()
    for sessions in args.sessions:
        for capacity in args.capacity:
            before = rows.get((sessions, capacity), {})
            command = [str(args.xtask), "bench", "broker", "--json", "--turns", str(args.turns)]
            command += ["--sessions", str(sessions), "--capacity", str(capacity)]
            if args.peer and sessions <= PEER_SESSIONS_MAX and not before.get("peer_name"):
                command += ["--peer", str(args.peer), "--peer-seconds", str(args.peer_seconds)]
            (row,) = evaluate(command)
            of_peer = rounded({f"peer_{column}": value for column, value in (row.pop("peer") or {}).items()})
            new = rounded(row) | {"commit": commit}
            is_faster = before.get("commit") != commit or new["cpu_s"] < before["cpu_s"]
            row = before | (new if is_faster else {}) | of_peer
            rows[sessions, capacity] = row
            with path_of(args.rows, "speed").open("w", newline="") as file:
                writer = csv.DictWriter(file, SPEED_COLUMNS, extrasaction="ignore", lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows[instance] for instance in sorted(rows, key=lambda one: (one[0], -one[1])))
            print(f"speed: {sessions} at {capacity}: {new['cpu_s']} s, the best {row['cpu_s']}", flush=True)
    return 0


def speed_table(rows: list[Row]) -> list[str]:
    """What searches took, and HiGHS on the same programs."""
    lines = [
        "| viewers | capacity | variables | from the best at most | CPU s | memory | HiGHS: from the best at most | CPU s | memory | ended | ours costs more by |",
        "| ---: | --- " + "| ---: " * 7 + "| --- | ---: |",
    ]
    for row in rows:
        cells = [f"{row['sessions']:,.0f}", "as published" if row["capacity"] == 1 else f"{row['capacity']:g} of it"]
        cells += [f"{row['variables']:,.0f}", *speed_cells(row, "")]
        cells += [*speed_cells(row, "peer_"), row["peer_ended"]] if row["peer_name"] else [""] * 4
        # Without the sign of a zero.
        cells += [f"{round(100 * (row['cost'] / row['peer_cost'] - 1), 4) + 0.0:.4f} %"] if row["peer_cost"] else [""]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def speed_cells(row: Row, whose: str) -> list[str]:
    """How near, how fast and in how much memory."""
    gap = row[f"{whose}gap"]
    near = "no answer" if gap is None else f"{100 * gap:.2g} %" if gap else "0"
    return [near, f"{row[f'{whose}cpu_s']:.3g}", f"{row[f'{whose}rss_bytes'] / 1e6:,.0f} MB"]


def smoke(args: argparse.Namespace) -> int:
    """A small world of each setting."""
    for name, setting in SETTINGS.items():
        command = setting.command(args.binary, 1, 2_000 if setting.verb == "evaluate" else 300)
        rows = evaluate(command + (["--rounds", "10"] if setting.verb == "several" else []))
        if not rows:
            raise SystemExit(f"run.py: {name}: no rows")
        for row in rows:
            if "cost_p50" in row and not (
                row["cost_p50"] > 0 and 0 <= row["gap_share"] < 0.05 and row["unserved"] == 0
            ):
                raise SystemExit(f"run.py: {name}: {row}")
            if (
                "cost_p50" in row
                and row["design"].startswith(("marketplace", "omniscient"))
                and row["congested_share"] > 0
            ):
                raise SystemExit(
                    f"run.py: {name}: a cluster has more than it can send though its capacity was known: {row}"
                )
            if "profit" in row and row["design"] == "marketplace" and row["profit"] < 0:
                raise SystemExit(f"run.py: {name}: paid less than it costs though it set the price: {row}")
    print(f"broker: {len(SETTINGS)} settings make sense")
    return 0


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    binary = {"type": pathlib.Path, "default": ROOT / "target" / "release" / "anabranch"}
    verb = verbs.add_parser("all")
    verb.add_argument("--rows", type=pathlib.Path, default=ROOT / "runs" / "broker")
    verb.add_argument("--binary", **binary)
    verb.add_argument("--setting", action="append", choices=SETTINGS)
    verb.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    verb.add_argument("--sessions", type=int, help="clients of a world, in place of the thesis's 33,400")
    verb.add_argument("--jobs", type=int, default=2)
    for name in ("table", "draw"):
        shown = verbs.add_parser(name)
        shown.add_argument("--rows", type=pathlib.Path, default=HERE / "measured")
        if name == "draw":
            shown.add_argument("--folder", type=pathlib.Path, default=HERE)
    measured = verbs.add_parser("speed")
    measured.add_argument("--rows", type=pathlib.Path, default=ROOT / "runs" / "broker")
    measured.add_argument("--xtask", type=pathlib.Path, default=ROOT / "target" / "release" / "xtask")
    measured.add_argument("--sessions", type=int, nargs="+", default=SESSIONS)
    measured.add_argument("--capacity", type=float, nargs="+", default=CAPACITIES)
    measured.add_argument("--turns", type=int, default=5, help="of each search; the best counts")
    measured.add_argument("--peer", type=pathlib.Path, help="a Python that has highspy")
    measured.add_argument("--peer-seconds", type=float, default=120.0, help="HiGHS is stopped after so long")
    verbs.add_parser("smoke").add_argument("--binary", **binary)
    args = parser.parse_args()
    return {"all": run_all, "table": table, "draw": draw, "speed": speed, "smoke": smoke}[args.verb](args)


if __name__ == "__main__":
    sys.exit(main())
