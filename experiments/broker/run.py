"""Designs for joint decisions of content networks and a broker, in random worlds: the thesis's
Tables 3.1 and 3.3, Figures 3.11 to 3.19; several brokers, and networks that lie.

``run.py all`` runs every setting on every seed and writes rows to a folder, a file for each
setting; seeds that have rows are not run again. ``run.py table`` prints the thesis's tables
beside our values, and the number of seeds on which each of its conclusions holds. ``run.py draw``
draws the figures. ``run.py speed`` measures the optimiser on markets with growing numbers of
viewers, and HiGHS too where ``--peer`` names a Python that has highspy. ``run.py smoke`` runs a
small world of each setting and checks that its rows are plausible. ``table`` and ``draw`` need the
lab's environment.

Read first: `SETTINGS`, `CONCLUSIONS`.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, XTASK, Experiment, Option, Row, Rows, commit, grouped, measure, product, read_csv, repeatable, table, write_csv
from anabranch_lab.programs import json_lines

LAB = Experiment(__file__, __doc__)
SEEDS = tuple(range(1, 21))
#: Weight of cost in Table 3.3; the thesis does not state its value.
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
    """Runs of one verb with one set of arguments.

    Attributes
    ----------
    verb
        Verb of `anabranch broker`.
    arguments
        Arguments after the verb.
    designs, weights
        Designs and weights of cost that `evaluate` runs on each seed.
    sessions
        Clients of a world; the verb's default if left out.
    seeds
        Number of seeds that are run.
    """

    verb: str
    arguments: tuple[str, ...] = ()
    designs: tuple[str, ...] = ()
    weights: tuple[float, ...] = (WEIGHT,)
    sessions: int | None = None
    seeds: int = len(SEEDS)

    def command(self, binary: Path, seed: int, sessions: int | None) -> list[object]:
        """The command for one seed."""
        command = [binary, "-q", "broker", self.verb, "--json", "--seed", seed, *self.arguments]
        if self.verb == "evaluate":
            command += ["--design", *self.designs, "--cost-weight", *self.weights]
        sessions = sessions or self.sessions
        return command + (["--sessions", sessions] if sessions else [])


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


def read(folder: Path, name: str) -> list[Row]:
    """Read the rows of a setting, with numbers as numbers."""
    words = ("design", "reserve")
    rows = read_csv(folder / f"{name}.csv")
    return [{column: value if column in words else float(value) for column, value in row.items()} for row in rows]


@LAB.verb(
    "all",
    rows=LAB.runs,
    binary=BINARY,
    setting=repeatable(SETTINGS),
    seeds=SEEDS,
    sessions=Option(kind=int, help="clients of a world, in place of the thesis's 33,400"),
    jobs=2,
)
def all_settings(args) -> int:
    """Runs the seeds that have no rows yet, a file for each setting."""
    codes = []
    for name in args.setting or SETTINGS:
        setting = SETTINGS[name]

        def run(cell: Row, setting: Setting = setting) -> list[Row]:
            rows = json_lines(setting.command(args.binary, cell["seed"], args.sessions))
            return [{key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()} for row in rows]

        rows = Rows(args.rows / f"{name}.csv", ["seed"], line_end="\n")
        cells = product(seed=args.seeds[: setting.seeds])
        codes.append(measure(rows, cells, run, args.jobs, lambda rows, name=name: f"{name}: seed {rows[0]['seed']}: {len(rows)} rows"))
    return max(codes)


# Reading of rows.


class Worlds:
    """Rows of all settings, for each seed's world."""

    def __init__(self, folder: Path) -> None:
        self.rows = {name: read(folder, name) for name in SETTINGS}

    def seeds(self, name: str) -> list[int]:
        """The seeds of a setting."""
        return sorted({int(row["seed"]) for row in self.rows[name]})

    def of(self, name: str, seed: int, design: str, weight: float | None = None) -> list[Row]:
        """The rows of a design on one seed."""
        return [
            row
            for row in self.rows[name]
            if row["seed"] == seed and row["design"] == design and (weight is None or row["cost_weight"] == weight)
        ]

    def value(self, seed: int, design: str, column: str, weight: float = WEIGHT) -> float:
        """A value of Table 3.3 in one world."""
        return float(self.of("designs", seed, design, weight)[0][column])

    def beside_brokered(self, design: str, column: str) -> list[float]:
        """A design's values, world by world, as multiples of Brokered's."""
        return [self.value(seed, design, column) / self.value(seed, "brokered", column) for seed in self.seeds("designs")]

    def share(self, name: str, seed: int, design: str, holds: Callable[[Row], bool]) -> float:
        """The share of a world's accounts with traffic for which `holds` is true."""
        rows = [row for row in self.of(name, seed, design) if row["traffic_mbps"] > 0]
        return sum(map(holds, rows)) / len(rows)


