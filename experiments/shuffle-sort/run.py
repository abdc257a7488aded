"""A distributed sort on the Flow Chasing paper's leaf-spine, with and without `anabranch shuffle`, emulated in real time.

``run.py all`` builds the network with ``anabranch emulate`` for each trial, has the sort of
`crates/announce/examples/sort.rs` run on its hosts, checks what was sorted and adds rows to ``measured.csv``,
``coflows.csv`` and, of the first trial without, ``flows.csv``; arms take turns. What the emulator distrusts is noted,
and tried again. ``smoke``, which ``make test`` runs, is one small trial with and one without, of which nothing is
written; it prints why it is left out where namespaces are missing. ``spark`` has Spark sort (`spark.py`), ``trial`` is
what runs inside, ``draw`` draws the figures and prints the tables; it alone needs the lab's environment. Exit code 1 if
something fails, 2 on wrong usage.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LEAVES, SPINES = 4, 2
PORT = 7200
#: The fabrics: rates of a host's link and of one between switches, Mbit/s.
FABRICS = {
    # Whatever hosts send, the core carries.
    "wide": (20.0, 40.0),
    # As in the paper, where 9 hosts of a leaf share two uplinks as fast as theirs: 4.5 to 1.
    "narrow": (36.0, 8.0),
}
#: What agents say of a link: what is left for data once headers (52 of 1,500 bytes) and acknowledgements are taken off.
LINK_SHARE = 0.95
#: What an arm is called in which agents also say what their leaf's uplinks carry, after its allocator.
UPLINKS = ", uplinks"
TRIES = 3
Row = dict[str, Any]


def topology(hosts: int, rate: float, uplink: float) -> str:
    """Spines, leaves, hosts below leaves, and a control network of its own, as in the paper's section 5.1.

    The way through the control network is longer than that through the fabric, so data never takes it.
    """
    spines = [f"spine{n}" for n in range(SPINES)]
    leaves = [f"leaf{n}" for n in range(LEAVES)]
    lines = ['name = "leaf-spine"']
    for switch in [*spines, *leaves, "management"]:
        lines += ["[[site]]", f'name = "{switch}"', "switch = true"]
    for host in ["control", *(f"h{n}" for n in range(hosts))]:
        lines += ["[[site]]", f'name = "{host}"']
    cables = [(leaf, spine, uplink, "100 us") for leaf in leaves for spine in spines]
    cables += [(f"h{n}", leaves[n % LEAVES], rate, "100 us") for n in range(hosts)]
    cables += [(host, "management", 50.0, "1 ms") for host in ["control", *(f"h{n}" for n in range(hosts))]]
    for a, b, mbps, delay in cables:
        lines += ["[[cable]]", f'between = ["{a}", "{b}"]', f'capacity = "{mbps} Mbit/s"', f'delay = "{delay}"']
    return "\n".join(lines) + "\n"


def run_trial(task: dict[str, Any]) -> list[Row]:
    """Runs the sort from inside the control site; gives all that its workers say."""
    folder, hosts = pathlib.Path(task["folder"]), task["hosts"]
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
        raise SystemExit(f"run.py: workers ended with {codes}")
    said = [json.loads(line) for n in range(hosts) for line in (folder / f"h{n}.jsonl").open()]
    if task["agents"]:
        ask = [task["binary"], "shuffle", "status", "--json", "--history", "1000", "--keys", str(folder / "keys")]
        ask += ["--coordinator", f"https://{os.environ['ANABRANCH_ADDRESS']}:7190"]
        status = subprocess.run(ask, check=True, stdout=subprocess.PIPE)
        said.append({"kind": "history", "coflows": len({c["name"] for c in json.loads(status.stdout)["history"]})})
    return said


def figures(said: list[Row]) -> tuple[Row, list[Row]]:
    """What a trial comes to, and its coflows. A coflow is all flows to one reducer (section 5.3.1)."""
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
    """The coordinator's file of hosts: which leaf each is below, and what a leaf's uplinks carry together."""
    leaves = [f'[[uplink]]\nname = "leaf{leaf}"\nrate = "{mbps} Mbit/s"\n' for leaf in range(LEAVES)]
    below = [f'[[host]]\nname = "h{n}"\nuplinks = ["leaf{n % LEAVES}"]\n' for n in range(hosts)]
    return "".join(leaves + below)


def emulate(
    args: argparse.Namespace, folder: pathlib.Path, fabric: str, arm: str, tries: int = TRIES
) -> tuple[Row, list[Row], list[Row]]:
    """One trial in an emulation of its own: its row, its coflows, its flows. Without tries it need not be trusted.

    Raises
    ------
    SystemExit
        If it fails, or is not trusted so many times.
    """
    rate, uplink = FABRICS[fabric]
    network, result, report = folder / "network.toml", folder / "result.json", folder / "report.json"
    network.write_text(topology(args.hosts, rate, uplink))
    out = folder / "out"
    common = [
        "--out",
        str(out),
        "--records",
        str(args.records),
        "--reducers",
        str(args.reducers),
        "--skew",
        str(args.skew),
    ]
    task = {
        "folder": str(folder),
        "hosts": args.hosts,
        "sort": str(args.sort),
        "binary": str(args.binary),
        "common": common,
        "tasks": args.tasks,
        # Input and output at three times the rate of a link; the paper chose its links' rate for its disks'.
        "disk": args.disk_share * rate * 1e6 / 8,
        "agents": arm != "without",
        "seconds_max": args.seconds_max,
        "result": str(result),
    }
    quiet, keys = "" if args.verbose else "-q ", folder / "keys"
    runs = []
    if arm != "without":
        allocator = arm.removesuffix(UPLINKS)
        line = f"exec {args.binary} {quiet}shuffle coordinator --listen $ANABRANCH_ADDRESS:7190 --keys {keys}"
        if arm.endswith(UPLINKS):
            hosts = folder / "hosts.toml"
            hosts.write_text(uplinks(args.hosts, LINK_SHARE * SPINES * uplink))
            line += f" --hosts {hosts}"
        runs += ["--run", f"control={line} --allocator {allocator} --store {folder}/coordinator.redb"]
        for n in range(args.hosts):
            line = f"exec {args.binary} {quiet}shuffle agent --name h{n} --keys {keys}"
            line += " --coordinator https://{@control}:7190"
            line += f" --link '{LINK_SHARE * rate} Mbit/s' --address $ANABRANCH_ADDRESS --listen {folder}/h{n}.sock"
            runs += ["--run", f"h{n}={line} --state {folder}/h{n}.state"]
    command = [str(args.binary), "-q", "emulate", str(network), "--site", "control", "--report", str(report)]
    command += ["--congestion-control", args.congestion_control, "--settle", "2 s", "--seed", str(args.seed), *runs]
    command += ["--duration", f"{args.seconds_max + 30} s"]
    command += ["--", sys.executable, str(HERE / "run.py"), "trial", json.dumps(task)]
    distrusted = 0
    while True:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        (folder / "coordinator.redb").unlink(missing_ok=True)
        subprocess.run(command, check=True)
        emulated = json.loads(report.read_text())["report"]
        if emulated["trusted"] or not tries:
            break
        distrusted += 1
        print(f"run.py: not trusted: {'; '.join(emulated['why'])}", file=sys.stderr)
        if distrusted == tries:
            raise SystemExit(f"run.py: {fabric}, {arm}: the emulation was too late {tries} times")
    subprocess.run(
        [str(args.sort), "check", "--workers", str(args.hosts), *common], check=True, stdout=subprocess.DEVNULL
    )
    said = json.loads(result.read_text())
    row, coflows = figures(said)
    heard = sum(s["coflows"] for s in said if s["kind"] == "history")
    if arm != "without" and heard != len(coflows):
        raise SystemExit(f"run.py: {fabric}, {arm}: the coordinator heard of {heard} coflows of {len(coflows)}")
    row |= {
        "dropped_packets": emulated["drops"]["queue_full"],
        "lateness_us_p99": emulated["lateness_us_p99"],
        "distrusted_before": distrusted,
    }
    return row, coflows, [s for s in said if s["kind"] == "flow"]


def smoke(args: argparse.Namespace) -> int:
    """A small sort with and one without: what is sorted is right, and the coordinator hears of all coflows."""
    with tempfile.TemporaryDirectory(prefix="shuffle-sort-") as name:
        folder = pathlib.Path(name)
        make_keys(args, folder)
        (folder / "network.toml").write_text(topology(args.hosts, *FABRICS["wide"]))
        probe = [str(args.binary), "-q", "emulate", str(folder / "network.toml"), "--", "true"]
        probed = subprocess.run(probe, check=False, capture_output=True, text=True)
        if probed.returncode != 0:
            print(f"shuffle-sort: skipped: 1 ({' '.join(probed.stderr.split())})")
            return 0
        for arm in ("without", "chase+"):
            row, coflows, flows = emulate(args, folder, "wide", arm, tries=0)
            print(f"shuffle-sort: {arm}: sorted, {len(flows)} flows of {len(coflows)} coflows in {row['shuffle_s']} s")
    return 0


def run_spark(args: argparse.Namespace) -> int:
    """Spark's sorts, all trials in one emulation and one application; nothing is added if it is not trusted."""
    sys.path.insert(0, str(HERE))
    from spark import jobs_of

    measured = args.out / "spark.csv"
    rate, uplink = FABRICS["wide"]
    with tempfile.TemporaryDirectory(prefix="shuffle-sort-") as name:
        folder = pathlib.Path(name)
        make_keys(args, folder)
        network, report = folder / "network.toml", folder / "report.json"
        network.write_text(topology(args.hosts, rate, uplink))
        task = {
            "folder": str(folder),
            "binary": str(args.binary),
            "hosts": args.hosts,
            "link": f"{LINK_SHARE * rate} Mbit/s",
            "records": args.records,
            "reducers": args.reducers,
            "tasks": args.tasks,
            "trials": args.trials,
            "arms": args.arms,
        }
        command = [str(args.binary), "-q", "emulate", str(network), "--site", "control", "--report", str(report)]
        command += ["--congestion-control", args.congestion_control, "--seed", str(args.seed)]
        command += ["--", sys.executable, str(HERE / "spark.py"), json.dumps(task)]
        done = subprocess.run(command, check=False)
        if done.returncode != 0:
            for log in sorted(folder.glob("*.log")):
                print(f"{log.name}: {log.read_text(errors='replace')[-600:]}", file=sys.stderr)
            raise SystemExit("run.py: Spark's sorts failed")
        emulated = json.loads(report.read_text())["report"]
        if not emulated["trusted"]:
            raise SystemExit(f"run.py: not trusted: {'; '.join(emulated['why'])}: run it again")
        (log,) = (folder / "events").iterdir()
        series = max((int(row["series"]) for row in read(measured)), default=0) + 1
        late = {"lateness_us_p99": emulated["lateness_us_p99"]}
        rows = [{"series": series} | row | late for row in jobs_of(log)]
    args.out.mkdir(parents=True, exist_ok=True)
    append(measured, rows)
    for row in rows:
        print(" ".join(f"{name}={value}" for name, value in row.items()))
    return 0


