"""The optimiser of ``live`` compared with a CDN, Overlay Multicast and Everything Everywhere: the
thesis's Tables 4.3 to 4.5, Figures 4.5 and 4.10 to 4.15.

``run.py all`` runs every setting on every seed and writes rows to a folder, a file for each
setting. Cells that have rows are not run again. ``run.py docs`` writes the README's tables, with our
values beside the thesis's (in the lab's environment). ``run.py smoke`` runs small worlds and checks their rows.

Read first: `SETTINGS`, `CLAIMS`.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, ROOT, Experiment, Row, Rows, filled, grouped, measure, product, read_csv, repeatable, table
from anabranch_lab.programs import json_lines
from drawn_requests import ORDERS, RequestFile

LAB = Experiment(__file__, __doc__)
README = LAB.folder / "README.md"
MEASURED = LAB.folder / "measured"
SEEDS = tuple(range(1, 11))
#: Columns of a row that hold text.
WORDS = ("part", "workload", "connectivity", "bottleneck", "counts_viewers", "design", "satisfied_share_by_kbps")
PLANS = ("balanced", "quality", "quantity")
WORKLOADS = ("average-day", "large-event", "heavy-tail")


@dataclasses.dataclass(frozen=True)
class Setting:
    """Runs of one table or figure.

    Attributes
    ----------
    parts
        Options of ``anabranch live evaluate``, by the name of a point on the figure's axis. A `RequestFile` is replaced
        by the path of its file.
    designs
        Designs of each run; all designs if left out.
    """

    parts: dict[str, tuple[object, ...]]
    designs: tuple[str, ...] = ()

    def command(self, binary: Path, seed: int, part: str, folder: Path) -> list[object]:
        """Return the command of one cell. Its file of requests is written to `folder`."""
        designs = ["--design", *self.designs] if self.designs else []
        options = [option.write(folder, seed) if isinstance(option, RequestFile) else option for option in self.parts[part]]
        return [binary, "-q", "live", "evaluate", "--json", "--seed", seed, *options, *designs]


def heavy(*options: object) -> tuple[object, ...]:
    """Return the options of a run on the workload Heavy-Tail."""
    return ("--workload", "heavy-tail", *options)


def average(*options: object) -> tuple[object, ...]:
    """Return the options of a run on the workload Average Day."""
    return ("--workload", "average-day", *options)


#: Requests of one window of Average Day with 4,144 videos (the generator rounds down, to 916) and
#: with 10,000, and of Heavy-Tail.
AVERAGE_DAY_REQUESTS = 917
AVERAGE_DAY_10K_REQUESTS = 2_212
HEAVY_TAIL_REQUESTS = 4_000


def average_file(order: str = "arrival", games: str = "") -> tuple[object, ...]:
    """Return the options of a run on a file with the statistics of Average Day."""
    return average("--requests", RequestFile("average-day", 4_144, AVERAGE_DAY_REQUESTS, order, games=games))


def heavy_file(order: str) -> tuple[object, ...]:
    """Return the options of a run on a file with the statistics of Heavy-Tail."""
    return heavy("--requests", RequestFile("heavy-tail", 10_000, HEAVY_TAIL_REQUESTS, order))


SETTINGS: dict[str, Setting] = {
    "tables": Setting(
        {name: ("--workload", name) for name in WORKLOADS},
        ("balanced", "quality", "quantity", "cdn", "cdn-1", "om", "ee", "bound"),
    ),
    "greedy": Setting({name: ("--workload", name) for name in WORKLOADS}, ("balanced", "greedy")),
    "videos": Setting(
        {str(videos): heavy("--videos", videos) for videos in (2_000, 4_000, 6_000, 8_000, 10_000)},
        ("balanced", "quality", "cdn", "cdn-1", "om", "bound"),
    ),
    "bottleneck": Setting(
        {
            f"{bottleneck} {videos}": average("--videos", videos, "--bottleneck", bottleneck)
            for bottleneck in ("source", "reflector", "edge")
            for videos in (2_000, 6_000, 10_000)
        },
        ("balanced", "quality", "cdn", "bound"),
    ),
    "edges": Setting(
        {str(edges): average("--videos", 10_000, "--edges", edges) for edges in (100, 500, 1_000, 2_000)},
        ("balanced", "bound"),
    ),
    "connectivity": Setting(
        {of: heavy("--connectivity", of) for of in ("1,1,1", "2,2,2", "4,3,3", "4,6,6")},
        ("balanced", "cdn", "om", "bound"),
    ),
    "weights": Setting(
        {str(weight): heavy("--cost-share", weight) for weight in (0.0, 0.05, 0.1, 0.2, 0.4, 0.7)},
        ("quality", "balanced", "cdn", "cdn-1", "om", "bound"),
    ),
    "passes": Setting(
        {
            f"{videos} {passes}": heavy("--videos", videos, "--passes", passes)
            for videos in (2_000, 6_000, 10_000)
            for passes in (1, 2, 6, 20)
        },
        ("balanced", "bound"),
    ),
    "choices": Setting(
        {
            "slack 0.1": heavy("--slack", 0.1),
            "slack 0.2": heavy("--slack", 0.2),
            "groups count once": heavy("--count-groups"),
            "window of 30 s": heavy("--window", 30),
            "window of 120 s": heavy("--window", 120),
        },
        ("balanced",),
    ),
    # The settings below look for the causes of departures from the thesis.
    "load": Setting({str(window): average("--window", window) for window in (15, 20, 30, 45, 60, 90)}, ("balanced", "cdn", "om")),
    "multicast": Setting(
        {"average-day": average("--cost-share", 0)}
        | {str(videos): heavy("--cost-share", 0, "--videos", videos) for videos in (2_000, 4_000, 6_000, 8_000, 10_000)}
        | {of: heavy("--cost-share", 0, "--connectivity", of) for of in ("1,1,1", "2,2,2", "4,3,3", "4,6,6")},
        ("om",),
    ),
    "degrees": Setting(
        {of: heavy("--connectivity", of) for of in ("4,1,1", "1,3,1", "1,1,3", "4,3,1", "4,1,3", "1,3,3")},
        ("balanced", "cdn"),
    ),
    "orders": Setting(
        {f"average-day, {order}": average_file(order) for order in ORDERS}
        | {f"large-event, games {games}": average_file(games=games) for games in ("first", "last")}
        | {f"heavy-tail, {order}": heavy_file(order) for order in ORDERS},
        ("balanced", "om", "ee"),
    ),
    "no-retries": Setting(
        {
            "average-day 10000": average("--requests", RequestFile("average-day", 10_000, AVERAGE_DAY_10K_REQUESTS, has_retries=False)),
            "heavy-tail": heavy("--requests", RequestFile("heavy-tail", 10_000, HEAVY_TAIL_REQUESTS, has_retries=False)),
        },
        ("balanced", "quality", "cdn", "om", "bound"),
    ),
}


def rounded(row: Row) -> Row:
    """Return a row for the file, with numbers rounded to six digits."""

    def value(cell: Any) -> Any:
        return float(f"{cell:.6g}") if isinstance(cell, float) else cell

    by_kbps = {kbps: value(share) for kbps, share in row["satisfied_share_by_kbps"].items()}
    return {key: value(cell) for key, cell in row.items()} | {"satisfied_share_by_kbps": json.dumps(by_kbps)}


@LAB.verb("all", rows=LAB.runs, binary=BINARY, setting=repeatable(SETTINGS), seeds=SEEDS, jobs=2)
def all_settings(args) -> int:
    """Runs the cells that have no rows yet, a file for each setting."""
    codes = []
    for name in args.setting or SETTINGS:
        setting = SETTINGS[name]

        def run(cell: Row, setting: Setting = setting) -> list[Row]:
            with tempfile.TemporaryDirectory() as folder:
                return [rounded(row) for row in json_lines(setting.command(args.binary, cell["seed"], cell["part"], Path(folder)))]

        rows = Rows(args.rows / f"{name}.csv", ["part", "seed"], line_end="\n")
        cells = product(seed=args.seeds, part=setting.parts)
        codes.append(measure(rows, cells, run, args.jobs, lambda rows, name=name: f"{name}: {rows[0]['part']}, seed {rows[0]['seed']}"))
    return max(codes)


def read(folder: Path, name: str) -> list[Row]:
    """Return the rows of a setting, with numbers as numbers and without empty values."""
    rows = read_csv(folder / f"{name}.csv")
    return [{column: value if column in WORDS else float(value) for column, value in row.items() if value} for row in rows]


class Results:
    """Rows of all settings.

    Parameters
    ----------
    folder
        Folder of their files.
    """

    def __init__(self, folder: Path) -> None:
        self.rows = {name: read(folder, name) for name in SETTINGS}

    def values(self, name: str, part: str, design: str, column: str) -> dict[float, float]:
        """Return a design's values by seed."""
        rows = [row for row in self.rows[name] if row["part"] == part and row["design"] == design]
        return {row["seed"]: row[column] for row in rows if column in row}

    def ratios(self, name: str, part: str, column: str, designs: tuple[str, str]) -> list[float]:
        """Return the first design's values as multiples of the second's, seed by seed."""
        first, second = (self.values(name, part, design, column) for design in designs)
        return [first[seed] / second[seed] for seed in first if second.get(seed)]


