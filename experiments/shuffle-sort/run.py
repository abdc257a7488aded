"""A distributed sort on the Flow Chasing paper's leaf-spine, with and without `anabranch shuffle`,
emulated in real time.

``run.py all`` builds the network with ``anabranch emulate`` for each trial, runs the sort of
`crates/announce/examples/sort.rs` on its hosts, checks the sorted data and adds rows to
``measured.csv``, ``coflows.csv`` and, for the first trial without `shuffle`, ``flows.csv``; arms
take turns. Trials that the emulator does not trust are noted and repeated. ``smoke``, which ``make
test`` runs, runs one small trial with `shuffle` and one without, and writes nothing; without
namespaces it prints why it is skipped. ``spark`` lets Spark sort (`spark.py`), ``draw`` draws the figures
and prints the tables; only ``draw`` needs the lab's environment. Exit code 1 if something fails, 2
on wrong usage.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, ROOT, TRIES, Experiment, Option, Row, Rows, SiteTask, format_row, grouped, measure, product, read_csv, table, until_trusted, write_csv
from anabranch_lab.programs import Failed, json_lines, require_emulator
from anabranch_lab.programs import topology as network_of

LAB = Experiment(__file__, __doc__)
LEAVES, SPINES = 4, 2
PORT = 7200
#: The fabrics: rates of a host's link and of a link between switches, in Mbit/s.
FABRICS = {
    # The core carries all traffic that the hosts can send.
    "wide": (20.0, 40.0),
    # As in the paper, where 9 hosts of a leaf share two uplinks with the rate of a host's link: 4.5
    # to 1.
    "narrow": (36.0, 8.0),
}
#: Share of a link's rate that agents report: the rest goes to headers (52 of 1,500 bytes) and
#: acknowledgements.
LINK_SHARE = 0.95
#: Suffix of an arm's name, after the allocator, if agents also report the capacity of their leaf's
#: uplinks.
UPLINKS = ", uplinks"
KEY = ["fabric", "arm", "trial"]
#: Options that compared trials have in common.
SETTINGS = ("hosts", "records", "reducers", "tasks", "skew", "disk_share", "congestion_control", "seed")


def topology(hosts: int, rate: float, uplink: float) -> str:
    """Return spines, leaves, hosts below leaves, and a separate control network, as in section 5.1 of
    the paper.


    The route through the control network is longer than the route through the fabric, so data never
    takes it.
    """
    spines = [f"spine{n}" for n in range(SPINES)]
    leaves = [f"leaf{n}" for n in range(LEAVES)]
    hosts_of = ["control", *(f"h{n}" for n in range(hosts))]
    cables = [(leaf, spine, uplink, "100 us") for leaf in leaves for spine in spines]
    cables += [(f"h{n}", leaves[n % LEAVES], rate, "100 us") for n in range(hosts)]
    cables += [(host, "management", 50.0, "1 ms") for host in hosts_of]
    made = [(a, b, {"capacity": f"{mbps} Mbit/s", "delay": delay}) for a, b, mbps, delay in cables]
    return network_of("leaf-spine", [*spines, *leaves, "management"], hosts_of, made)


@LAB.inside
def sort(task: Row) -> list[Row]:
    """Run the sort from inside the control site, and return all lines that the workers print."""
    folder, hosts = Path(task["folder"]), task["hosts"]
    addresses = ",".join(f"{os.environ[f'ANABRANCH_ADDRESS_H{n}']}:{PORT}" for n in range(hosts))
    workers = []
    for n in range(hosts):
        command = ["nsenter", f"--net={os.environ[f'ANABRANCH_NETNS_H{n}']}", task["sort"], "work"]
        command += ["--worker", str(n), "--workers", addresses, *task["common"], "--tasks", str(task["tasks"])]
        if task["disk"]:
            command += ["--disk", str(task["disk"])]
        if task["agents"]:
            command += ["--agent", str(folder / f"h{n}.sock")]
        workers.append(subprocess.Popen(command, stdout=(folder / f"h{n}.jsonl").open("w")))
    try:
        codes = [worker.wait(timeout=task["seconds_max"]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    if any(codes):
        raise Failed(f"workers ended with {codes}")
    said = [json.loads(line) for n in range(hosts) for line in (folder / f"h{n}.jsonl").open()]
    if task["agents"]:
        ask = [task["binary"], "shuffle", "status", "--json", "--history", "1000", "--keys", str(folder / "keys")]
        ask += ["--coordinator", f"https://{os.environ['ANABRANCH_ADDRESS']}:7190"]
        (status,) = json_lines(ask)
        said.append({"kind": "history", "coflows": len({c["name"] for c in status["history"]})})
    return said


def figures(said: list[Row]) -> tuple[Row, list[Row]]:
    """Return the row of a trial, and the rows of its coflows. A coflow is all flows to one reducer (section 5.3.1)."""
    flows = [s for s in said if s["kind"] == "flow"]
    begun_s = min(s["begun_s"] for s in said if s["kind"] == "map")
    coflows = []
    for reducer in sorted({flow["reducer"] for flow in flows}):
        of_it = [flow for flow in flows if flow["reducer"] == reducer]
        first, last = min(f["begun_s"] for f in of_it), max(f["ended_s"] for f in of_it)
        size = sum(f["size_bytes"] for f in of_it)
        coflows.append({"coflow": reducer, "flows": len(of_it), "size_bytes": size, "took_s": round(last - first, 4)})
    row = {
        "coflow_mean_s": sum(c["took_s"] for c in coflows) / len(coflows),
        "shuffle_s": max(f["ended_s"] for f in flows) - min(f["begun_s"] for f in flows),
        "job_s": max(s["ended_s"] for s in said if s["kind"] == "reduce") - begun_s,
        "coflow_max_s": max(c["took_s"] for c in coflows),
        "map_s": max(s["ended_s"] for s in said if s["kind"] == "map") - begun_s,
    }
    return {name: round(value, 4) for name, value in row.items()}, coflows


def uplinks(hosts: int, mbps: float) -> str:
    """Return the coordinator's file of hosts: the leaf of each host, and the total rate of each leaf's uplinks."""
    leaves = [f'[[uplink]]\nname = "leaf{leaf}"\nrate = "{mbps} Mbit/s"\n' for leaf in range(LEAVES)]
    below = [f'[[host]]\nname = "h{n}"\nuplinks = ["leaf{n % LEAVES}"]\n' for n in range(hosts)]
    return "".join(leaves + below)


class Unheard(Failed):
    """The coordinator did not hear of all coflows."""


def until_heard(args, folder: Path, arm: str) -> tuple[Row, list[Row], list[Row]]:
    """Repeat the sample's sort, at most three times: a program does not wait long for an agent that a
    busy machine delays, and does not announce its flows then."""
    return until_trusted(lambda: emulate(args, folder, "wide", arm, tries=0), 3, Unheard)


def emulate(args, folder: Path, fabric: str, arm: str, tries: int = TRIES) -> tuple[Row, list[Row], list[Row]]:
    """Run one trial in a separate emulation, and return its row, its coflows and its flows. With 0
    tries, an untrusted result is accepted."""
    rate, uplink = FABRICS[fabric]
    out, keys, agents = folder / "out", folder / "keys", arm != "without"
    common = ["--out", out, "--records", args.records, "--reducers", args.reducers, "--skew", args.skew]
    common = list(map(str, common))
    task = {"hosts": args.hosts, "sort": args.sort, "binary": args.binary, "common": common, "tasks": args.tasks, "agents": agents}
    # Input and output have three times the rate of a link; the paper chose the rate of its links to
    # match its disks.
    task |= {"disk": args.disk_share * rate * 1e6 / 8, "seconds_max": args.seconds_max}
    shuffle = f"exec {args.binary} {'' if args.verbose else '-q '}shuffle"
    programs = []
    if agents:
        line = f"{shuffle} coordinator --listen $ANABRANCH_ADDRESS:7190 --keys {keys}"
        if arm.endswith(UPLINKS):
            (folder / "hosts.toml").write_text(uplinks(args.hosts, LINK_SHARE * SPINES * uplink))
            line += f" --hosts {folder}/hosts.toml"
        programs.append(("control", f"{line} --allocator {arm.removesuffix(UPLINKS)} --store {folder}/coordinator.redb"))
        for n in range(args.hosts):
            line = f"{shuffle} agent --name h{n} --keys {keys} --coordinator https://{{@control}}:7190"
            line += f" --link '{LINK_SHARE * rate} Mbit/s' --address $ANABRANCH_ADDRESS --listen {folder}/h{n}.sock"
            programs.append((f"h{n}", f"{line} --state {folder}/h{n}.state"))
    options = ["--congestion-control", args.congestion_control, "--settle", "2 s", "--seed", args.seed]
    options += ["--duration", f"{args.seconds_max + 30} s"]

    def clear() -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        (folder / "coordinator.redb").unlink(missing_ok=True)

    inside, fabric_of = LAB.task(sort, folder, **task), topology(args.hosts, rate, uplink)
    emulated = LAB.emulate(args.binary, folder, fabric_of, inside, *options, site="control", programs=programs, tries=tries, prepare=clear)
    subprocess.run([args.sort, "check", "--workers", str(args.hosts), *common], check=True, stdout=subprocess.DEVNULL)
    row, coflows = figures(emulated.result)
    heard = sum(s["coflows"] for s in emulated.result if s["kind"] == "history")
    if agents and heard != len(coflows):
        raise Unheard(f"the coordinator heard of {heard} coflows of {len(coflows)}")
    row |= {
        "dropped_packets": emulated.report["drops"]["queue_full"],
        "lateness_us_p99": emulated.report["lateness_us_p99"],
        "distrusted_before": emulated.untrusted_before,
    }
    return row, coflows, [s for s in emulated.result if s["kind"] == "flow"]


def make_keys(args, folder: Path) -> None:
    """Make certificates for the coordinator and all hosts."""
    hosts = ",".join(f"h{n}" for n in range(args.hosts))
    made = [args.binary, "-q", "shuffle", "keys", "--hosts", hosts, "--operators", "operator"]
    subprocess.run([*made, "--out", folder / "keys"], check=True)


SORTS = {
    "out": LAB.folder,
    "binary": BINARY,
    "trials": 5,
    "hosts": 8,
    "reducers": Option(2, "of each worker"),
    "tasks": Option(2, "map tasks of each worker"),
    "congestion_control": "reno",
    "seed": Option(1, "of ways through the fabric"),
}
NATIVE = {
    **SORTS,
    "sort": ROOT / "target/release/examples/sort",
    "records": Option(4_000_000, "of 100 bytes, in all"),
    "skew": Option(0.3, "of what reducers get: 1/rank^SKEW"),
    "disk_share": Option(3.0, "a disk's rate, in rates of a host's link"),
    "seconds_max": 240.0,
    "verbose": False,
}


@LAB.verb(**NATIVE | {"hosts": LEAVES, "records": 80_000})
def smoke(args) -> None:
    """Runs a small sort with `shuffle` and one without: both sort correctly, and the coordinator
    learns of all coflows."""
    require_emulator(args.binary)
    with tempfile.TemporaryDirectory(prefix="shuffle-sort-") as name:
        make_keys(args, Path(name))
        for arm in ("without", "chase+"):
            row, coflows, flows = until_heard(args, Path(name), arm)
            print(f"shuffle-sort: {arm}: sorted, {len(flows)} flows of {len(coflows)} coflows in {row['shuffle_s']} s")


@LAB.verb(**SORTS, arms=["without", "chase+"], records=Option(1_200_000, "of some 150 bytes, in all"))
def spark(args) -> None:
    """Runs Spark's sorts, all trials in one emulation and one application; an untrusted emulation adds no rows."""
    sys.path.insert(0, str(LAB.folder))
    from spark import jobs_of

    rows = Rows(args.out / "spark.csv", ["series", "arm", "trial"], line_end="\n")
    rate, uplink = FABRICS["wide"]
    with tempfile.TemporaryDirectory(prefix="shuffle-sort-") as name:
        folder = Path(name)
        make_keys(args, folder)
        task = {key: getattr(args, key) for key in ("binary", "hosts", "records", "reducers", "tasks", "trials", "arms")}
        task |= {"folder": folder, "link": f"{LINK_SHARE * rate} Mbit/s"}
        inside = SiteTask([sys.executable, str(LAB.folder / "spark.py"), json.dumps(task, default=str)], folder / "none.json")
        options = ["--congestion-control", args.congestion_control, "--seed", args.seed]
        try:
            emulated = LAB.emulate(args.binary, folder, topology(args.hosts, rate, uplink), inside, *options, site="control", tries=1)
        except Failed:
            for log in sorted(folder.glob("*.log")):
                print(f"{log.name}: {log.read_text(errors='replace')[-600:]}", file=sys.stderr)
            raise
        (log,) = (folder / "events").iterdir()
        series = max((int(row["series"]) for row in rows.read()), default=0) + 1
        late = {"lateness_us_p99": emulated.report["lateness_us_p99"]}
        made = [{"series": series} | row | late for row in jobs_of(log)]
    rows.add(*made)
    print("\n".join(map(format_row, made)))


