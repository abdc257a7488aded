"""Speed of ``live``: its optimiser compared with HiGHS, its local control, and one node compared
with nginx and Varnish as caching proxies.

``run.py plans`` runs ``cargo xtask bench live --json``. ``run.py node`` connects many players of
one channel to one relay. ``run.py ages`` connects fewer players below three relays. Rows go to a
folder, a file for each verb. ``run.py docs`` writes the tables of docs/live.md from the committed
rows. ``run.py smoke`` plays at one node for a few seconds and checks the row.

Read first: `Relay`, `measure_node`.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, ROOT, XTASK, Experiment, Option, Row, Rows, commit, filled, grouped, measure, numbers, product, read_csv, repeatable, table, write_csv
from anabranch_lab.programs import Failed, Skipped, await_port, children_cpu_s, free_ports, json_lines, processor_s, quantile, running

LAB = Experiment(__file__, __doc__)
MEASURED = LAB.folder / "measured"
DOCUMENT = ROOT / "docs/live.md"
#: End of the names of warm rounds.
WARM = ", warm"

TOKEN = "0123456789abcdef"
PLAYLIST = "/news/main/index.m3u8"
RATE_KBPS = 2_000
#: Seconds from the beginning of the stream until players start, so that some segments exist.
LEAD_S = 7.0
#: Makes a relay's command from the binary, a folder, the relay's port, its parent's port, and the
#: files of a certificate for TLS.
Command = Callable[[Path, Path, int, int, tuple[Path, Path] | None], list[object]]
#: Folder for files of relays; in memory, so that no disk affects the measurement.
SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


def fill(name: str, folder: Path, **values: object) -> Path:
    """Fill in a configuration file of this folder, and return the path of the copy."""
    text = (LAB.folder / name).read_text()
    for key, value in {"DIR": folder, **values}.items():
        text = text.replace(f"@{key}@", str(value))
    path = folder / name
    path.write_text(text)
    return path


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1 and its key."""
    chain, key = folder / "chain.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*command, *names, "-keyout", key, "-out", chain], check=True, capture_output=True)
    return chain, key


def ours(binary: Path, folder: Path, port: int, parent: int, files: tuple[Path, Path] | None) -> list[object]:
    """Return the command of one ``live node``. With a certificate, its listener without TLS takes any free port."""
    secure = ["--tls", f"127.0.0.1:{port}", "--certificate", files[0], "--certificate-key", files[1]] if files else []
    listen = f"127.0.0.1:{0 if files else port}"
    return [binary, "-q", "live", "node", "--listen", listen, *secure, "--parent", f"http://127.0.0.1:{parent}"]


def nginx(lock: str) -> Command:
    """Return the maker of nginx's command, with ``proxy_cache_lock`` on or off."""

    def command(binary: Path, folder: Path, port: int, parent: int, files: tuple[Path, Path] | None) -> list[object]:
        secure = f"ssl_certificate {files[0]}; ssl_certificate_key {files[1]};" if files else ""
        conf = fill("nginx.conf", folder, PORT=port, PARENT=parent, LOCK=lock, SSL="ssl" if files else "", CERTIFICATE=secure)
        return ["nginx", "-c", conf, "-e", folder / "error.log"]

    return command


def varnish(binary: Path, folder: Path, port: int, parent: int, files: tuple[Path, Path] | None) -> list[object]:
    """Return the command of Varnish, with its default threads and 256 MB of memory. It has no TLS."""
    vcl = fill("varnish.vcl", folder, PARENT=parent)
    return ["varnishd", "-F", "-j", "none", "-n", folder, "-a", f"127.0.0.1:{port}", "-f", vcl, "-s", "malloc,256m"]


#: Maker of a relay's command, by the name in rows.
RELAYS: dict[str, Command] = {"ours": ours, "nginx": nginx("on"), "nginx without lock": nginx("off"), "varnish": varnish}
#: Relays that are measured with TLS to viewers.
TLS_RELAYS = ("ours", "nginx")