def stated(values: Iterable[float], digits: int = 2, scale: float = 1.0) -> str:
    """Return a mean with half of its 95 % interval."""
    from anabranch_lab.stats import interval

    values = [scale * value for value in values]
    if not values:
        return "not run"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    mean, half = interval(values)
    return f"{mean:,.{digits}f} ± {half:.{digits}f}"


def overview(results: Results) -> str:
    """Return Tables 4.3 to 4.5."""
    lines = []
    for (part, design), rows in grouped(results.rows["tables"], "part", "design").items():
        cost = results.ratios("tables", part, "cost_per_satisfied", (design, "balanced"))
        lines.append(
            [
                part,
                design,
                stated((row["mean_kbps"] for row in rows), 0),
                stated(cost) if design != "bound" else "",
                COSTS.get((part, design), ""),
                stated((row["satisfied_share"] for row in rows), 1, 100),
                stated((row["gap"] for row in rows), 2, 100) if design in PLANS else "",
                f"{statistics.median(row.get('plan_cpu_s', row['cpu_s']) for row in rows):.3f}",
            ]
        )
    head = ["Tables 4.3 to 4.5", "design", "mean kbit/s", "cost per satisfied, to balanced", "thesis, to VDN", "at their bitrate %", "gap %", "CPU s"]
    return table(head, lines, "llr")