def goes_on(args, measured: Rows) -> None:
    """Check that existing rows were measured with the same settings, and remove rows of an interrupted trial.

    Raises
    ------
    Failed
        The rows have other settings.
    """
    settings = {name: getattr(args, name) for name in SETTINGS}
    path, rows = args.out / "settings.json", measured.read()
    if rows and path.exists() and (before := json.loads(path.read_text())) != settings:
        other = ", ".join(f"{name} {before.get(name)}" for name in SETTINGS if before.get(name) != settings[name])
        raise Failed(f"{measured.path} is of {other}: take another --out, or move it away")
    path.write_text(json.dumps(settings, indent=2) + "\n")
    done = grouped(rows, *KEY)
    for name in ("coflows.csv", "flows.csv"):
        rows = read_csv(args.out / name)
        whole = [row for row in rows if tuple(row[column] for column in KEY) in done]
        if len(whole) < len(rows):
            (args.out / name).unlink()
            if whole:
                write_csv(args.out / name, whole)


@LAB.verb("all", **NATIVE, fabrics=Option(list(FABRICS), choices=FABRICS), arms=["without", "chase+", "chase", "varys"])
def all_trials(args) -> int:
    """Runs all trials that have no row; arms take turns."""
    args.out.mkdir(parents=True, exist_ok=True)
    measured, coflows_of, flows_of = (Rows(args.out / f"{name}.csv", KEY, line_end="\n") for name in ("measured", "coflows", "flows"))
    goes_on(args, measured)
    with tempfile.TemporaryDirectory(prefix="shuffle-sort-") as name:
        folder = Path(name)
        make_keys(args, folder)

        def run(cell: Row) -> Row:
            row, coflows, flows = emulate(args, folder, cell["fabric"], cell["arm"])
            coflows_of.add(*(cell | coflow for coflow in coflows))
            if cell["trial"] == 0 and cell["arm"] == "without":
                flows_of.add(*(cell | flow for flow in flows))
            return row

        cells = product(trial=range(args.trials), fabric=args.fabrics, arm=args.arms)
        return measure(measured, [{column: cell[column] for column in KEY} for cell in cells], run)