#: Values of Table 3.3 in the thesis: cost, score, distance, load, and congested in per cent.
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
    """Whether an account is paid less than its cost."""
    return float(row["paid"]) < float(row["cost"])


def dearest(worlds: Worlds, seed: int, design: str, count: int = 5) -> float:
    """The share of traffic that leaves from clusters in the dearest countries."""
    rows = worlds.of("countries", seed, design)
    total = sum(row["traffic_mbps"] for row in rows)
    rows = sorted((row for row in rows if row["clusters"]), key=lambda row: -float(row["cost_per_mbps"]))
    return float(sum(row["traffic_mbps"] for row in rows[:count]) / total)


def ranks(values: list[float]) -> list[float]:
    """Return the rank of each value among all values."""
    order = sorted(range(len(values)), key=values.__getitem__)
    return [float(order.index(number)) for number in range(len(values))]


def dear_countries_lose(worlds: Worlds, seed: int) -> bool:
    """Whether, with one price, dearer countries get less of their cost paid: Spearman's rank
    correlation below -0.5."""
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
    """Return the marketplace's largest saving in cost without a longer distance than Brokered's in
    the table, its largest saving in distance without a higher cost, and both savings at the weight
    where the smaller of the two is greatest."""
    (before,) = worlds.of("weights", seed, "brokered", WEIGHT)
    cost, distance = float(before["cost_p50"]), float(before["distance_km_p50"])
    points = curve(worlds, seed, "marketplace")
    cheaper = max((1 - c / cost for c, d in points if d <= distance), default=0.0)
    nearer = max((1 - d / distance for c, d in points if c <= cost), default=0.0)
    knee = max(((1 - c / cost, 1 - d / distance) for c, d in points), key=min)
    return cheaper, nearer, knee


def bid_scores(worlds: Worlds, seed: int, column: str) -> list[float]:
    """Return a column's median at each number of bids."""
    designs = SETTINGS["bids"].designs
    return [float(worlds.of("bids", seed, design)[0][column]) for design in designs]


def is_best_step_the_second(worlds: Worlds, seed: int) -> bool:
    """Whether no later increase of the bids lowers the score as much as the second bid does."""
    scores = bid_scores(worlds, seed, "score_p50")
    drops = [a - b for a, b in zip(scores, scores[1:], strict=False)]
    return drops[0] >= max(drops[1:])


#: A test of one world; the weight of cost varies for Table 3.3 and is fixed for all other settings.
Test = Callable[["Worlds", int, float], bool]


def beside(design: str, column: str, is_less: bool) -> Test:
    """Make a test whether a value is below (or else above) Brokered's."""

    def test(worlds: Worlds, seed: int, weight: float) -> bool:
        ratio = worlds.value(seed, design, column, weight) / worlds.value(seed, "brokered", column, weight)
        return ratio < 1 if is_less else ratio > 1

    return test


def congests(design: str, yes: bool) -> Test:
    """Make a test whether a design sends clients to clusters beyond their capacity, or does not."""
    return lambda worlds, seed, weight: (worlds.value(seed, design, "congested_share", weight) > 0) == yes