#: Cost per satisfied request to VDN's, as Tables 4.3 to 4.5 print it.
COSTS = {
    ("average-day", "ee"): 174,
    ("average-day", "om"): 1.1,
    ("average-day", "cdn"): 1.54,
    ("average-day", "balanced"): 1,
    ("large-event", "ee"): 167_000,
    ("large-event", "om"): 1.1,
    ("large-event", "cdn"): 2.0,
    ("large-event", "balanced"): 1,
    ("heavy-tail", "ee"): 7.7,
    ("heavy-tail", "om"): 4.1,
    ("heavy-tail", "cdn"): 1.2,
    ("heavy-tail", "balanced"): 1,
}


def ratio(name: str, part: str, column: str, first: str, second: str) -> Callable[[Results], str]:
    """Make a statement: one design's values as multiples of another's."""
    return lambda results: stated(results.ratios(name, part, column, (first, second)))


def less(part: str, column: str, first: str, second: str) -> Callable[[Results], str]:
    """Make a statement: the per cent by which one design's values are below another's."""
    return lambda results: stated((100 * (1 - value) for value in results.ratios("tables", part, column, (first, second))), 0)


#: Sentences of the thesis with numbers: figure, sentence, printed value, and our value.
CLAIMS: tuple[tuple[str, str, str, Callable[[Results], str]], ...] = (
    ("Figure 4.5", "bitrate to OM's, 10,000 videos (balanced)", "up to 2", ratio("videos", "10000", "mean_kbps", "balanced", "om")),
    ("", "the same (quality)", "up to 2", ratio("videos", "10000", "mean_kbps", "quality", "om")),
    ("Table 4.4", "CDN's cost to the plan's, Large Event", "2.0", ratio("tables", "large-event", "cost_per_satisfied", "cdn", "balanced")),
    ("Table 4.5", "bitrate to CDN's, Heavy-Tail (balanced)", "1.7", ratio("tables", "heavy-tail", "mean_kbps", "balanced", "cdn")),
    ("", "the same (quality)", "1.7", ratio("tables", "heavy-tail", "mean_kbps", "quality", "cdn")),
    ("", "viewers at their bitrate to CDN's (balanced)", "1.24", ratio("tables", "heavy-tail", "satisfied_share", "balanced", "cdn")),
    ("", "the same (quality)", "1.24", ratio("tables", "heavy-tail", "satisfied_share", "quality", "cdn")),
    ("", "OM: fewer at their bitrate than the plan, %", "44", less("heavy-tail", "satisfied_share", "om", "balanced")),
    ("", "CDN's cost to the plan's (quality)", "1.2", ratio("tables", "heavy-tail", "cost_per_satisfied", "cdn", "quality")),
    ("", "OM's cost to the plan's (quality)", "4.1", ratio("tables", "heavy-tail", "cost_per_satisfied", "om", "quality")),
    ("Figure 4.11", "viewers at their bitrate, OM to CDN", "below 1", ratio("videos", "10000", "satisfied_share", "om", "cdn")),
    ("", "bitrate, CDN-1 to CDN", "a little above 1", ratio("videos", "10000", "mean_kbps", "cdn-1", "cdn")),
    ("Figure 4.15a", "bitrate to OM's, cost share 0.1 (quality)", "1.5", ratio("weights", "0.1", "mean_kbps", "quality", "om")),
    ("", "bitrate to CDN-1's (quality)", "1.5", ratio("weights", "0.1", "mean_kbps", "quality", "cdn-1")),
)