def make_keys(args: argparse.Namespace, folder: pathlib.Path) -> None:
    """Certificates for the coordinator and all hosts."""
    hosts = ",".join(f"h{n}" for n in range(args.hosts))
    made = [str(args.binary), "-q", "shuffle", "keys", "--hosts", hosts, "--operators", "operator"]
    subprocess.run([*made, "--out", str(folder / "keys")], check=True)


def append(path: pathlib.Path, rows: list[Row]) -> None:
    """More rows of a table as CSV."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        if is_new:
            table.writeheader()
        table.writerows(rows)


def read(path: pathlib.Path) -> list[Row]:
    """A table as text."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def goes_on(args: argparse.Namespace, done: set[tuple[str, str, str]]) -> None:
    """Sees that what is there was measured alike, and drops what a trial that was cut off has left.

    Raises
    ------
    SystemExit
        If it was not.
    """
    names = ("hosts", "records", "reducers", "tasks", "skew", "disk_share", "congestion_control", "seed")
    settings = {name: getattr(args, name) for name in names}
    path = args.out / "settings.json"
    if done and path.exists() and (before := json.loads(path.read_text())) != settings:
        other = ", ".join(f"{name} {before.get(name)}" for name in names if before.get(name) != settings[name])
        raise SystemExit(f"run.py: {args.out / 'measured.csv'} is of {other}: take another --out, or move it away")
    path.write_text(json.dumps(settings, indent=2) + "\n")
    for name in ("coflows.csv", "flows.csv"):
        rows = read(args.out / name)
        whole = [row for row in rows if (row["fabric"], row["arm"], row["trial"]) in done]
        if len(whole) < len(rows):
            (args.out / name).unlink()
            if whole:
                append(args.out / name, whole)