def is_omniscient_cheapest(worlds: Worlds, seed: int, weight: float) -> bool:
    """Whether no design costs less than the omniscient one."""
    return min(DESIGNS, key=lambda design: worlds.value(seed, design, "cost_p50", weight)) == "omniscient"


def loser_share(name: str, design: str, test: Callable[[float], bool]) -> Test:
    """Make a test of the share of accounts that lose."""
    return lambda worlds, seed, _: test(worlds.share(name, seed, design, loses))


def favours_distributed(worlds: Worlds, seed: int, _: float) -> bool:
    """Whether the marketplace sends more to the highly distributed network than Brokered does."""
    return traffic_share(worlds, seed, "marketplace", 0) > traffic_share(worlds, seed, "brokered", 0)


def avoids_dearest(worlds: Worlds, seed: int, _: float) -> bool:
    """Whether less traffic leaves from the five dearest countries than with Brokered."""
    return dearest(worlds, seed, "marketplace") < dearest(worlds, seed, "brokered")


def city(part: slice, test: Callable[[list[Row]], bool]) -> Test:
    """Make a test of a part of the networks in the world with one-city networks, with Brokered."""
    return lambda worlds, seed, _: test(worlds.of("city-networks", seed, "brokered")[part])


def more_bids_cost_more(worlds: Worlds, seed: int, _: float) -> bool:
    """Whether the largest number of bids costs more than one bid."""
    scores = bid_scores(worlds, seed, "cost_p50")
    return scores[-1] > scores[0]


#: Slices of the rows of networks: the global networks, and the networks of one city.
GLOBAL, CITY = slice(None, 14), slice(14, None)
#: Conclusions of the thesis by setting: table or figure, text, and test.
CONCLUSIONS: dict[str, tuple[tuple[str, str, Test], ...]] = {
    "designs": (
        ("Table 3.3", "several clusters at one price: better scores (2 clusters)", beside("multicluster-2", "score_p50", True)),
        ("", "... (100)", beside("multicluster-100", "score_p50", True)),
        ("", "... at higher cost (2)", beside("multicluster-2", "cost_p50", False)),
        ("", "... (100)", beside("multicluster-100", "cost_p50", False)),
        ("", "... and clusters are congested (2)", congests("multicluster-2", True)),
        ("", "... (100)", congests("multicluster-100", True)),
        ("", "prices by cluster alone: cheaper", beside("dynamic-pricing", "cost_p50", True)),
        ("", "... with worse scores", beside("dynamic-pricing", "score_p50", False)),
        ("", "... and nothing congested", congests("dynamic-pricing", False)),
        ("", "both without capacities: cheaper than today", beside("dynamic-multicluster", "cost_p50", True)),
        ("", "... with better scores", beside("dynamic-multicluster", "score_p50", True)),
        ("", "... and congested", congests("dynamic-multicluster", True)),
        ("", "with whole capacities: cheaper", beside("best-lookup", "cost_p50", True)),
        ("", "... with better scores", beside("best-lookup", "score_p50", True)),
        ("", "... and congested", congests("best-lookup", True)),
        ("", "the marketplace: cheaper", beside("marketplace", "cost_p50", True)),
        ("", "... with better scores", beside("marketplace", "score_p50", True)),
        ("", "... nearer", beside("marketplace", "distance_km_p50", True)),
        ("", "... and nothing congested", congests("marketplace", False)),
        ("", "who knows all is the cheapest", is_omniscient_cheapest),
    ),
    "networks": (
        ("Figure 3.11", "at one price most networks lose", loser_share("networks", "brokered", lambda share: share > 0.5)),
        ("", "... the highly distributed one among them", lambda worlds, seed, _: loses(worlds.of("networks", seed, "brokered")[0])),
        ("Figure 3.12", "the marketplace sends more to the highly distributed one", favours_distributed),
        ("Figure 3.13", "in the marketplace none loses", loser_share("networks", "marketplace", lambda share: share == 0)),
    ),
    "countries": (
        ("Figure 3.14", "at one price dear countries lose", lambda worlds, seed, _: dear_countries_lose(worlds, seed)),
        ("Figure 3.15", "the marketplace avoids the five dearest countries", avoids_dearest),
        ("Figure 3.16", "in the marketplace no country loses", loser_share("countries", "marketplace", lambda share: share == 0)),
    ),
    "city-networks": (
        (
            *("Figure 3.17", "at one price no network of one city loses"),
            city(CITY, lambda rows: not any(loses(row) for row in rows if row["traffic_mbps"] > 0)),
        ),
        ("", "... while others lose", city(GLOBAL, lambda rows: any(map(loses, rows)))),
        ("", "... and some of them have no traffic", city(GLOBAL, lambda rows: any(row["traffic_mbps"] == 0 for row in rows))),
    ),
    "weights": (
        ("Figure 3.18", "the marketplace can be cheaper at Brokered's distance", lambda worlds, seed, _: trade(worlds, seed)[0] > 0),
        ("", "... or nearer at its cost", lambda worlds, seed, _: trade(worlds, seed)[1] > 0),
        ("", "... or both", lambda worlds, seed, _: min(trade(worlds, seed)[2]) > 0),
    ),
    "bids": (
        ("Figure 3.19", "the second bid lowers the score the most", lambda worlds, seed, _: is_best_step_the_second(worlds, seed)),
        ("", "... and more bids cost more", more_bids_cost_more),
    ),
}