def version(relay: str) -> str:
    """Return the version of a relay's program."""
    if relay == "ours":
        return commit("crates")
    command = ["varnishd", "-V"] if relay == "varnish" else ["nginx", "-v"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return next(word for word in said.replace("/", " ").replace("varnish-", " ").split() if word[0].isdigit()).rstrip(")")


@contextlib.contextmanager
def stream(binary: Path, folder: Path, fragment: str, kbps: int = RATE_KBPS) -> Iterator[tuple[int, Path]]:
    """Run a source with one channel, and the counter in front of it; yield the counter's port and log."""
    source, port = free_ports(2)
    (folder / "tokens").write_text(f"news {TOKEN}\n")
    (folder / "counter").mkdir()
    conf = fill("counter.conf", folder / "counter", PORT=port, PARENT=source)
    commands = [
        # Only errors are logged, because a source warns when a publisher ends.
        ["env", "ANABRANCH_LOG=error", binary, "-q", "live", "source", "--listen", f"127.0.0.1:{source}", "--token-file", folder / "tokens", "--part", "200ms"],
        ["nginx", "-c", conf, "-e", folder / "counter/error.log"],
    ]  # fmt: skip
    with running(commands):
        await_port(source)
        await_port(port)
        publish = [binary, "-q", "live", "publish", f"http://127.0.0.1:{source}", "--token", TOKEN, "--channel", "news"]
        with running([[*publish, "--renditions", f"main={kbps}kbit/s", "--fragment", fragment]]):
            time.sleep(LEAD_S)
            urllib.request.urlopen(f"http://127.0.0.1:{port}{PLAYLIST}", timeout=5).read()
            yield port, folder / "counter/requests.log"


@contextlib.contextmanager
def relays(relay: str, count: int, binary: Path, folder: Path, parent: int, files: tuple[Path, Path] | None) -> Iterator[tuple[int, list[int]]]:
    """Run relays, each below the previous one; yield the port of the last one, and all process numbers."""
    ports, commands = free_ports(count), []
    for number, (port, above) in enumerate(zip(ports, [parent, *ports], strict=False)):
        own = folder / f"{relay.replace(' ', '-')}-{number}"
        own.mkdir()
        commands.append(RELAYS[relay](binary, own, port, above, files))
    with running(commands, quiet=relay == "varnish") as programs:
        for port in ports:
            await_port(port)
        yield ports[-1], [program.pid for program in programs]


def play(binary: Path, port: int, players: int, rate: float, seconds: float, files: tuple[Path, Path] | None) -> list[Row]:
    """Play at a relay, over TLS if there is a certificate; return a row for each player."""
    command = [binary, "-q", "live", "play", "--json", "--players", players, "--start-rate", rate, "--duration", f"{seconds}s"]
    command += ["--ca", files[0]] if files else []
    return json_lines([*command, f"{'https' if files else 'http'}://127.0.0.1:{port}{PLAYLIST}"], timeout_s=seconds + 60)


def upstream(log: Path, offset: int) -> Row:
    """Return counts of requests and of objects since an offset of the counter's log, for parts and for blocking playlists."""
    with log.open() as file:
        file.seek(offset)
        paths = [line.split()[1] for line in file if line.endswith("\n")]
    kinds = {
        "parts": [path for path in paths if path.endswith(".m4s") and path.count(".") == 2],
        "playlists": [path for path in paths if "_HLS_msn" in path],
    }
    return {key: value for kind, of in kinds.items() for key, value in ((kind, len(set(of))), (f"upstream_{kind}", len(of)))}


def played(reports: Sequence[Row], fragment_ms: int) -> Row:
    """Return a summary of all players. A part's age is the reported age plus a fragment, because
    the source dates a fragment's first frame by its arrival."""
    joined = [report for report in reports if report["join_s"] is not None]
    if not joined:
        raise Failed("no player has received video")
    ages = [1e3 * report["age_p99_s"] + fragment_ms for report in joined if report["age_p99_s"] is not None]
    middles = [1e3 * report["age_p50_s"] + fragment_ms for report in joined if report["age_p50_s"] is not None]
    return {
        "joined": len(joined),
        "join_ms_p50": round(1e3 * quantile([report["join_s"] for report in joined], 0.5), 1),
        "stalled_players": sum(report["stalls"] > 0 for report in joined),
        "skips": sum(report["skips"] for report in reports),
        "failed": sum(report["failed"] + report["refused"] for report in reports),
        "age_ms_p50": round(quantile(middles, 0.5), 1),
        "age_ms_p99": round(quantile(ages, 0.5), 1),
        "age_ms_p99_worst": round(max(ages), 1),
        "gbit": round(sum(report["video_bytes"] for report in reports) * 8e-9, 3),
    }


def measure_node(binary: Path, cell: Row, folder: Path, log: Path, parent: int, fragment_ms: int, seconds: float) -> Row:
    """Play at the last of some relays, and return their processor time with the video that the players received."""
    offset = log.stat().st_size
    files = certificate(folder) if cell.get("tls") == "yes" else None
    with relays(cell["relay"], cell.get("tiers", 1), binary, folder, parent, files) as (port, processes):
        spent = lambda: sum(processor_s(process, with_children=True) for process in processes)
        cpu_s, players_cpu_s, began = spent(), children_cpu_s(), time.monotonic()
        reports = play(binary, port, cell["players"], cell["players"] / 5, seconds, files)
        cpu_s, players_cpu_s, took_s = spent() - cpu_s, children_cpu_s() - players_cpu_s, time.monotonic() - began
    row = {"version": version(cell["relay"]), **played(reports, fragment_ms)}
    row |= {"cpu_s": round(cpu_s, 2), "cpu_s_per_gbit": round(cpu_s / row["gbit"], 4), "players_cpu_s": round(players_cpu_s, 2), "took_s": round(took_s, 1)}
    return row | upstream(log, offset)


def measured(args, name: str, cells: Iterator[Row], key: Sequence[str], fragment_ms: int) -> int:
    """Measure the cells without rows, each with a new relay below the same stream."""
    available = [relay for relay in args.relay or RELAYS if relay == "ours" or shutil.which("varnishd" if relay == "varnish" else "nginx")]
    for missing in set(args.relay or RELAYS) - set(available):
        print(f"run.py: {missing} is not installed and is left out", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="live-speed-", dir=SCRATCH) as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)  # nginx's workers run as another user
        with stream(args.binary, folder, f"{fragment_ms}ms", args.kbps) as (parent, log):

            def run(cell: Row) -> Row:
                with tempfile.TemporaryDirectory(dir=folder) as own:
                    Path(own).chmod(0o755)
                    return measure_node(args.binary, cell, Path(own), log, parent, fragment_ms, args.seconds)

            rows = Rows(args.rows / f"{name}.csv", key, line_end="\n")
            return measure(rows, (cell for cell in cells if cell["relay"] in available), run)