def axis(results: Results, name: str, title: str, designs: tuple[str, ...]) -> str:
    """Return a figure as a table: bitrate and viewers at their bitrate by its axis."""
    lines = []
    for part in SETTINGS[name].parts:
        for design in designs:
            if found := results.values(name, part, design, "mean_kbps"):
                gap = results.values(name, part, design, "gap")
                cost = results.values(name, part, design, "cost_per_satisfied")
                seconds = results.values(name, part, design, "plan_cpu_s")
                lines.append(
                    [
                        part,
                        design,
                        stated(found.values(), 0),
                        stated(results.values(name, part, design, "satisfied_share").values(), 1, 100),
                        stated(cost.values(), 1) if cost else "",
                        stated(gap.values(), 2, 100) if gap else "",
                        f"{statistics.median(seconds.values()):.3f}" if seconds else "",
                        len(found),
                    ]
                )
    return table([title, "design", "mean kbit/s", "at their bitrate %", "cost per satisfied", "gap %", "CPU s of a plan", "seeds"], lines, "llr")


def by_bitrate(results: Results) -> str:
    """Return Figure 4.15b."""
    rows = [row for row in results.rows["tables"] if row["part"] == "heavy-tail" and row["design"] in PLANS]
    lines = []
    for (design,), of in grouped(rows, "design").items():
        shares = [json.loads(row["satisfied_share_by_kbps"]) for row in of]
        lines.append([design, *(stated((share[kbps] for share in shares), 1, 100) for kbps in shares[0])])
    heads = [f"{int(kbps):,} kbit/s" for kbps in json.loads(rows[0]["satisfied_share_by_kbps"])] if rows else []
    return table(["Figure 4.15b: at their bitrate %", *heads], lines, "lr")