def percent(values: Iterable[float], digits: int = 0) -> str:
    """Return a mean with its interval, in per cent."""
    from anabranch_lab.stats import interval

    mean, half = interval(values)
    return f"{100 * mean:.{digits}f} ± {100 * half:.{digits}f}"


def tables(worlds: Worlds) -> list[str]:
    """Return all tables of rows, as Markdown."""
    made = []
    if rows := worlds.rows["alternatives"]:
        shares = [percent(row[f"with_{count}"] for row in rows) for count in (1, 2, 3, 4)]
        head = ["alternatives within 25 % of the best score, Table 3.1", "1", "2", "3", "4"]
        made.append(table(head, [["thesis", "77.8 %", "64.5 %", "53.7 %", "43.8 %"], ["ours: %", *shares]]))
    if worlds.rows["designs"]:
        head = [word for name in ("cost", "score", "distance", "load", "congested") for word in (name, "thesis")]
        lines = []
        for design in DESIGNS:
            cells = [design]
            for number, column in enumerate(COLUMNS[:3]):
                cells += [percent(worlds.beside_brokered(design, column)), f"{100 * THESIS[design][number] / THESIS['brokered'][number]:.0f}"]
            for number, column in enumerate(COLUMNS[3:], 3):
                values = [worlds.value(seed, design, column) for seed in worlds.seeds("designs")]
                cells += [percent(values, 1), str(THESIS[design][number])]
            lines.append(cells)
        made.append(table(["Table 3.3, to Brokered: %", *head], lines))
    if worlds.rows["weights"]:
        trades = [trade(worlds, seed) for seed in worlds.seeds("weights")]
        lines = [
            ["cheaper, no farther", 44, percent(cheaper for cheaper, _, _ in trades)],
            ["nearer, no dearer", 74, percent(nearer for _, nearer, _ in trades)],
            ["at the knee, cheaper", 31, percent(knee[0] for _, _, knee in trades)],
            ["at the knee, nearer", 40, percent(knee[1] for _, _, knee in trades)],
        ]
        made.append(table(["the marketplace beside Brokered, Figure 3.18: %", "thesis", "ours"], lines))
    lines = []
    for name, conclusions in CONCLUSIONS.items():
        seeds = worlds.seeds(name)
        weights = SETTINGS["designs"].weights if name == "designs" else (WEIGHT,)
        for where, words, holds in conclusions:
            counts = {weight: sum(holds(worlds, seed, weight) for seed in seeds) for weight in weights}
            others = [counts.get(weight, "") for weight in (WEIGHT / 2, WEIGHT * 2)]
            lines.append([where, words, f"{counts[WEIGHT]} of {len(seeds)}", *others])
    made.append(table(["conclusion", "", "worlds in which it holds", "cost weighs half", "twice"], lines))
    return [*made, several_table(worlds), *lies_tables(worlds)]