def run_all(args: argparse.Namespace) -> int:
    """All trials that are not in the output yet, arms in turns."""
    args.out.mkdir(parents=True, exist_ok=True)
    measured = args.out / "measured.csv"
    done = {(row["fabric"], row["arm"], row["trial"]) for row in read(measured)}
    goes_on(args, done)
    with tempfile.TemporaryDirectory(prefix="shuffle-sort-") as name:
        folder = pathlib.Path(name)
        make_keys(args, folder)
        for trial in range(args.trials):
            for fabric in args.fabrics:
                for arm in args.arms:
                    if (fabric, arm, str(trial)) in done:
                        continue
                    begun = time.monotonic()
                    row, coflows, flows = emulate(args, folder, fabric, arm)
                    which = {"fabric": fabric, "arm": arm, "trial": trial}
                    append(args.out / "coflows.csv", [which | coflow for coflow in coflows])
                    if trial == 0 and arm == "without":
                        append(args.out / "flows.csv", [which | flow for flow in flows])
                    append(measured, [which | row])
                    shown = " ".join(f"{name}={value}" for name, value in (which | row).items())
                    print(f"{shown} ({time.monotonic() - begun:.0f} s)", flush=True)
    return 0


def table(path: pathlib.Path, columns: list[str], by: list[str]) -> str:
    """Means with 95 % intervals, and what each arm saves of what it takes without, trial by trial."""
    import pandas as pd
    from anabranch_lab.stats import means

    rows = pd.read_csv(path)
    base = rows[rows["arm"] == "without"].set_index([*by, "trial"])
    lines = [
        "| " + " | ".join([*by, "arm", *columns]) + " |",
        "|" + " --- |" * (len(by) + 1) + " ---: |" * len(columns),
    ]
    for key, of_arm in rows.groupby([*by, "arm"], sort=False):
        cells = []
        for column in columns:
            (mean,) = means(of_arm.assign(all=1), column, by="all").itertuples()
            saved = 100 * (1 - of_arm.set_index([*by, "trial"])[column] / base[column]).dropna()
            (less,) = means(pd.DataFrame({"saved": saved.to_numpy(), "all": 1}), "saved", by="all").itertuples()
            cell = f"{mean.mean:.2f} ± {mean.high - mean.mean:.2f}"
            if key[-1] != "without":
                cell += f" ({-less.mean:+.1f} ± {less.high - less.mean:.1f} %)"
            cells.append(cell)
        lines.append("| " + " | ".join([*map(str, key), *cells]) + " |")
    return "\n".join(lines)