def bottlenecks(results: Results) -> str:
    """Return Figure 4.14."""
    lines = []
    for part in SETTINGS["bottleneck"].parts:
        for design in ("balanced", "quality", "bound"):
            cells = []
            for column in ("mean_kbps", "cost_per_satisfied"):
                if (design, column) == ("bound", "cost_per_satisfied"):
                    cells.append("")
                    continue
                ratios = results.ratios("bottleneck", part, column, (design, "cdn"))
                cells.append(stated((100 * (value - 1) for value in ratios), 1))
            lines.append([part, design, *cells])
    return table(["Figure 4.14: bottleneck, videos", "design", "bitrate over CDN's %", "cost over CDN's %"], lines, "llr")


def loads(results: Results) -> str:
    """Return the cost of CDN and OM on Average Day by the length of the window."""
    lines = []
    for part in SETTINGS["load"].parts:
        cells = (stated(results.ratios("load", part, "cost_per_satisfied", (design, "balanced"))) for design in ("cdn", "om"))
        lines.append([part, *cells])
    return table(["Average Day: window, s", "CDN's cost to balanced", "OM's cost to balanced"], lines, "r")


def multicast(results: Results) -> str:
    """Return OM without the term of cost, beside designs of the same networks and requests."""
    lines = []
    for part in SETTINGS["multicast"].parts:
        name = "tables" if part == "average-day" else "connectivity" if "," in part else "videos"
        found = results.values("multicast", part, "om", "mean_kbps")

        def share(design: str, part: str = part, name: str = name) -> str:
            return stated(results.values(name, part, design, "satisfied_share").values(), 1, 100)

        rate = results.values(name, part, "quality", "mean_kbps")
        cost, plan = results.values("multicast", part, "om", "cost_per_satisfied"), results.values(name, part, "balanced", "cost_per_satisfied")
        lines.append(
            [
                part,
                stated(results.values("multicast", part, "om", "satisfied_share").values(), 1, 100),
                share("om"),
                share("cdn"),
                stated(rate[seed] / found[seed] for seed in found) if rate else "",
                stated(cost[seed] / plan[seed] for seed in cost),
            ]
        )
    heads = ["videos, or (x, y, z)", "OM without cost: at their bitrate %", "OM %", "CDN %", "bitrate, quality to OM without cost"]
    return table([*heads, "cost, OM without cost to balanced"], lines, "lr")


def orders(results: Results) -> str:
    """Return the costs of EE and OM by the order of requests."""
    lines = []
    for part in SETTINGS["orders"].parts:
        cells = []
        for design in ("ee", "om"):
            cost = results.ratios("orders", part, "cost_per_satisfied", (design, "balanced"))
            share = results.values("orders", part, design, "satisfied_share").values()
            cells += [stated(cost, 1), stated(share, 1, 100)]
        lines.append([part, *cells])
    return table(["order of requests", "EE's cost to balanced", "EE: at their bitrate %", "OM's cost to balanced", "OM: at their bitrate %"], lines, "lr")


#: Variants of Algorithm 1, and declared capacities of the reflectors' links at which they are
#: compared.
RULES = ("nearest-with-capacity", "printed")
RULE_CAPACITIES = ("3 Mbit/s", "5 Mbit/s", "9 Mbit/s", "30 Mbit/s")
SCENARIO = ROOT / "scenarios/live.toml"


@LAB.verb("rules", rows=LAB.runs, binary=BINARY, seeds=SEEDS, jobs=2)
def both_rules(args) -> int:
    """Runs both variants of Algorithm 1 in the simulator, without a controller."""

    def run(cell: Row) -> list[Row]:
        settings = {"workload.mode": "distributed", "workload.rule": cell["rule"], "workload.reflector_capacity": cell["capacity"]}
        words = [f'{name}="{value}"' for name, value in settings.items()]
        words += ["workload.faults=[]", f"seed={cell['seed']}"]
        (row,) = json_lines([args.binary, "simulate", SCENARIO, "--json", *(word for one in words for word in ("--set", one))])
        return [{name: row[name] for name in ("refused", "watching", "goodput_mbps", "begun_ms_p50", "upstream_mbps")}]

    rows = Rows(args.rows / "rules.csv", ["capacity", "rule", "seed"], line_end="\n")
    cells = product(seed=args.seeds, capacity=RULE_CAPACITIES, rule=RULES)
    return measure(rows, cells, run, args.jobs, lambda rows: f"rules: {rows[0]['capacity']}, {rows[0]['rule']}, seed {rows[0]['seed']}")