@LAB.verb(
    rows=LAB.runs, binary=BINARY, relay=repeatable(RELAYS), players=Option([200, 1_000], "players of one channel"), seconds=Option(30.0, "time of each run"), turns=3,
    tls=Option(["no", "yes"], "TLS between the relay and its players", str), kbps=Option(RATE_KBPS, "rate of the channel, in kbit/s")
)  # fmt: skip
def node(args) -> int:
    """Plays one channel at one relay: processor time and upstream requests."""
    cells = product(turn=range(1, args.turns + 1), kbps=[args.kbps], players=args.players, tls=args.tls, relay=RELAYS)
    cells = (cell for cell in cells if cell["tls"] == "no" or cell["relay"] in TLS_RELAYS)
    return measured(args, "node", cells, ["relay", "kbps", "players", "tls", "turn"], 100)


@LAB.verb(
    rows=LAB.runs, binary=BINARY, relay=repeatable(RELAYS), players=Option([20, 100], "players of one channel"), seconds=Option(30.0, "time of each run"), turns=3,
    kbps=Option(RATE_KBPS, "rate of the channel, in kbit/s")
)  # fmt: skip
def ages(args) -> int:
    """Plays one channel below three relays: ages of parts."""
    cells = product(turn=range(1, args.turns + 1), kbps=[args.kbps], players=args.players, relay=RELAYS, tiers=[3])
    return measured(args, "ages", cells, ["relay", "kbps", "players", "tiers", "turn"], 40)


