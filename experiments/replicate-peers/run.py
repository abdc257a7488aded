"""One file to three sites by programs in common use, on an emulated network.

``run.py all`` runs the trials of ``plan.toml``, each in a separate emulation: ``anabranch emulate``
builds the network, and in the source's site `move` starts programs in the other sites by
``nsenter``. A trial that the emulator does not trust is repeated and never counted. ``run.py
expected`` writes ``expected.csv`` from the trials done so far. Standard library only, except
`bittorrent_peer`, one peer of a swarm, which needs libtorrent.

To add another method, write a function like `by_curl` and enter it in `METHODS`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Option, Row, Rows, grouped, measure, read_csv, write_expected
from anabranch_lab.programs import Failed, children_cpu_s

LAB = Experiment(__file__, __doc__)
FILE = "file.bin"
DEVICE = "ab0"
BITTORRENT_PORT = 6881
HTTP_PORT = 8000
RSYNC_PORT = 8730


@dataclasses.dataclass(frozen=True)
class Site:
    """A site of the running emulation.

    Attributes
    ----------
    name, address, namespace
        Values in ``ANABRANCH_SITES``; `namespace` is a path for ``nsenter --net``.
    neighbours
        Names of the sites that it has a link to.
    links
        Links from this site; ``address`` is that of the far end, which this site reaches over exactly
        this link.
    """

    name: str
    address: str
    namespace: str
    neighbours: tuple[str, ...]
    links: tuple[dict[str, Any], ...]

    def inside(self, command: Iterable[str]) -> list[str]:
        """Return the command that runs `command` in this site."""
        return ["nsenter", f"--net={self.namespace}", "--", *command]

    def bytes_sent(self) -> int:
        """Return the IP bytes that programs of this site have sent, retransmissions and acknowledgements included."""
        text = subprocess.run(self.inside(["cat", "/proc/net/dev"]), check=True, capture_output=True, text=True).stdout
        for line in text.splitlines():
            name, _, fields = line.strip().partition(":")
            if name == DEVICE:
                return int(fields.split()[8])
        raise Failed(f"no device {DEVICE} in {self.name}")


@dataclasses.dataclass
class Trial:
    """One trial, inside its emulation.

    Attributes
    ----------
    sites
        All sites, in the order of the topology.
    source, destinations
        Source and destinations of the scenario.
    folder
        Scratch folder with one folder per site; the source's folder holds the file.
    digest
        SHA-256 of the file.
    method
        The method's table of ``plan.toml``.
    deadline
        Time on the monotonic clock after which the trial is given up.
    topology, rate, congestion_control
        Network and rate, in the form of ``anabranch``'s options, and TCP's congestion control.
    binary
        Path of the ``anabranch`` command.
    notes
        Results of a method besides the times.
    """

    sites: dict[str, Site]
    source: Site
    destinations: list[Site]
    folder: Path
    digest: str
    method: dict[str, Any]
    deadline: float
    topology: str
    rate: str
    congestion_control: str
    binary: str
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)
    started: list[subprocess.Popen[str]] = dataclasses.field(default_factory=list)

    def place(self, site: Site) -> Path:
        """The folder of `site`."""
        return self.folder / site.name

    def start(self, site: Site, command: Iterable[str], **options: Any) -> subprocess.Popen[str]:
        """Start a program in `site`; `stop` ends it."""
        process = subprocess.Popen(site.inside(command), text=True, **options)
        self.started.append(process)
        return process

    def stop(self) -> None:
        """End every program that `start` started, and wait for it, so that its processor time is counted."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def left(self) -> float:
        """Seconds until the trial is given up."""
        return max(0.1, self.deadline - time.monotonic())

    def check(self, site: Site) -> None:
        """Raise `Failed` unless `site` has the file, byte for byte."""
        with (self.place(site) / FILE).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self.digest:
                raise Failed(f"{site.name} has another file than the source")


Arrivals = dict[str, float]
"""Seconds from the start of a transfer to its verified end, by destination."""


def await_port(site: Site, port: int, trial: Trial) -> None:
    """Wait until a server in `site` accepts connections on `port`. The probe runs in the site and uses no link."""
    probe = f"import socket; socket.create_connection(('{site.address}', {port}), 1).close()"
    while subprocess.run(site.inside([sys.executable, "-c", probe]), capture_output=True).returncode != 0:
        if trial.left() < 1:
            raise Failed(f"no server on {site.address}:{port}")
        time.sleep(0.05)