def panels(look: Any, titles: list[str]) -> tuple[Any, list[Any]]:
    """A figure with a row of axes for cumulative distributions."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(3.4 * len(titles), 3.6), dpi=150, facecolor=look.paper, layout="constrained")
    every = list(canvas.subplots(1, len(titles), sharey=True, squeeze=False)[0])
    for axes, title in zip(every, titles, strict=True):
        axes.set_facecolor(look.paper)
        axes.grid(color=look.grid, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=look.ink, length=0, which="both")
        axes.set_title(title, color=look.ink, loc="left", fontsize=10, fontweight="bold")
        for spine in axes.spines.values():
            spine.set_visible(False)
    every[0].yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    return canvas, every


def finish(canvas: Any, look: Any, path: pathlib.Path, theme: str) -> None:
    """The legend, and the files."""
    from anabranch_lab.figures import save

    handles = dict(zip(*reversed(canvas.axes[0].get_legend_handles_labels()), strict=True))
    legend = canvas.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower left",
        ncols=2 * len(canvas.axes),
        fontsize=8.5,
        frameon=False,
    )
    for text in legend.get_texts():
        text.set_color(look.ink)
    for suffix in ("svg", "png"):
        save(canvas, path.with_name(f"{path.name}{'' if theme == 'light' else '-dark'}.{suffix}"), {})


def intervals(flows: list[Row], end: str) -> list[float]:
    """Times between the beginnings of flows that share this end, one after the other."""
    begun: dict[str, list[float]] = {}
    for flow in flows:
        begun.setdefault(flow[end], []).append(float(flow["begun_s"]))
    return [b - a for times in begun.values() for a, b in itertools.pairwise(sorted(times))]


def draw(args: argparse.Namespace) -> int:
    """The tables, and the figures: coflows' completion, and the trace that the paper's section 3.3 is about."""
    import matplotlib as mpl
    from anabranch_lab.figures import THEMES

    print(
        table(args.out / "measured.csv", ["coflow_mean_s", "shuffle_s", "job_s", "coflow_max_s"], ["fabric"]),
        end="\n\n",
    )
    if (args.out / "spark.csv").exists():
        print(table(args.out / "spark.csv", ["fetch_wait_mean_s", "shuffle_s", "job_s"], ["series"]), end="\n\n")
    coflows, flows = read(args.out / "coflows.csv"), read(args.out / "flows.csv")
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
    for theme, look in THEMES.items():
        with mpl.rc_context({"font.family": "sans-serif", "font.size": 9}):
            canvas, every = panels(look, fabrics)
            for axes, fabric in zip(every, fabrics, strict=True):
                for arm, colour in zip(arms, look.lines, strict=False):
                    of_arm = [float(r["took_s"]) for r in coflows if (r["fabric"], r["arm"]) == (fabric, arm)]
                    if of_arm:
                        axes.ecdf(of_arm, color=colour, label=arm)
                axes.set_xlabel("coflow completion time, s", color=look.ink)
            finish(canvas, look, args.out / "figure-9", theme)
            canvas, every = panels(look, list(trace))
            for axes, (curves, unit) in zip(every, zip(trace.values(), ("s", "s", "MB"), strict=True), strict=True):
                for (label, values), colour in zip(curves, look.lines, strict=False):
                    axes.ecdf(values, color=colour, label=label)
                axes.set_xlabel(unit, color=look.ink)
            every[0].set_xscale("symlog", linthresh=0.01)
            finish(canvas, look, args.out / "figures-2-to-4", theme)
    return 0


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    native, small, spark = (verbs.add_parser(verb) for verb in ("all", "smoke", "spark"))
    for verb in (native, small, spark):
        verb.add_argument("--out", type=pathlib.Path, default=HERE)
        verb.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/anabranch")
        verb.add_argument("--trials", type=int, default=5)
        verb.add_argument("--hosts", type=int, default=LEAVES if verb is small else 8)
        verb.add_argument("--reducers", type=int, default=2, help="of each worker")
        verb.add_argument("--tasks", type=int, default=2, help="map tasks of each worker")
        verb.add_argument("--congestion-control", default="reno")
        verb.add_argument("--seed", type=int, default=1, help="of ways through the fabric")
    for verb in (native, small):
        verb.add_argument("--sort", type=pathlib.Path, default=ROOT / "target/release/examples/sort")
        verb.add_argument(
            "--records", type=int, default=80_000 if verb is small else 4_000_000, help="of 100 bytes, in all"
        )
        verb.add_argument("--skew", type=float, default=0.3, help="of what reducers get: 1/rank^SKEW")
        verb.add_argument("--disk-share", type=float, default=3.0, help="a disk's rate, in rates of a host's link")
        verb.add_argument("--seconds-max", type=float, default=240.0)
        verb.add_argument("--verbose", action="store_true")
    native.add_argument("--fabrics", nargs="+", default=list(FABRICS), choices=list(FABRICS))
    native.add_argument("--arms", nargs="+", default=["without", "chase+", "chase", "varys"])
    spark.add_argument("--arms", nargs="+", default=["without", "chase+"])
    spark.add_argument("--records", type=int, default=1_200_000, help="of some 150 bytes, in all")
    verbs.add_parser("draw").add_argument("--out", type=pathlib.Path, default=HERE)
    verbs.add_parser("trial").add_argument("task")
    args = parser.parse_args()
    run = {"all": run_all, "smoke": smoke, "spark": run_spark, "draw": draw}.get(args.verb)
    if run is not None:
        try:
            return run(args)
        except subprocess.CalledProcessError as error:
            print(f"run.py: {error.cmd[0]} ended with {error.returncode}: see above", file=sys.stderr)
            return 1
    task = json.loads(args.task)
    pathlib.Path(task["result"]).write_text(json.dumps(run_trial(task)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