def savings(path: Path, columns: list[str], by: list[str]) -> str:
    """Return means with 95 % intervals, and the time that each arm saves compared with no `shuffle`,
    trial by trial."""
    from anabranch_lab.stats import interval

    rows = read_csv(path)
    base = {tuple(row[name] for name in (*by, "trial")): row for row in rows if row["arm"] == "without"}
    lines = []
    for key, of_arm in grouped(rows, *by, "arm").items():
        cells = []
        for column in columns:
            mean, half = interval(float(row[column]) for row in of_arm)
            cell = f"{mean:.2f} ± {half:.2f}"
            if key[-1] != "without":
                pairs = ((row, base.get(tuple(row[name] for name in (*by, "trial")))) for row in of_arm)
                less, half = interval(100 * (1 - float(row[column]) / float(other[column])) for row, other in pairs if other)
                cell += f" ({-less:+.1f} ± {half:.1f} %)"
            cells.append(cell)
        lines.append([*key, *cells])
    return table([*by, "arm", *columns], lines, "l" * (len(by) + 1) + "r")


def intervals(flows: list[Row], end: str) -> list[float]:
    """Return the times between the beginnings of consecutive flows that share this end."""
    begun: dict[str, list[float]] = {}
    for flow in flows:
        begun.setdefault(flow[end], []).append(float(flow["begun_s"]))
    return [b - a for times in begun.values() for a, b in itertools.pairwise(sorted(times))]