def several_table(worlds: Worlds) -> str:
    """Return the table of the effects that several brokers have on each other."""
    lines = []
    for key, rows in grouped([*worlds.rows["several"], *worlds.rows["asked"]], "brokers", "design", "reserve").items():
        shares = [percent((row[column] for row in rows), 1) for column in ("overloaded_share", "unserved_share")]
        means = [f"{statistics.fmean(row[column] for row in rows):.2f}" for column in ("cost_mean", "score_mean")]
        rest = [percent((row[column] for row in rows), 1) for column in ("surprise_share", "void_share")]
        lines.append([f"{key[0]:.0f}", *key[1:], *shares, *means, *rest])
    head = ["brokers", "design", "kept for others", "overloaded %", "no room %", "cost", "score", "surprise %", "void %"]
    return table(head, lines)


def lies_tables(worlds: Worlds) -> list[str]:
    """Return tables of the gain of networks from their best lie about costs, by either rule, and of the
    effect of false capacities."""
    lines = []
    for (design,), rows in grouped(worlds.rows["lies"], "design").items():
        games = grouped(rows, "seed", "network").values()
        # Honest is the markup that all networks have; by Clarke's rule it is the cost itself.
        honest = {
            rule: [next(row[rule] for row in game if row["price"] == price) for game in games]
            for rule, price in (("as_bid", 1.2), ("clarke", 1.0))
        }
        whole = sum(map(abs, honest["as_bid"]))
        # A difference below a thousandth of all profits is the optimiser's noise.
        noise = 1e-3 * whole / len(games)
        cells = [design]
        for (rule, profits), digits in zip(honest.items(), (0, 2), strict=True):
            gains = [max(row[rule] for row in game) - profit for game, profit in zip(games, profits, strict=True)]
            cells.append(f"{100 * (sum(gain > noise for gain in gains) / len(gains)):.0f} %")
            cells.append(f"{100 * sum(gains) / whole:.{digits}f}")
        lines.append(cells)
    gain = "by the best lie, of honest profit %"
    made = [table(["design", "networks that gain by a lie", gain, "gain by a lie under Clarke's rule", gain], lines)]
    claims, lines = worlds.rows["claims"], []
    honest_profit = sum(row["as_bid"] for row in claims if row["claim"] == 1)
    for (claim,), rows in grouped(claims, "claim").items():
        over = [row["overloaded_share"] for row in rows if row["traffic_mbps"] > 0]
        profit = sum(row["as_bid"] for row in rows)
        lines.append([f"{claim:g}", f"{100 * profit / honest_profit:.0f}", f"{100 * statistics.fmean(over):.1f}"])
    head = ["claimed capacity, factor", "profit to honest %", "share of traffic that cannot be sent %"]
    return [*made, table(head, lines)]


@LAB.verb("table", rows=LAB.folder / "measured")
def show_tables(args) -> None:
    """Prints the tables."""
    print("\n\n".join([*tables(Worlds(args.rows)), speed_table(read_speed(args.rows))]))


def by_number(worlds: Worlds, name: str, design: str, value: Callable[[Row], float], order: Callable[[Row], float]) -> list[float]:
    """Return the mean over worlds of each account's value; accounts are sorted by `order` within each
    world."""
    columns: list[list[float]] = []
    for seed in worlds.seeds(name):
        rows = sorted((row for row in worlds.of(name, seed, design) if row["clusters"]), key=order)
        columns += [[] for _ in range(len(rows) - len(columns))]
        for column, row in zip(columns, rows, strict=False):
            column.append(value(row))
    return [statistics.fmean(column) for column in columns]