@LAB.verb(
    rows=LAB.runs, xtask=XTASK, peer=Option(help="a Python that has highspy: HiGHS beside ours", kind=Path), peer_seconds=75.0, seeds=[1, 2, 3],
    only=Option([], "instances whose names have one of these texts", str)
)  # fmt: skip
def plans(args) -> int:
    """Runs the optimiser's and the local control's benches; replaces rows of the same instances."""
    command = [args.xtask, "bench", "live", "--json", "--seeds", *args.seeds]
    command += ["--peer", args.peer, "--peer-seconds", args.peer_seconds] if args.peer else []
    found = json_lines([*command, *(["--only", *args.only] if args.only else [])])
    args.rows.mkdir(parents=True, exist_ok=True)
    rounded = lambda row: {key: "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value) for key, value in row.items()}
    version = commit("crates/live-proto")
    for name, columns in {"plans": ["instance", "seed", "peer"], "decisions": ["parents"], "tables": ["channels", "changed_share"]}.items():
        new = [{"commit": version, **rounded(row)} for row in found if columns[-1] in row and (name != "decisions" or "changed_share" not in row)]
        rows = {tuple(row[column] for column in columns): row for row in [*read_csv(args.rows / f"{name}.csv"), *new]}
        if new:
            write_csv(args.rows / f"{name}.csv", rows.values())
    return 0


def span(rows: Sequence[Row], column: str, scale: float = 1.0, digits: int = 2) -> str:
    """Return the range of a column, as one number if both ends are shown alike."""
    values = [scale * value for value in numbers(rows, column)]
    if not values:
        return "–"
    ends = [f"{end:,.{digits}f}" for end in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def plans_table(rows: Sequence[Row]) -> str:
    """Return a line for each window, with the range over the seeds."""
    ours_of, peer_of = ({key[0]: of for key, of in grouped([row for row in rows if bool(row["peer"]) is is_peer], "instance").items()} for is_peer in (False, True))
    lines = []
    for name, cold in ours_of.items():
        if name.endswith(WARM):
            continue
        warm, peer = ours_of.get(name + WARM, []), peer_of.get(name, [])
        cells = [name, cold[0]["requests"] if len(cold) == 1 else span(cold, "requests", digits=0)]
        cells += [span(cold, "gap", 100, 3), span(cold, "gap_of_cost", 100, 2), span(cold, "cpu_s", 1, 3), span(cold, "rss_bytes", 1e-6, 1)]
        cells += [span(warm, "gap", 100, 3), span(warm, "cpu_s", 1, 3)]
        lines.append([*cells, span(peer, "gap", 100, 3) if peer else "–", span(peer, "cpu_s", 1, 0) if peer else "–"])
    head = ["window", "requests", "gap %", "of cost %", "CPU s", "MB", "warm gap %", "warm CPU s", "HiGHS gap %", "HiGHS CPU s"]
    return table(head, lines, "lr")


def control_tables(decisions: Sequence[Row], tables: Sequence[Row]) -> list[str]:
    """Return Algorithm 1's time by the number of parents, and costs of neighbour tables by channels and changes."""
    first = table(["parents", *(row["parents"] for row in decisions)], [["CPU µs", *(f"{1e6 * float(row['cpu_s']):.2f}" for row in decisions)]], "lr")
    lines = [
        [f"{int(row['channels']):,}", f"{100 * float(row['changed_share']):.0f}", f"{float(row['whole_bytes']) / 1e3:,.0f}", f"{float(row['bytes_per_s']) / 1e3:,.1f}"]
        + [f"{1e3 * float(row[column]):,.2f}" for column in ("sender_cpu_share", "receiver_cpu_share")]
        for row in tables
    ]  # fmt: skip
    head = ["channels", "changed % a second", "whole table, kB", "kB a second", "sender, CPU ms a second", "receiver, CPU ms a second"]
    return [first, table(head, lines, "r")]


def node_table(rows: Sequence[Row]) -> str:
    """Return a line for each number of players and each relay, without TLS and with it, with the range over the turns."""
    lines = []
    groups = grouped(rows, "kbps", "players", "tls", "relay").items()
    for (kbps, players, tls, relay), of in sorted(groups, key=lambda one: (-int(one[0][0]), int(one[0][1]), one[0][2])):
        each = [row | {f"{kind}_each": float(row[f"upstream_{kind}"]) / float(row[kind]) for kind in ("parts", "playlists")} for row in of]
        cells = [f"{int(kbps) / 1e3:g}", f"{int(players):,}", tls, f"{relay} {of[0]['version']}" if relay != "ours" else "`live node`", span(each, "parts_each"), span(each, "playlists_each")]
        cells += [span(each, "cpu_s_per_gbit", 1, 3), span(each, "age_ms_p50", 1, 0), span(each, "age_ms_p99", 1, 0), span(each, "stalled_players", 1, 0)]
        lines.append([*cells, span([row | {"busy": (float(row["cpu_s"]) + float(row["players_cpu_s"])) / float(row["took_s"])} for row in each], "busy")])
    head = ["Mbit/s", "players", "TLS", "relay", "upstream requests for a part", "for a playlist", "CPU s per Gbit", "age ms, median", "99th percentile", "stalled players", "cores busy"]
    return table(head, lines, "rrllr")


def ages_table(rows: Sequence[Row]) -> str:
    """Return a line for each number of players and each relay, with the range over the turns."""
    lines = []
    for (players, relay), of in sorted(grouped(rows, "players", "relay").items(), key=lambda one: int(one[0][0])):
        cells = [players, f"{relay} {of[0]['version']}" if relay != "ours" else "`live node`"]
        lines.append([*cells, *(span(of, column, 1, 0) for column in ("age_ms_p50", "age_ms_p99", "age_ms_p99_worst", "stalled_players"))])
    return table(["players", "three relays", "age ms, median", "99th percentile", "of the worst player", "stalled players"], lines, "rlr")


def document() -> str:
    """Return docs/live.md with the tables of the committed rows."""
    read = lambda name: read_csv(MEASURED / f"{name}.csv")
    tables = [plans_table(read("plans")), *control_tables(read("decisions"), read("tables")), node_table(read("node")), ages_table(read("ages"))]
    blocks = {f"speed {number}": new for number, new in enumerate(tables, 1)}
    return filled(DOCUMENT.read_text(), "experiments/live-speed/measured", blocks)


check_tables = LAB.tables_of(DOCUMENT, document)


@LAB.verb(binary=BINARY)
def smoke(args) -> int:
    """Plays at one node for a few seconds and checks the row, and the tables of docs/live.md."""
    check_tables()
    if not shutil.which("nginx"):
        raise Skipped("nginx is not installed")
    with tempfile.TemporaryDirectory(prefix="live-speed-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        with stream(args.binary, folder, "100ms") as (parent, log):
            row = measure_node(args.binary, {"relay": "ours", "players": 5}, folder, log, parent, 100, 6.0)
    if row["joined"] != 5 or row["parts"] == 0 or row["upstream_parts"] != row["parts"]:
        raise Failed(f"one upstream request for each part, to five players: {row}")
    print(f"live-speed: one node, {row}")
    return 0


if __name__ == "__main__":
    sys.exit(LAB.main())