def fetch_all(trial: Trial, command: Callable[[Site], list[str]]) -> Arrivals:
    """Let every destination fetch the file by `command`, one after another or all at once, and
    check the fetched files."""
    begun = time.monotonic()
    arrivals: Arrivals = {}
    failures: list[str] = []

    def fetch(site: Site) -> None:
        try:
            process = trial.start(site, command(site), stdout=subprocess.DEVNULL)
            if process.wait(trial.left()) != 0:
                raise Failed(f"exit code {process.returncode}")
            trial.check(site)
            arrivals[site.name] = time.monotonic() - begun
        except (Failed, OSError, subprocess.TimeoutExpired) as error:
            failures.append(f"{site.name}: {error}")

    threads = [threading.Thread(target=fetch, args=(site,)) for site in trial.destinations]
    for thread in threads:
        thread.start()
        if not trial.method["parallel"]:
            thread.join()
    for thread in threads:
        thread.join()
    if failures:
        raise Failed("; ".join(failures))
    return arrivals


def by_curl(trial: Trial) -> Arrivals:
    """Fetch with curl from Python's HTTP server at the source, over one connection per destination."""
    server = [sys.executable, "-m", "http.server", str(HTTP_PORT), "--directory", str(trial.place(trial.source))]
    trial.start(trial.source, server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    await_port(trial.source, HTTP_PORT, trial)
    url = f"http://{trial.source.address}:{HTTP_PORT}/{FILE}"
    return fetch_all(trial, lambda site: ["curl", "-sSf", "-o", str(trial.place(site) / FILE), url])


def by_rsync(trial: Trial) -> Arrivals:
    """Fetch with rsync from a daemon at the source: whole files, no compression, no ssh."""
    config = trial.folder / "rsyncd.conf"
    config.write_text(
        f"use chroot = no\nuid = {os.getuid()}\ngid = {os.getgid()}\n"
        f"[data]\npath = {trial.place(trial.source)}\nread only = yes\n"
    )
    daemon = ["rsync", "--daemon", "--no-detach", f"--config={config}", f"--port={RSYNC_PORT}"]
    trial.start(trial.source, daemon, stdin=subprocess.DEVNULL)
    await_port(trial.source, RSYNC_PORT, trial)
    url = f"rsync://{trial.source.address}:{RSYNC_PORT}/data/{FILE}"
    return fetch_all(trial, lambda site: ["rsync", "--whole-file", url, str(trial.place(site) / FILE)])


def by_bittorrent(trial: Trial) -> Arrivals:
    """Run a swarm of libtorrent peers that know each other, until the last destination has every piece."""
    peers = trial.method["peers"]
    swarm = [trial.source, *trial.destinations] if peers == "ends" else list(trial.sites.values())
    order = {site.name: i for i, site in enumerate(swarm)}
    torrent = trial.folder / "file.torrent"
    make_torrent(trial.place(trial.source) / FILE, torrent, trial.method["piece_kib"] << 10)
    heard: queue.Queue[tuple[Site, str, float]] = queue.Queue()
    processes = {}

    def listen(site: Site, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            heard.put((site, line.strip(), time.monotonic()))
        heard.put((site, "ended", time.monotonic()))

    for site in swarm:
        # Each pair connects once, from the later to the earlier site; the source only accepts
        # connections.
        others = [o for o in swarm if o != trial.source and order[o.name] < order[site.name]]
        others = [trial.source, *others] if site != trial.source else []
        if peers == "neighbours":
            others = [o for o in others if o.name in site.neighbours or site.name in o.neighbours]
        settings = {
            "torrent": torrent,
            "place": trial.place(site),
            "address": site.address,
            "others": [o.address for o in others],
            "seed": site == trial.source,
            "super_seeding": trial.method["super_seeding"],
        }
        process = trial.start(
            site,
            LAB.task(bittorrent_peer, trial.folder, f"peer-{site.name}", **settings).command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes[site.name] = process
        threading.Thread(target=listen, args=(site, process), daemon=True).start()

    def hear(word: str, waited_for: set[str]) -> Arrivals:
        times: Arrivals = {}
        while waited_for - times.keys():
            try:
                site, said, when = heard.get(timeout=trial.left())
            except queue.Empty:
                raise Failed(f"no `{word}` from {', '.join(waited_for - times.keys())}") from None
            if said == word:
                times[site.name] = when
            elif said == "ended":
                raise Failed(f"the peer in {site.name} ended early")
        return {name: times[name] for name in waited_for}

    hear("ready", set(order))
    begun = time.monotonic()
    for process in processes.values():
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = hear("done", {site.name for site in trial.destinations})
    for site in trial.destinations:
        # libtorrent has verified every piece; this is an independent check.
        trial.check(site)
    return {name: when - begun for name, when in ends.items()}


CONTROLLER_PORT = 7171
DATA_PORT = 7172
DAEMONS_READY_S = 3.0
"""Seconds for the connections of controller and site daemons, before the clock starts."""


def by_replicate(trial: Trial) -> Arrivals:
    """Send by `anabranch replicate`: a controller at the source, a daemon at every site; the time
    is that of the whole `send`."""
    binary, keys = trial.binary, trial.folder / "keys"
    network = ["--topology", trial.topology, "--rate", trial.rate]
    make_keys = [binary, "replicate", "keys", "init", *network, "--out", str(keys)]
    subprocess.run(make_keys, check=True, stderr=subprocess.DEVNULL)
    controller = f"{trial.source.address}:{CONTROLLER_PORT}"
    log = (trial.folder / "daemons.log").open("w")
    store = str(trial.folder / "controller.redb")
    options = ["--listen", controller, "--keys", str(keys), "--store", store]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": log}
    trial.start(trial.source, [binary, "replicate", "controller", *network, *options], **quiet)
    for site in trial.sites.values():
        options = ["--site", site.name, "--controller", controller, "--keys", str(keys)]
        options += ["--dir", str(trial.place(site)), "--listen", f"0.0.0.0:{DATA_PORT}"]
        options += ["--advertise", f"{site.address}:{DATA_PORT}"]
        for other in trial.sites.values():
            for link in other.links:
                if link["to"] == site.name:
                    options += ["--link", f"{other.name}={link['address']}:{DATA_PORT}"]
        trial.start(site, [binary, "replicate", "relay", *network, *options], **quiet)
    time.sleep(DAEMONS_READY_S)
    options = ["--from", trial.source.name, "--to", ",".join(site.name for site in trial.destinations)]
    options += ["--scheme", trial.method["scheme"], "--stripes", str(trial.method["stripes"]), "--json"]
    options += ["--congestion-control", trial.congestion_control]
    options += ["--controller", controller, "--keys", str(keys)]
    begun = time.monotonic()
    send = trial.start(
        trial.source, [binary, "replicate", "send", FILE, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert send.stdout is not None
    overdue = threading.Timer(trial.left(), send.kill)
    overdue.start()
    events: list[tuple[float, dict[str, Any]]] = []
    for line in send.stdout:
        events.append((time.monotonic() - begun, json.loads(line)))
    send.wait()
    overdue.cancel()
    seconds = time.monotonic() - begun
    if send.returncode != 0 or not events:
        raise Failed(f"`replicate send` ended with {send.returncode}; last event: {events[-1:]}")
    for site in trial.destinations:
        trial.check(site)
    summary = events[-1][1]
    trial.notes = {key: summary[key] for key in ["scheme", "took_s", "planned_bps", "bound_bps", "attempts"]}
    trial.notes["events"] = [
        [round(when, 3), event.get("event"), event.get("site")]
        for when, event in events
        if event.get("event") != "progress"
    ]
    # The clock of `send` starts with its first attempt; the last destination's time is taken from
    # the end of `send`.
    arrivals: Arrivals = {d["site"]: d["took_s"] for d in summary["destinations"]}
    arrivals[max(arrivals, key=lambda name: arrivals[name])] = seconds
    return arrivals


METHODS: dict[str, Callable[[Trial], Arrivals]] = {
    "bittorrent": by_bittorrent,
    "curl": by_curl,
    "replicate": by_replicate,
    "rsync": by_rsync,
}
"""Functions by method. Each prepares a trial, moves the file to every destination, checks it, and returns the times."""


# Differs from libtorrent's defaults: a closed swarm whose peers are all known and willing.
BITTORRENT_SETTINGS: dict[str, Any] = {
    "enable_dht": False,
    "enable_lsd": False,
    "enable_upnp": False,
    "enable_natpmp": False,
    # TCP, so that congestion control is the same for every method; uTP yields to other traffic on
    # its links.
    "enable_outgoing_utp": False,
    "enable_incoming_utp": False,
    "in_enc_policy": 2,
    "out_enc_policy": 2,
    # No limits, every peer unchoked.
    "upload_rate_limit": 0,
    "download_rate_limit": 0,
    "unchoke_slots_limit": -1,
    "active_downloads": -1,
    "active_seeds": -1,
    "active_limit": -1,
    "connection_speed": 500,
    "torrent_connect_boost": 255,
    "smooth_connects": False,
    "min_reconnect_time": 1,
    "allow_multiple_connections_per_ip": False,
    # Enough concurrent requests to fill 10 Mbit/s over the longest round trip, and not many more.
    "request_queue_time": 3,
    "max_out_request_queue": 2000,
    "max_allowed_in_request_queue": 4000,
    "initial_picker_threshold": 0,
    "close_redundant_connections": False,
}


def make_torrent(file: Path, torrent: Path, piece_bytes: int) -> None:
    """Write the description of `file` that peers need, without a tracker."""
    import libtorrent as lt

    # Only version 1, because both versions would double the hashing.
    description = lt.create_torrent(lt.list_files(str(file)), piece_size=piece_bytes, flags=lt.create_torrent.v1_only)
    lt.set_piece_hashes(description, str(file.parent))
    torrent.write_bytes(lt.bencode(description.generate()))


@LAB.inside
def bittorrent_peer(settings: Row) -> None:
    """Run one peer: print ``ready``, wait for a line, connect, print ``done`` once it has every piece,
    and continue to upload."""
    import libtorrent as lt

    listen = {"listen_interfaces": f"{settings['address']}:{BITTORRENT_PORT}"}
    alerts = {"alert_mask": int(lt.alert.category_t.error_notification | lt.alert.category_t.status_notification)}
    # libtorrent's stubs expect a TypedDict of all settings.
    chosen: Any = {**BITTORRENT_SETTINGS, **listen, **alerts}
    session = lt.session(chosen)
    flags = lt.torrent_flags.disable_dht | lt.torrent_flags.disable_lsd | lt.torrent_flags.disable_pex
    if settings["seed"]:
        flags |= lt.torrent_flags.seed_mode
        if settings["super_seeding"]:
            flags |= lt.torrent_flags.super_seeding
    params = lt.add_torrent_params()
    params.ti = lt.torrent_info(settings["torrent"])
    params.save_path = settings["place"]
    params.flags = flags
    handle = session.add_torrent(params)
    while handle.status().state in (lt.torrent_status.checking_files, lt.torrent_status.checking_resume_data):
        time.sleep(0.02)
    time.sleep(0.2)
    if session.listen_port() != BITTORRENT_PORT:
        sys.exit(f"bittorrent-peer: listens on {session.listen_port()}, not on {BITTORRENT_PORT}")
    print("ready", flush=True)
    sys.stdin.readline()
    for address in settings["others"]:
        handle.connect_peer((address, BITTORRENT_PORT))
    said = settings["seed"]
    while True:
        session.wait_for_alert(20)
        for alert in session.pop_alerts():
            if isinstance(alert, (lt.file_error_alert, lt.torrent_error_alert, lt.hash_failed_alert)):
                print(f"bittorrent-peer {settings['address']}: {alert.message()}", file=sys.stderr)
        if not said and handle.status().is_seeding:
            said = True
            print("done", flush=True)


def processors_used_s() -> float:
    """Return the processor time that the whole machine has used, in seconds, without waiting for discs."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, interrupt, soft_interrupt = (int(f) for f in fields[:7])
    return (user + nice + system + interrupt + soft_interrupt) / os.sysconf("SC_CLK_TCK")


@LAB.inside
def move(task: Row) -> Row:
    """Run one trial inside its emulation, and return its figures."""
    sites = {
        s["name"]: Site(
            name=s["name"],
            address=s["address"],
            namespace=s["namespace"],
            neighbours=tuple(link["to"] for link in s["links"]),
            links=tuple(s["links"]),
        )
        for s in json.loads(os.environ["ANABRANCH_SITES"])
    }
    scenario, folder = task["scenario"], Path(task["folder"])
    for name in sites:
        (folder / name).mkdir()
    source = sites[scenario["source"]]
    # Random bytes, equal in every trial, because they cannot be compressed.
    content = random.Random(1).randbytes(task["file_bytes"])
    (folder / source.name / FILE).write_bytes(content)
    trial = Trial(
        sites=sites,
        source=source,
        destinations=[sites[name] for name in scenario["destinations"]],
        folder=folder,
        digest=hashlib.sha256(content).hexdigest(),
        deadline=time.monotonic() + task["timeout_s"],
        topology=scenario["topology"],
        **{name: task[name] for name in ("method", "rate", "congestion_control", "binary")},
    )
    sent_before = {name: site.bytes_sent() for name, site in sites.items()}
    used_before_s = children_cpu_s()
    try:
        arrivals = METHODS[task["method"]["name"]](trial)
        sent = {name: site.bytes_sent() - sent_before[name] for name, site in sites.items()}
    finally:
        trial.stop()
    return {
        "took_s": max(arrivals.values()),
        "took_s_by_destination": arrivals,
        "source_sent_bytes": sent[source.name],
        "sent_bytes_by_site": sent,
        "cpu_s": children_cpu_s() - used_before_s,
        "verified": True,
        "notes": trial.notes,
    }


KEY = ["topology", "loss", "method", "variant", "trial"]
COLUMNS = [
    *KEY, "took_s", "source_sent_bytes", "links_sent_bytes",
    "link_busiest_bytes", "links_used", "cpu_s", "emulator_cpu_s", "cpu_share_others", "verified", "congestion_control",
    "lateness_us_p50", "lateness_us_p99", "lateness_us_max", "dropped_queue_full", "dropped_loss",
]  # fmt: skip
PLAN = {
    "plan": LAB.folder / "plan.toml",
    "out": LAB.runs,
    "file_mib": Option(kind=int, help="another size of file, for trying things out"),
}


class OtherWork:
    """Measures the share of the processors that other programs of this machine use."""

    def __init__(self) -> None:
        self.used_s, self.own_s, self.began = processors_used_s(), children_cpu_s(), time.monotonic()

    def share(self) -> float:
        """Return the share since this object was made."""
        used = processors_used_s() - self.used_s - (children_cpu_s() - self.own_s)
        return max(0.0, used / (time.monotonic() - self.began) / (os.cpu_count() or 1))


def emulate_trial(binary: Path, settings: Row, scenario: Row, method: Row, cell: Row, out: Path) -> Row:
    """Run one trial in a separate emulation; the full result, including bytes per link, is written to
    `out`."""
    label = f"{cell['topology']}-{cell['loss'].rstrip('%').replace('.', '_')}-{cell['method']}-{cell['variant']}-{cell['trial']}"
    folder = out / f"{label}.files"
    same = {name: settings[name] for name in ("timeout_s", "rate", "congestion_control")}
    task = {"scenario": scenario, "method": method, "file_bytes": settings["file_mib"] << 20, "binary": binary, **same}
    options = ["--rate", settings["rate"], "--loss", cell["loss"], "--mtu", settings["mtu_bytes"]]
    options += ["--congestion-control", settings["congestion_control"], "--lateness-bound", settings["lateness_bound"]]
    options += ["--seed", cell["trial"], "--duration", f"{settings['timeout_s'] + 30} s"]
    folder.mkdir(exist_ok=True)
    other = [OtherWork()]

    def prepare() -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        LAB.task(move, folder, **task)
        other[:] = [OtherWork()]

    inside = LAB.task(move, folder, **task)
    try:
        emulated = LAB.emulate(
            binary, folder, scenario["topology"], inside, *options, site=scenario["source"], tries=settings["tries"], prepare=prepare
        )
    finally:
        others = other[0].share()
        shutil.rmtree(folder, ignore_errors=True)
    (out / f"{label}.network.json").write_text(json.dumps(emulated.network))
    (out / f"{label}.result.json").write_text(json.dumps(emulated.result, indent=1))
    links, late, figures = emulated.network["links"], emulated.report, emulated.result
    sent = [link["sent_bytes"] for link in links]
    return {
        "took_s": round(figures["took_s"], 3),
        "source_sent_bytes": figures["source_sent_bytes"], "links_sent_bytes": sum(sent),
        "link_busiest_bytes": max(sent), "links_used": sum(b > settings["file_mib"] << 20 >> 7 for b in sent),
        "cpu_s": round(figures["cpu_s"], 2), "emulator_cpu_s": round(late["forwarder_cpu_s"], 2),
        "cpu_share_others": round(others, 3),
        **{name: late[name] for name in ("congestion_control", "lateness_us_p50", "lateness_us_p99", "lateness_us_max")},
        "verified": figures["verified"],
        "dropped_queue_full": sum(link["dropped_queue_full"] for link in links),
        "dropped_loss": sum(link["dropped_loss"] for link in links),
    }  # fmt: skip


@LAB.verb("all", binary=BINARY, only=Option(repeats=True, help="trials whose name has every one of these words"), **PLAN)
def all_trials(args) -> int:
    """Runs all trials without a row. A row is written as soon as its trial ends, so an interrupted
    run can be continued."""
    plan = tomllib.loads(args.plan.read_text())
    settings = plan["settings"] | ({"file_mib": args.file_mib} if args.file_mib else {})
    args.out.mkdir(parents=True, exist_ok=True)
    asked = {}
    for trial in range(1, settings["trials"] + 1):
        for method in plan["method"]:
            for scenario in plan["scenario"]:
                for loss in settings["loss"]:
                    cell = (scenario["topology"], loss, method["name"], method["variant"], str(trial))
                    if all(word in " ".join(cell) for word in args.only):
                        asked[cell] = scenario, method
    if not asked:
        raise Failed(f"--only {' --only '.join(args.only)}: no trial's name has all of these words")

    def run(cell: Row) -> Row:
        scenario, method = asked[tuple(cell.values())]
        return emulate_trial(args.binary, settings, scenario, method, cell, args.out)

    def show(rows: list[Row]) -> str:
        (row,) = rows
        sent = f"source sent {row['source_sent_bytes'] / 1e6:.1f} MB, links {row['links_sent_bytes'] / 1e6:.1f} MB"
        return f"{' '.join(row[name] for name in KEY)}: {row['took_s']} s, {sent}, lateness p99 {row['lateness_us_p99']:.0f} us"

    cells = [dict(zip(KEY, cell, strict=True)) for cell in asked]
    return measure(Rows(args.out / "trials.csv", KEY, COLUMNS), cells, run, show=show)


OURS = "replicate"


@LAB.verb(**PLAN)
def expected(args) -> None:
    """Writes ``expected.csv``: every variant, the best peer, and the claim's ratio if our method has rows."""
    plan = tomllib.loads(args.plan.read_text())
    ratio_max = plan["settings"]["ratio_max"]
    out: list[Row] = []

    def say(metric: str, published: object, ours: object, tolerance: str, note: str) -> None:
        out.append({"claim": plan["claim"], "metric": metric, "published": published, "ours": ours, "tolerance": tolerance, "note": note})

    for (topology, loss), here in sorted(grouped(read_csv(args.out / "trials.csv"), "topology", "loss").items()):
        case = f"{topology}.loss_{round(float(loss.rstrip('%')) * 1e4)}ppm"
        variants = grouped(here, "method", "variant")
        # The upper median of a variant's trials.
        middle = {key: sorted(trials, key=lambda r: float(r["took_s"]))[len(trials) // 2] for key, trials in variants.items()}
        for (method, variant), row in sorted(middle.items()):
            trials = variants[method, variant]
            busy = [float(r["cpu_share_others"]) for r in trials if r["cpu_share_others"]]
            note = (
                f"source sent {row['source_sent_bytes']} bytes; all links {row['links_sent_bytes']} bytes; "
                f"busiest link {row['link_busiest_bytes']} bytes; cpu {row['cpu_s']} s; {row['congestion_control']}; "
                f"lateness p99 {float(row['lateness_us_p99']):.0f} us; {len(trials)} trial(s): "
                f"{' '.join(r['took_s'] for r in trials)} s; processors busy with other work: "
                + (f"{min(busy):.0%} to {max(busy):.0%}" if busy else "not recorded")
            )
            say(f"{case}.{method}.{variant}.took_s", "", row["took_s"], "0.25", note)
        peers = [row for (method, _), row in middle.items() if method != OURS]
        if not peers:
            continue
        best = min(peers, key=lambda r: float(r["took_s"]))
        name = f"{best['method']} {best['variant']}"
        say(f"{case}.best_peer.took_s", "", best["took_s"], "0.25", name)
        for variant in ["auto", "coded"]:
            row = middle.get((OURS, variant))
            ratio = f"{float(row['took_s']) / float(best['took_s']):.3f}" if row else ""
            note = f"seconds of replicate {variant} to those of {name}, at most; {'measured' if ratio else 'not measured yet'}"
            say(f"{case}.ratio_{variant}", ratio_max, ratio, "0", note)
    write_expected(LAB.folder, out)


if __name__ == "__main__":
    sys.exit(LAB.main())