def rules(folder: Path) -> dict[str, str]:
    """Return the table of both variants of Algorithm 1; nothing without rows."""
    lines = []
    for (capacity, rule), group in grouped(read_csv(folder / "rules.csv"), "capacity", "rule").items():
        columns = (("refused", 0), ("goodput_mbps", 1), ("upstream_mbps", 1), ("begun_ms_p50", 0))
        lines.append([capacity, rule, *(stated((float(row[column]) for row in group), digits) for column, digits in columns), len(group)])
    heads = ["capacity of a reflector's link", "Algorithm 1", "refused", "goodput, Mbit/s", "upstream, Mbit/s", "begun, ms p50", "seeds"]
    return {"rules": table(heads, lines, "llr")} if lines else {}


def tables(folder: Path) -> dict[str, str]:
    """Return the table of each figure."""
    results = Results(folder)
    claims = [[*claim[:3], claim[3](results)] for claim in CLAIMS]
    return {
        "overview": overview(results),
        "greedy": axis(results, "greedy", "central greedy: workload", SETTINGS["greedy"].designs),
        "claims": table(["", "claim", "thesis", "ours"], claims, "lllr"),
        "passes": axis(results, "passes", "Figure 4.10: videos, passes", SETTINGS["passes"].designs),
        "videos": axis(results, "videos", "Figure 4.11: videos", SETTINGS["videos"].designs),
        "edges": axis(results, "edges", "Figure 4.12: edges", SETTINGS["edges"].designs),
        "connectivity": axis(results, "connectivity", "Figure 4.13: (x, y, z)", SETTINGS["connectivity"].designs),
        "bottleneck": bottlenecks(results),
        "weights": axis(results, "weights", "Figure 4.15a: cost share", SETTINGS["weights"].designs),
        "bitrates": by_bitrate(results),
        "choices": axis(results, "choices", "settings without a figure", ("balanced",)),
        "load": loads(results),
        "multicast": multicast(results),
        "orders": orders(results),
        "no-retries": axis(results, "no-retries", "refused viewers do not ask again", SETTINGS["no-retries"].designs),
        "degrees": axis(results, "degrees", "further (x, y, z)", SETTINGS["degrees"].designs),
    } | rules(folder)


@LAB.verb("table", rows=MEASURED)
def show_tables(args) -> None:
    """Prints the tables of rows."""
    print("\n\n".join(tables(args.rows).values()))


LAB.tables_of(README, lambda: filled(README.read_text(), "experiments/live/measured", tables(MEASURED)))


@LAB.verb(binary=BINARY)
def smoke(args) -> None:
    """Runs small worlds and checks their rows."""
    for workload in ("average-day", "heavy-tail"):
        command = [args.binary, "-q", "live", "evaluate", "--json", "--workload", workload, "--videos", 2_000]
        rows = {row["design"]: row for row in json_lines(command)}
        bound = rows.pop("bound")
        for design, row in rows.items():
            assert row["satisfied_share"] <= bound["satisfied_share"] + 1e-9, f"{workload}: {design} is above the bound"
            assert row["mean_kbps"] <= bound["mean_kbps"] * (1 + 1e-9), f"{workload}: {design} is above the bound"
            assert design not in PLANS or 0 <= row["gap"] < 0.05, f"{workload}: {design}: {row['gap']}"
        assert rows["balanced"]["satisfied_share"] >= max(rows[rival]["satisfied_share"] for rival in ("cdn", "om", "ee")), workload
    print("live: two workloads make sense")


if __name__ == "__main__":
    sys.exit(LAB.main())