@LAB.verb(rows=LAB.folder / "measured", folder=LAB.folder)
def draw(args) -> None:
    """Draws Figures 3.11 to 3.19 and the CPU time of searches, each in two themes."""
    from anabranch_lab.figures import THEMES, add_legend, name_axes, panels, save_themed

    worlds = Worlds(args.rows)

    def bars(axes: Any, theme: str, designs: dict[str, list[float]]) -> None:
        width = 0.8 / len(designs)
        for number, (design, values) in enumerate(designs.items()):
            at = [place + 1 + (number - (len(designs) - 1) / 2) * width for place in range(len(values))]
            axes.bar(at, values, width, color=THEMES[theme].lines[number], label=design)

    def accounts(theme: str) -> Any:
        canvas, grid = panels(theme, 2, 3, size=(12.0, 7.0))
        for line, name, order, x in (
            (grid[0], "networks", lambda row: -float(row["clusters"]), "network, the one with the most clusters first"),
            (grid[1], "countries", lambda row: -float(row["cost_per_mbps"]), "country, the dearest first"),
        ):
            for axes, designs, value, title in (
                (line[0], BOTH[:1], lambda row: row["paid"] / row["cost"] if row["cost"] else 0.0, "paid for each unit of cost, Brokered"),
                (line[1], BOTH, lambda row: float(row["traffic_mbps"]) / 1e3, "traffic: Gbit/s"),
                (line[2], BOTH, lambda row: float(row["profit"]) / 1e3, "profit: thousands"),
            ):
                bars(axes, theme, {design: by_number(worlds, name, design, value, order) for design in designs})
                axes.axhline(0, color=THEMES[theme].lines[0], linewidth=0.5)
                name_axes(axes, theme, title=title, x=x)
            line[0].axhline(1, color=THEMES[theme].lines[1], linewidth=1, linestyle="--")
        add_legend(canvas, theme, columns=2)
        return canvas

    def profits(design: str) -> list[float]:
        """Return the profit of each global network, and the mean profit of the networks of one city."""
        of_seed = [[row["profit"] / 1e3 for row in worlds.of("city-networks", seed, design)] for seed in worlds.seeds("city-networks")]
        rest = statistics.fmean(statistics.fmean(one[CITY]) for one in of_seed)
        return [*(statistics.fmean(of_one) for of_one in zip(*(one[GLOBAL] for one in of_seed), strict=True)), rest]

    def city_networks(theme: str) -> Any:
        canvas, [[axes]] = panels(theme, 1, 1, size=(7.0, 3.6))
        bars(axes, theme, {design: profits(design) for design in BOTH})
        axes.set_xticks(range(1, 16), [*(str(number) for number in range(1, 15)), "city"])
        title = "profit beside 200 networks of one city: thousands"
        name_axes(axes, theme, title=title, x="network; the mean of those of one city")
        add_legend(canvas, theme, columns=2)
        return canvas

    def tradeoff(theme: str) -> Any:
        canvas, [[left, right]] = panels(theme, 1, 2, size=(11.0, 3.8))
        look: dict[str, Any] = {"marker": "o", "markersize": 3}
        for design, colour in zip(SETTINGS["weights"].designs, THEMES[theme].lines, strict=False):
            curves = [curve(worlds, seed, design) for seed in worlds.seeds("weights")]
            points = [tuple(map(statistics.fmean, zip(*at, strict=True))) for at in zip(*curves, strict=True)]
            left.plot(*zip(*points, strict=True), color=colour, label=design, **look)
        name_axes(left, theme, title="median distance: km", x="median cost")
        for column, colour in zip(("cost_p50", "score_p50"), THEMES[theme].lines, strict=False):
            values = [bid_scores(worlds, seed, column) for seed in worlds.seeds("bids")]
            means = [statistics.fmean(value[place] / value[0] for value in values) for place in range(len(BIDS))]
            right.plot(BIDS, means, color=colour, label=column.removesuffix("_p50"), **look)
        right.set_xscale("log")
        title = "median cost and score, to those with one bid"
        name_axes(right, theme, title=title, x="bids of a network for a place")
        right.legend(frameon=False, labelcolor=THEMES[theme].ink)
        add_legend(canvas, theme, columns=6)
        return canvas

    def searches(theme: str) -> Any:
        canvas, [both] = panels(theme, 1, 2, size=(11.0, 3.8))
        rows = sorted(read_speed(args.rows), key=lambda row: float(row["sessions"]))
        for whose, name, colour in (("", "ours", 0), ("peer_", "HiGHS", 1)):
            for capacity, words, line in zip(CAPACITIES, ("as published", "a twentieth"), ("-", "--"), strict=True):
                those = [row for row in rows if row["capacity"] == capacity and row[f"{whose}cpu_s"] is not None]
                for axes, column, unit in ((both[0], "cpu_s", 1.0), (both[1], "rss_bytes", 1e6)):
                    axes.plot(
                        [row["sessions"] for row in those],
                        [row[f"{whose}{column}"] / unit for row in those],
                        **{"color": THEMES[theme].lines[colour], "linestyle": line, "marker": "o", "markersize": 3},
                        label=f"{name}, capacities {words}",
                    )
        for axes, title in zip(both, ("processor seconds of a search", "memory: MB"), strict=True):
            axes.set_xscale("log")
            axes.set_yscale("log")
            name_axes(axes, theme, title=title, x="viewers")
        add_legend(canvas, theme, columns=4)
        return canvas

    for name, make in {"accounts": accounts, "city-networks": city_networks, "tradeoff": tradeoff, "speed": searches}.items():
        print(*save_themed(make, args.folder, name, {}, ["svg"]), sep="\n")