@LAB.verb(out=LAB.folder)
def draw(args) -> None:
    """Prints the tables, and draws the figures: completion of coflows, and the trace of the paper's section 3.3."""
    import matplotlib as mpl
    from anabranch_lab.figures import THEMES, add_legend, name_axes, panels, save_themed

    print(savings(args.out / "measured.csv", ["coflow_mean_s", "shuffle_s", "job_s", "coflow_max_s"], ["fabric"]), end="\n\n")
    if (args.out / "spark.csv").exists():
        print(savings(args.out / "spark.csv", ["fetch_wait_mean_s", "shuffle_s", "job_s"], ["series"]), end="\n\n")
    coflows, flows = read_csv(args.out / "coflows.csv"), read_csv(args.out / "flows.csv")
    flows = [flow for flow in flows if (flow["fabric"], flow["arm"]) == ("wide", "without")]
    fabrics = list(dict.fromkeys(row["fabric"] for row in coflows))
    arms = list(dict.fromkeys(row["arm"] for row in coflows))
    volumes: dict[str, float] = {}
    for flow in flows:
        volumes[flow["reducer"]] = volumes.get(flow["reducer"], 0) + float(flow["size_bytes"]) / 1e6
    trace = {
        "Between a coflow's flows": [
            ("to a reducer", intervals(flows, "reducer")),
            ("from a mapper", intervals(flows, "from")),
        ],
        "A flow": [("flows", [float(f["ended_s"]) - float(f["begun_s"]) for f in flows])],
        "What a reducer receives": [("reducers", list(volumes.values()))],
    }
    for name, values in (("reducer", intervals(flows, "reducer")), ("mapper", intervals(flows, "from"))):
        late = sum(value > 0.2 for value in values) / len(values)
        print(f"intervals by {name}: {100 * late:.0f} % above 200 ms, the longest {max(values):.2f} s")
    seconds = sorted(trace["A flow"][0][1])
    print(f"flows: {len(seconds)}, of which 60 % take at most {seconds[int(0.6 * len(seconds))]:.2f} s")
    print(f"reducers: {min(volumes.values()):.1f} to {max(volumes.values()):.1f} MB")

    def cumulative(theme: str, titles: list[str], of: list[list[tuple[str, list[float]]]], xs: list[str]) -> tuple[Any, list[Any]]:
        canvas, [every] = panels(theme, 1, len(titles), size=(3.4 * len(titles), 3.6), font_size=9, sharey=True)
        for axes, title, curves, x in zip(every, titles, of, xs, strict=True):
            for (label, values), colour in zip(curves, THEMES[theme].lines, strict=False):
                # The legend has the first plot's lines.
                if values:
                    axes.ecdf(values, color=colour, label=label if axes is every[0] else f"_{label}")
            axes.tick_params(colors=THEMES[theme].ink, length=0, which="both")
            name_axes(axes, theme, x=x)
            axes.set_title(title, color=THEMES[theme].ink, loc="left", fontsize=10, fontweight="bold")
        every[0].yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        return canvas, every

    def completion(theme: str) -> Any:
        took = {(fabric, arm): [float(row["took_s"]) for row in rows] for (fabric, arm), rows in grouped(coflows, "fabric", "arm").items()}
        of = [[(arm, took.get((fabric, arm), [])) for arm in arms] for fabric in fabrics]
        canvas, _ = cumulative(theme, fabrics, of, ["coflow completion time, s"] * len(fabrics))
        add_legend(canvas, theme, 2 * len(fabrics))
        return canvas

    def traced(theme: str) -> Any:
        canvas, every = cumulative(theme, list(trace), list(trace.values()), ["s", "s", "MB"])
        every[0].set_xscale("symlog", linthresh=0.01)
        add_legend(canvas, theme, 2 * len(trace))
        return canvas

    with mpl.rc_context({"font.size": 9}):
        for name, make in (("figure-9", completion), ("figures-2-to-4", traced)):
            save_themed(make, args.out, name, {})


if __name__ == "__main__":
    sys.exit(LAB.main())