#: Numbers of viewers: the thesis's 33,400, and others on a logarithmic scale around it.
SESSIONS = (1_000, 3_162, 10_000, 31_623, 33_400, 100_000, 316_228, 500_000, 1_000_000)
CAPACITIES = (1.0, 0.05)
#: Largest number of viewers for which HiGHS is measured.
PEER_SESSIONS_MAX = 33_400
#: Files that the measured optimiser depends on.
OPTIMISER = tuple(f"crates/broker-proto/src/{name}.rs" for name in ("optimiser", "branch"))
PEER_COLUMNS = ("name", "version", "cost", "gap", "cpu_s", "rss_bytes", "ended")
SPEED_COLUMNS = (
    *("commit", "sessions", "capacity", "clusters", "variables", "unserved", "cost", "gap", "cpu_s", "rss_bytes"),
    *(f"peer_{column}" for column in PEER_COLUMNS),
)


def read_speed(folder: Path) -> list[Row]:
    """Read the rows of the searches, with numbers as numbers; values that were not measured are
    `None`."""
    words = ("commit", "peer_name", "peer_version", "peer_ended")

    def read_value(column: str, value: str) -> str | float | int | None:
        if not value or column in words:
            return value or None
        return int(value) if value.isdigit() else float(value)

    return [{column: read_value(column, value) for column, value in row.items()} for row in read_csv(folder / "speed.csv")]


def rounded(row: Row) -> Row:
    """Round the gaps and the CPU times of a row to four digits."""
    is_rounded = {key: key.endswith(("gap", "cpu_s")) and value is not None for key, value in row.items()}
    return {key: float(f"{value:.4g}") if is_rounded[key] else value for key, value in row.items()}


@LAB.verb(
    rows=LAB.runs,
    xtask=XTASK,
    sessions=SESSIONS,
    capacity=CAPACITIES,
    turns=Option(5, "of each search; the best counts"),
    peer=Option(kind=Path, help="a Python that has highspy"),
    peer_seconds=Option(120.0, "HiGHS is stopped after so long"),
)
def speed(args) -> None:
    """Measures all instances. If an instance has a row, the faster one stays, because machines are
    shared; HiGHS solves each instance once."""
    args.rows.mkdir(parents=True, exist_ok=True)
    rows = {(row["sessions"], row["capacity"]): row for row in read_speed(args.rows)}
    now = commit(*OPTIMISER)
    for instance in product(sessions=args.sessions, capacity=args.capacity):
        sessions, capacity = instance.values()
        before = rows.get((sessions, capacity), {})
        command = [args.xtask, "bench", "broker", "--json", "--turns", args.turns, "--sessions", sessions, "--capacity", capacity]
        if args.peer and sessions <= PEER_SESSIONS_MAX and not before.get("peer_name"):
            command += ["--peer", args.peer, "--peer-seconds", args.peer_seconds]
        (row,) = json_lines(command)
        of_peer = rounded({f"peer_{column}": value for column, value in (row.pop("peer") or {}).items()})
        new = rounded(row) | {"commit": now}
        is_faster = before.get("commit") != now or new["cpu_s"] < before["cpu_s"]
        row = before | (new if is_faster else {}) | of_peer
        rows[sessions, capacity] = {column: row.get(column, "") for column in SPEED_COLUMNS}
        write_csv(args.rows / "speed.csv", (rows[one] for one in sorted(rows, key=lambda one: (one[0], -one[1]))), SPEED_COLUMNS)
        print(f"speed: {sessions} at {capacity}: {new['cpu_s']} s, the best {row['cpu_s']}", flush=True)


def speed_table(rows: list[Row]) -> str:
    """Return the table of the searches, with HiGHS on the same programs."""
    head = ["viewers", "capacity", "variables", "from the best at most", "CPU s", "memory", "HiGHS: from the best at most"]
    head += ["CPU s", "memory", "ended", "ours costs more by"]
    lines = []
    for row in rows:
        cells = [f"{row['sessions']:,.0f}", "as published" if row["capacity"] == 1 else f"{row['capacity']:g} of it"]
        cells += [f"{row['variables']:,.0f}", *speed_cells(row, "")]
        cells += [*speed_cells(row, "peer_"), row["peer_ended"]] if row["peer_name"] else [""] * 4
        # Adding 0.0 removes the sign of a negative zero.
        cells += [f"{round(100 * (row['cost'] / row['peer_cost'] - 1), 4) + 0.0:.4f} %"] if row["peer_cost"] else [""]
        lines.append(cells)
    return table(head, lines, "rlrrrrrrrlr")


def speed_cells(row: Row, whose: str) -> list[str]:
    """Return the cells for the gap, the CPU time and the memory."""
    gap = row[f"{whose}gap"]
    near = "no answer" if gap is None else f"{100 * gap:.2g} %" if gap else "0"
    return [near, f"{row[f'{whose}cpu_s']:.3g}", f"{row[f'{whose}rss_bytes'] / 1e6:,.0f} MB"]


@LAB.verb(binary=BINARY)
def smoke(args) -> None:
    """Runs a small world of each setting, and checks its rows."""
    for name, setting in SETTINGS.items():
        command = setting.command(args.binary, 1, 2_000 if setting.verb == "evaluate" else 300)
        rows = json_lines(command + (["--rounds", "10"] if setting.verb == "several" else []))
        assert rows, f"{name}: no rows"
        for row in rows:
            if "cost_p50" in row:
                assert row["cost_p50"] > 0 and 0 <= row["gap_share"] < 0.05 and row["unserved"] == 0, f"{name}: {row}"
                if row["design"].startswith(("marketplace", "omniscient")):
                    assert row["congested_share"] == 0, f"{name}: more than a cluster can send though its capacity was known: {row}"
            if "profit" in row and row["design"] == "marketplace":
                assert row["profit"] >= 0, f"{name}: paid less than it costs though it set the price: {row}"
    print(f"broker: {len(SETTINGS)} settings make sense")


if __name__ == "__main__":
    sys.exit(LAB.main())
