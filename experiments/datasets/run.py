"""Directories to several sites over loopback: ``replicate send DIR/`` compared with tar through TLS,
rsync, rclone and BitTorrent.

``run.py all`` measures the cells of `SCENARIOS`; methods take turns. Each trial runs in a separate
network namespace, whose loopback counts the bytes of all its programs. The trial makes
the directories, starts servers, and measures the command that a user waits for: seconds, processor
time of all programs, bytes, and the peak of each program's memory. Then it compares all copies with
the source. ``run.py docs`` writes the README's tables from the rows. Standard library only, except
`torrent_peer`, which needs libtorrent.

To add a method, write a class like `Rsync` and enter it in `METHODS`. Read `Trial`, `Method` and
`measure_trial` first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Option, Row, Rows, commit, filled, grouped, measure, numbers, product, read_csv, repeatable, table
from anabranch_lab.programs import Failed, Skipped, await_port, children_cpu_s, free_ports, processor_s, topology

LAB = Experiment(__file__, __doc__)
README = LAB.folder / "README.md"
MEASURED = LAB.folder / "measured"
#: Name of the directory that is copied.
DATA = "data"
#: Name of the large file of the scenario `edited`.
LARGE = "large.bin"
#: Seconds after which a file's hash is kept in an index (git's racy rule, with a margin).
SETTLE_S = 4.0
#: Seconds between two looks at the memory of the programs.
SAMPLE_S = 0.1


# ------------------------------------------------------------------------------------- the programs


@dataclasses.dataclass
class Programs:
    """Programs of a trial, each with its role: ``source``, ``destination``, ``controller`` or ``client``.

    Attributes
    ----------
    roles
        Role by process number, also of programs that have ended.
    peaks
        Peak of the resident memory in KiB, by role and process number.
    """

    roles: dict[int, str] = dataclasses.field(default_factory=dict)
    peaks: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    running: list[subprocess.Popen[bytes]] = dataclasses.field(default_factory=list)

    def start(self, role: str, command: Iterable[object], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program that `stop` ends."""
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL} | options
        program = subprocess.Popen([str(word) for word in command], **options)
        self.roles[program.pid] = role
        self.running.append(program)
        return program

    def stop(self) -> None:
        """End all programs, and wait for them."""
        for program in self.running:
            if program.poll() is None:
                program.terminate()
        for program in self.running:
            try:
                program.wait(10)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        self.running.clear()

    def trees(self) -> Iterator[tuple[str, int]]:
        """Iterate over the running programs and their descendants: role and process number."""
        open_ = [(role, pid) for pid, role in self.roles.items()]
        while open_:
            role, pid = open_.pop()
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                open_ += [(role, int(child)) for child in children]
                yield role, pid

    def cpu_s(self) -> float:
        """Return the processor seconds of all programs so far, also of those that have ended and were waited for."""
        spent = 0.0
        for _, pid in self.trees():
            with contextlib.suppress(OSError):
                spent += processor_s(pid, with_ended=True)
        return spent + children_cpu_s()

    def forget_peaks(self) -> None:
        """Set the peaks of all programs back to what they have now."""
        self.peaks.clear()
        for _, pid in self.trees():
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def note_peaks(self) -> None:
        """Look at the memory of all programs. A program's own peak is exact if it is seen once near its end."""
        for role, pid in self.trees():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmHWM:"):
                        kib = int(line.split()[1])
                        self.peaks[role, pid] = max(kib, self.peaks.get((role, pid), 0))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look at the memory of all programs again and again during the block."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(SAMPLE_S):
                self.note_peaks()

        self.forget_peaks()
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
            self.note_peaks()
        finally:
            ended.set()
            watcher.join()

    def peak_mib(self, role: str) -> float | str:
        """Return the peak of the largest program with a role; empty if there is none."""
        found = [kib for (of, _), kib in self.peaks.items() if of == role]
        return round(max(found) / 1024, 1) if found else ""


@dataclasses.dataclass
class Trial:
    """A trial inside its namespace.

    Attributes
    ----------
    folder
        Scratch folder, with the folder ``s`` of the source and ``d1``, ``d2``, … of destinations.
    cell
        The cell, and the settings of the run.
    programs
        Programs under way.
    absent
        Number of destinations, from the last one, that do not take part yet.
    """

    folder: Path
    cell: Row
    programs: Programs = dataclasses.field(default_factory=Programs)
    absent: int = 0

    @property
    def source(self) -> Path:
        """The directory at the source."""
        return self.folder / "s" / DATA

    @property
    def sites(self) -> list[str]:
        """Names of the destinations that take part."""
        return [f"d{number}" for number in range(1, self.cell["sites"] + 1 - self.absent)]

    @property
    def copies(self) -> list[Path]:
        """The directory at each destination."""
        return [self.folder / site / DATA for site in self.sites]

    def run_all(self, role: str, commands: Iterable[Sequence[object]], **options: Any) -> None:
        """Run commands at the same time, to their ends."""
        log = self.folder / "commands.log"
        with log.open("wb") as file:
            programs = [self.programs.start(role, command, stderr=file, **options) for command in commands]
            codes = [program.wait(self.cell["seconds_max"]) for program in programs]
        if any(codes):
            last = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise Failed(f"{self.cell['method']}: exit codes {codes}: {' / '.join(last)}")


class Method:
    """A way to copy a directory to all destinations.

    Parameters
    ----------
    trial
        The trial, whose source exists.
    """

    #: Scenarios that the method takes part in; every one if empty.
    scenarios: Sequence[str] = ()
    #: Program that the machine must have.
    needs = ""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    @classmethod
    def version(cls, cell: Row) -> str:
        """Return the version of the program."""
        return said_version([cls.needs, "--version"])

    def prepare(self) -> None:
        """Start servers."""

    def copy(self) -> None:
        """Copy the directory to all destinations."""
        raise NotImplementedError


def said_version(command: Sequence[object]) -> str:
    """Return the first word with a digit of what a command prints about its version."""
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout
    return next(word.lstrip("v") for word in said.split() if word.lstrip("v")[:1].isdigit())


class Ours(Method):
    """``anabranch replicate``: a controller, a relay at every site, TLS everywhere. Every site reaches every other one."""

    @classmethod
    def version(cls, cell: Row) -> str:
        """Return the commit of the sources."""
        return commit("crates")

    def prepare(self) -> None:
        """Make keys, and start the controller and the relays."""
        folder, sites = self.trial.folder, ["s", *self.trial.sites]
        cables = [(a, b, {"capacity": "10 Gbit/s", "delay": "0 ms"}) for at, a in enumerate(sites) for b in sites[at + 1 :]]
        (folder / "network.toml").write_text(topology("datasets", [], sites, cables))
        network = ["--topology", folder / "network.toml"]
        replicate = [self.trial.cell["binary"], "-q", "replicate"]
        subprocess.run([*replicate, "keys", "init", *network, "--out", folder / "keys"], check=True)
        port, *ports = free_ports(1 + len(sites))
        self.client = ["--controller", f"127.0.0.1:{port}", "--keys", folder / "keys"]
        log = (folder / "daemons.log").open("wb")
        listen = ["--listen", f"127.0.0.1:{port}", "--keys", folder / "keys", "--store", folder / "controller.redb"]
        self.trial.programs.start("controller", [*replicate, "controller", *network, *listen], stderr=log)
        await_port(port)
        for site, at in zip(sites, ports, strict=True):
            role = "source" if site == "s" else "destination"
            options = ["--site", site, "--dir", folder / site, "--listen", f"127.0.0.1:{at}", "--memory", self.trial.cell["memory"]]
            self.trial.programs.start(role, [*replicate, "relay", *network, *self.client, *options], stderr=log)
        for at in ports:
            await_port(at)
        # Relays register after they listen.
        time.sleep(0.5)

    def copy(self) -> None:
        """Run ``replicate send``."""
        command = [self.trial.cell["binary"], "-q", "replicate", "send", f"{DATA}/", "--from", "s", "--to", ",".join(self.trial.sites)]
        self.trial.run_all("client", [[*command, *self.client]])


class Tar(Method):
    """One ``tar | TLS | tar`` for each destination, all at once. It sends everything each time."""

    needs = "tar"

    def prepare(self) -> None:
        """Make a certificate."""
        files = ["-keyout", self.trial.folder / "key.pem", "-out", self.trial.folder / "chain.pem"]
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subprocess.run([*command, "-subj", "/CN=datasets", "-days", "2", *files], check=True, capture_output=True)

    def copy(self) -> None:
        """Run all pipes to their ends."""
        trial, ends = self.trial, []
        for copy, port in zip(trial.copies, free_ports(len(trial.copies)), strict=True):
            copy.mkdir(exist_ok=True)
            pipe, chain = [sys.executable, "-I", LAB.folder / "tls_pipe.py"], trial.folder / "chain.pem"
            taken = trial.programs.start("destination", [*pipe, "receive", port, chain, trial.folder / "key.pem"], stdout=subprocess.PIPE)
            ends.append(trial.programs.start("destination", ["tar", "-C", copy, "-xf", "-"], stdin=taken.stdout))
            given = trial.programs.start("source", ["tar", "-C", trial.source, "-cf", "-", "."], stdout=subprocess.PIPE)
            ends += [taken, given, trial.programs.start("source", [*pipe, "send", port, chain], stdin=given.stdout)]
            for end in (taken.stdout, given.stdout):
                assert end is not None
                end.close()
        codes = [program.wait(trial.cell["seconds_max"]) for program in ends]
        if any(codes):
            raise Failed(f"tar: exit codes {codes}")


class Rsync(Method):
    """An rsync daemon at the source, without TLS and without ssh; every destination runs ``rsync -a``, all at once."""

    needs = "rsync"
    options: Sequence[str] = ("-a",)

    def prepare(self) -> None:
        """Start the daemon."""
        config, (port,) = self.trial.folder / "rsyncd.conf", free_ports(1)
        config.write_text(
            f"use chroot = no\nuid = {os.getuid()}\ngid = {os.getgid()}\n[s]\npath = {self.trial.source.parent}\nread only = yes\n"
        )
        daemon = ["rsync", "--daemon", "--no-detach", f"--config={config}", "--address=127.0.0.1", f"--port={port}"]
        self.trial.programs.start("source", daemon)
        await_port(port)
        self.url = f"rsync://127.0.0.1:{port}/s/{DATA}/"

    def copy(self) -> None:
        """Let all destinations fetch."""
        self.trial.run_all("destination", (["rsync", *self.options, self.url, f"{copy}/"] for copy in self.trial.copies))


class RsyncDry(Rsync):
    """``rsync -an`` at every destination, which compares and copies nothing."""

    scenarios = ("again",)
    options = ("-an",)


class Rclone(Method):
    """``rclone serve sftp`` at the source; every destination runs ``rclone copy``, all at once, with 16 transfers and 16 checkers."""

    needs = "rclone"

    @classmethod
    def version(cls, cell: Row) -> str:
        """Return the version of the program."""
        return said_version(["rclone", "version"])

    def prepare(self) -> None:
        """Start the server."""
        (port,) = free_ports(1)
        # Variables of this kind change how rclone starts.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RCLONE_"))}
        self.own = ["--config", self.trial.folder / "rclone.conf", "--cache-dir", self.trial.folder / "rclone-cache"]
        obscured = subprocess.run(["rclone", "obscure", "datasets"], check=True, capture_output=True, text=True, env=self.environment)
        remote = ["[source]", "type = sftp", "host = 127.0.0.1", f"port = {port}", "user = datasets", f"pass = {obscured.stdout.strip()}"]
        (self.trial.folder / "rclone.conf").write_text("\n".join(remote) + "\n")
        # Listings of the server expire before the source changes; by default after 5 minutes.
        fresh = ["--dir-cache-time", "2s"]
        serve = ["rclone", "serve", "sftp", self.trial.source.parent, "--addr", f"127.0.0.1:{port}", "--user", "datasets", "--pass", "datasets", *fresh, *self.own]
        log = (self.trial.folder / "rclone.log").open("wb")
        self.trial.programs.start("source", serve, stderr=log, env=self.environment)
        await_port(port)

    def copy(self) -> None:
        """Let all destinations fetch."""
        many = ["--transfers", 16, "--checkers", 16, *self.own]
        commands = (["rclone", "copy", f"source:{DATA}", copy, *many] for copy in self.trial.copies)
        self.trial.run_all("destination", commands, env=self.environment)


class Find(Method):
    """``find -printf`` at the source: how long it takes to look at every entry once."""

    scenarios = ("again",)
    needs = "find"

    def copy(self) -> None:
        """Look at every entry."""
        self.trial.run_all("source", [["find", self.trial.source, "-printf", "%p %s %T@ %C@ %i\\n"]])


class Torrent(Method):
    """libtorrent: a seed and a peer at each destination, which know each other. The torrent is made before the clock starts."""

    scenarios = ("first",)

    @classmethod
    def version(cls, cell: Row) -> str:
        """Return libtorrent's version."""
        return said_version([cell["torrent_python"], "-c", "import libtorrent; print(libtorrent.__version__)"])

    def prepare(self) -> None:
        """Make the torrent, and start all peers."""
        trial, python = self.trial, self.trial.cell["torrent_python"]
        torrent = trial.folder / "data.torrent"
        task = LAB.task(make_torrent, trial.folder, data=trial.source, torrent=torrent)
        subprocess.run([python, *task.command[1:]], check=True)
        names = ["s", *trial.sites]
        ports = free_ports(len(names))
        self.peers = []
        for at, (name, port) in enumerate(zip(names, ports, strict=True)):
            # Each pair connects once, from the later to the earlier one.
            settings = {"torrent": torrent, "place": trial.folder / name, "port": port, "others": ports[:at], "seed": at == 0}
            task = LAB.task(torrent_peer, trial.folder, f"peer-{name}", **settings)
            role = "destination" if at else "source"
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.peers.append(trial.programs.start(role, [python, *task.command[1:]], **pipes))
        self.hear(b"ready", self.peers)

    def hear(self, word: bytes, peers: Iterable[subprocess.Popen[bytes]]) -> None:
        """Wait for a line of each peer."""
        for peer in peers:
            assert peer.stdout is not None
            if peer.stdout.readline().strip() != word:
                raise Failed(f"libtorrent: a peer ended before `{word.decode()}`")

    def copy(self) -> None:
        """Let the peers connect, and wait until all have every piece."""
        overdue = threading.Timer(self.trial.cell["seconds_max"], self.trial.programs.stop)
        overdue.start()
        for peer in self.peers:
            assert peer.stdin is not None
            peer.stdin.write(b"go\n")
            peer.stdin.flush()
        self.hear(b"done", self.peers[1:])
        overdue.cancel()


@LAB.inside
def make_torrent(task: Row) -> None:
    """Write the description of a directory that peers need, without a tracker."""
    import libtorrent as lt

    data = Path(task["data"])
    # Only version 1, because both versions would double the hashing.
    description = lt.create_torrent(lt.list_files(str(data)), piece_size=1 << 20, flags=lt.create_torrent.v1_only)
    lt.set_piece_hashes(description, str(data.parent))
    Path(task["torrent"]).write_bytes(lt.bencode(description.generate()))


#: Differs from libtorrent's defaults: a closed swarm over TCP whose peers are all known.
TORRENT_SETTINGS: Row = {
    "enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False, "enable_outgoing_utp": False, "enable_incoming_utp": False,
    "in_enc_policy": 2, "out_enc_policy": 2, "unchoke_slots_limit": -1, "active_downloads": -1, "active_seeds": -1, "active_limit": -1,
    "allow_multiple_connections_per_ip": True, "close_redundant_connections": False, "max_out_request_queue": 2000, "max_allowed_in_request_queue": 4000,
    "min_reconnect_time": 1,
}  # fmt: skip


@LAB.inside
def torrent_peer(task: Row) -> None:
    """Run one peer: print ``ready``, wait for a line, connect, print ``done`` once it has every piece, and go on uploading."""
    import libtorrent as lt

    chosen: Any = {**TORRENT_SETTINGS, "listen_interfaces": f"127.0.0.1:{task['port']}"}
    session = lt.session(chosen)
    params = lt.add_torrent_params()
    params.ti = lt.torrent_info(task["torrent"])
    params.save_path = task["place"]
    params.flags = lt.torrent_flags.disable_dht | lt.torrent_flags.disable_lsd | lt.torrent_flags.disable_pex
    if task["seed"]:
        params.flags |= lt.torrent_flags.seed_mode
    handle = session.add_torrent(params)
    while handle.status().state in (lt.torrent_status.checking_files, lt.torrent_status.checking_resume_data):
        time.sleep(0.02)
    print("ready", flush=True)
    sys.stdin.readline()
    for port in task["others"]:
        handle.connect_peer(("127.0.0.1", port))
    said = task["seed"]
    while True:
        time.sleep(0.02)
        if not said and handle.status().is_seeding:
            said = True
            print("done", flush=True)


#: Ways to copy, by the names in rows.
METHODS: dict[str, type[Method]] = {
    "ours": Ours, "tar": Tar, "rsync": Rsync, "rclone": Rclone, "libtorrent": Torrent, "rsync -n": RsyncDry, "find": Find,
}  # fmt: skip


# ------------------------------------------------------------------------------------ the scenarios


def content(seed: str, size: int) -> bytes:
    """Return random bytes, which cannot be compressed."""
    return random.Random(seed).randbytes(size)


def file_paths(cell: Row) -> list[str]:
    """Return the paths of the files below the directory."""
    width = len(str(cell["directories"]))
    return [f"{number % cell['directories']:0{width}}/{number:07}" for number in range(cell["files"])]


def make_source(trial: Trial) -> None:
    """Write the directory of a cell."""
    cell, noise = trial.cell, random.Random(str(trial.cell["files"]))
    trial.source.mkdir(parents=True)
    for path in file_paths(cell):
        file = trial.source / path
        if not file.parent.is_dir():
            file.parent.mkdir()
        file.write_bytes(noise.randbytes(cell["file_bytes"]))
    if cell["scenario"] == "edited":
        with (trial.source / LARGE).open("wb") as file:
            for block in range(cell["large_mib"]):
                file.write(content(f"large {block}", 1 << 20))


def change_tenth(trial: Trial) -> Row:
    """Write other bytes to every tenth file."""
    paths = file_paths(trial.cell)[::10]
    for path in paths:
        (trial.source / path).write_bytes(content(f"new {path}", trial.cell["file_bytes"]))
    return {"changed_entries": len(paths), "changed_bytes": len(paths) * trial.cell["file_bytes"]}


def join_site(trial: Trial) -> Row:
    """Write other bytes to every tenth file. The last destination takes part from now on, and lacks everything."""
    trial.absent = 0
    changed, files, sites = change_tenth(trial), trial.cell["files"], trial.cell["sites"]
    entries = ((sites - 1) * changed["changed_entries"] + files) // sites
    return {"changed_entries": entries, "changed_bytes": entries * trial.cell["file_bytes"]}


def rename_directory(trial: Trial) -> Row:
    """Rename the first directory."""
    old = trial.source / file_paths(trial.cell)[0].split("/")[0]
    old.rename(trial.source / "renamed")
    return {"changed_entries": len(list((trial.source / "renamed").iterdir())), "changed_bytes": 0}


def edit_large(trial: Trial) -> Row:
    """Overwrite 100 bytes in the middle of the large file."""
    path = trial.source / LARGE
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(content("edit", 100))
    return {"changed_entries": 1, "changed_bytes": 100}


def change_nothing(trial: Trial) -> Row:
    """Change nothing."""
    return {"changed_entries": 0, "changed_bytes": 0}


#: Functions that change the source before the measured copy; before `first` there are no copies.
SCENARIOS = {"first": change_nothing, "again": change_nothing, "changed": change_tenth, "joined": join_site, "renamed": rename_directory, "edited": edit_large}


# --------------------------------------------------------------------------------------- one trial


def loopback_bytes() -> int:
    """Return the bytes that crossed this namespace's loopback, headers and acknowledgements included."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, fields = line.strip().partition(":")
        if name == "lo":
            return int(fields.split()[0])
    raise Failed("the namespace has no loopback")


def sync(folder: Path) -> None:
    """Wait until the file system's data is on disk."""
    subprocess.run(["sync", "--file-system", folder], check=True)


def check_copies(trial: Trial) -> None:
    """Raise `Failed` unless every entry of the source is at every destination, byte for byte. Further entries may be there."""
    for copy in trial.copies:
        command = ["diff", "--recursive", "--brief", "--no-dereference", trial.source, copy]
        said = subprocess.run([str(word) for word in command], capture_output=True, text=True).stdout
        wrong = [line for line in said.splitlines() if not line.startswith(f"Only in {copy}")]
        if wrong:
            raise Failed(f"{trial.cell['method']}: {len(wrong)} differences, first: {wrong[0]}")


def make_copies(trial: Trial, method: Method) -> None:
    """Make equal copies at all destinations, or all but one, and let the method see them once."""
    trial.absent = int(trial.cell["scenario"] == "joined")
    if isinstance(method, Ours):
        # Ours records the files that it writes, and refuses changes of other files as conflicts.
        method.copy()
    else:
        for copy in trial.copies:
            subprocess.run(["cp", "-a", trial.source, copy], check=True)
    time.sleep(trial.cell["settle_s"])
    if not isinstance(method, Find | RsyncDry):
        # Indexes are made.
        method.copy()


@LAB.inside
def measure_trial(task: Row) -> Row:
    """Measure one cell, inside its namespace."""
    trial = Trial(Path(task["folder"]) / "trial", task)
    trial.folder.mkdir()
    for site in ["s", *trial.sites]:
        (trial.folder / site).mkdir()
    make_source(trial)
    method = METHODS[task["method"]](trial)
    is_first, programs = task["scenario"] == "first", trial.programs
    try:
        method.prepare()
        if not is_first:
            make_copies(trial, method)
        changed = SCENARIOS[task["scenario"]](trial)
        sync(trial.folder)
        with programs.watched():
            wire, cpu_s, began = loopback_bytes(), programs.cpu_s(), time.monotonic()
            method.copy()
            took_s = time.monotonic() - began
            wire, cpu_s = loopback_bytes() - wire, programs.cpu_s() - cpu_s
        sync(trial.folder)
        synced_s = time.monotonic() - began
        if not isinstance(method, Find):
            check_copies(trial)
    finally:
        programs.stop()
    if is_first:
        changed = {"changed_entries": task["files"], "changed_bytes": task["files"] * task["file_bytes"]}
    figures = {"took_s": round(took_s, 3), "synced_s": round(synced_s, 3), "cpu_s": round(cpu_s, 2), "wire_bytes": wire}
    return changed | figures | {f"rss_{role}_mib": programs.peak_mib(role) for role in ROLES}


ROLES = ["source", "destination", "controller", "client"]
#: Columns of a cell.
CELL = ["scenario", "files", "directories", "file_bytes", "large_mib", "sites", "method", "turn"]
COLUMNS = [
    *CELL, "version", "changed_entries", "changed_bytes", "took_s", "synced_s", "cpu_s", "wire_bytes", *(f"rss_{role}_mib" for role in ROLES),
    "load", "commit", "machine",
]  # fmt: skip

#: Options of ``unshare`` that let users make a network namespace.
USER_NAMESPACE = [] if os.geteuid() == 0 else ["--map-current-user", "--keep-caps"]
#: Command that runs another one in a network namespace whose loopback is up.
NAMESPACE = ["unshare", *USER_NAMESPACE, "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def machine() -> str:
    """Return the machine in a few words."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}"


#: Size of a trial's file system. Its file is sparse.
FILE_SYSTEM_BYTES = 64 << 30


@contextlib.contextmanager
def new_folder(scratch: Path) -> Iterator[Path]:
    """Yield a folder in a file system that has no deleted files, or, without root, in that of ``scratch``.

    ext4 gives no inode again in the minutes after its file was deleted, and looks for another one at each new file.
    Trials that followed the removal of 80,000 files took up to nine times as much processor time.
    """
    with tempfile.TemporaryDirectory(prefix="datasets-", dir=scratch) as name:
        folder, image = Path(name) / "mounted", Path(name) / "ext4"
        folder.mkdir()
        with image.open("wb") as file:
            file.truncate(FILE_SYSTEM_BYTES)
        commands = (["mkfs.ext4", "-q", image], ["mount", "-o", "loop,noinit_itable", image, folder])
        is_new = os.geteuid() == 0 and all(shutil.which(words[0]) and subprocess.run(words).returncode == 0 for words in commands)
        if not is_new:
            print(f"{LAB.name}: no new file system, so earlier trials may slow this one: needs root, mkfs.ext4 and loop devices", file=sys.stderr)
        try:
            yield folder
        finally:
            if is_new:
                subprocess.run(["umount", folder], check=True)


def run_trial(cell: Row, settings: Row, scratch: Path) -> Row:
    """Run one cell in a namespace, and return its figures."""
    load = os.getloadavg()[0]
    with new_folder(scratch) as folder:
        task = LAB.task(measure_trial, folder, **cell, **settings)
        done = subprocess.run([*NAMESPACE, *task.command], stdin=subprocess.DEVNULL)
        if done.returncode or not task.result.exists():
            raise Failed(f"the trial ended with {done.returncode}: see above")
        figures: Row = task.read_result()
    version = METHODS[cell["method"]].version(settings)
    return {"version": version, **figures, "load": round(load, 2), "commit": commit(dirty=True), "machine": machine()}


def missing(method: str, torrent_python: Path | None) -> str:
    """Return why this machine cannot run a method; empty if it can."""
    if method == "libtorrent":
        return "" if torrent_python else "--torrent-python names no Python that has libtorrent"
    needs = METHODS[method].needs
    return "" if not needs or shutil.which(needs) else f"no {needs}"


def require_namespace() -> None:
    """Raise `Skipped` on a machine without network namespaces."""
    done = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True)
    if done.returncode:
        raise Skipped(f"no network namespace: {' '.join(done.stderr.split())}")


def cells_of(scenario: str, args: Any, methods: Iterable[str]) -> Iterator[Row]:
    """Iterate over the cells of a scenario; the method changes fastest."""
    files, directories, size, large, sites = args.files, [args.directories], args.file_bytes, 0, args.sites
    if scenario == "again":
        files, directories, size, sites = args.again_files, [args.directories, 1], args.again_bytes, 1
    elif scenario == "renamed":
        # The first directory has `renamed_files` of them.
        directories = [max(1, files // args.renamed_files)]
    elif scenario == "edited":
        files, large = min(files, 100), args.large_mib
    may = [name for name in methods if scenario in (METHODS[name].scenarios or SCENARIOS)]
    yield from product(
        scenario=[scenario], files=[files], directories=[min(files, one) for one in directories], file_bytes=[size], large_mib=[large], sites=[sites],
        turn=range(1, args.turns + 1), method=may,
    )  # fmt: skip


@LAB.verb(
    "all",
    rows=LAB.runs,
    binary=BINARY,
    scenario=repeatable(SCENARIOS, "this scenario"),
    method=repeatable(METHODS, "this method"),
    files=Option(20_000, "files of most scenarios"),
    directories=Option(1_000, "directories of these files"),
    file_bytes=16 << 10,
    again_files=Option(100_000, "files of the scenario `again`, in as many directories as the others, and in one"),
    again_bytes=Option(100, "bytes of each file of the scenario `again`"),
    renamed_files=Option(10_000, "files of the directory that is renamed"),
    large_mib=Option(256, "size of the large file of the scenario `edited`"),
    sites=Option(3, "destinations; one in the scenario `again`"),
    turns=3,
    seconds_max=Option(1800.0, "time limit of each command"),
    settle_s=Option(SETTLE_S, "pause after copies are made: an index keeps the hashes of files that are older"),
    memory=Option("256 MiB", "--memory of our relays"),
    torrent_python=Option(help="a Python that has libtorrent", kind=Path),
    scratch=Option(Path(tempfile.gettempdir()), "where the directories are"),
)  # fmt: skip
def all_cells(args) -> int:
    """Measures all cells that have no row; methods take turns."""
    require_namespace()
    methods = []
    for method in args.method or METHODS:
        if why := missing(method, args.torrent_python):
            print(f"run.py: {method} is left out: {why}", file=sys.stderr)
        else:
            methods.append(method)
    settings = {name: getattr(args, name) for name in ("binary", "seconds_max", "settle_s", "memory", "torrent_python")}
    cells = [cell for scenario in args.scenario or SCENARIOS for cell in cells_of(scenario, args, methods)]
    rows = Rows(args.rows / "rows.csv", CELL, COLUMNS, line_end="\n")
    return measure(rows, cells, lambda cell: run_trial(cell, settings, args.scratch))


# -------------------------------------------------------------------------------------- the tables


def middle(rows: Sequence[Row], column: str) -> float | None:
    """Return the median of a column; ``None`` without values."""
    values = numbers(rows, column)
    return statistics.median(values) if values else None


def shown(value: float | None, scale: float = 1.0, digits: int = 2) -> str:
    """Return a figure for a table."""
    return "–" if value is None else f"{value * scale:,.{digits}f}"


def tables() -> dict[str, str]:
    """Return the table of each scenario, with medians over the turns."""
    blocks = {}
    rows = read_csv(MEASURED / "rows.csv")
    for scenario in SCENARIOS:
        lines = []
        for key, found in grouped([row for row in rows if row["scenario"] == scenario], *CELL[1:-1]).items():
            files, directories, size, large, sites, method = key
            base = f"{int(files):,} x {int(size):,} B in {int(directories):,}" + (f", {large} MiB" if int(large) else "")
            per_site = middle(found, "wire_bytes")
            largest = [value for role in ROLES for value in numbers(found, f"rss_{role}_mib")]
            figures = [shown(middle(found, column)) for column in ("took_s", "synced_s", "cpu_s")]
            wire = shown(None if per_site is None else per_site / int(sites), 1e-6, 3)
            content = shown(middle(found, "changed_bytes"), 1e-6, 3)
            lines.append([base, sites, f"{method} {found[0]['version']}", len(found), *figures, content, wire, shown(max(largest, default=None), digits=0)])
        head = ["files and directories", "sites", "method", "turns", "s", "s, on disk", "CPU s", "content, MB", "MB a site", "largest process, MiB"]
        blocks[scenario] = table(head, lines, "lrlr") if lines else "No rows yet: they need a quiet machine and a release build."
    return blocks


check_tables = LAB.tables_of(README, lambda: filled(README.read_text(), "experiments/datasets/measured", tables()))


@LAB.verb(binary=BINARY)
def smoke(args) -> None:
    """Copies a small directory by ours, tar, rsync and rclone, and runs ours in all scenarios but `edited` and `joined`; skipped where a program is missing."""
    check_tables()
    require_namespace()
    settings = {"binary": args.binary, "seconds_max": 60.0, "settle_s": 0.0, "memory": "256 MiB", "torrent_python": None}
    here = {"files": 60, "directories": 6, "file_bytes": 16 << 10, "large_mib": 1, "sites": 2, "turn": 1}
    absent = [why for method in ("tar", "rsync", "rclone", "find") if (why := missing(method, None))]
    cells = [("first", method) for method in ("ours", "tar", "rsync", "rclone") if not missing(method, None)]
    cells += [("changed", "ours"), ("again", "ours"), ("renamed", "ours"), ("again", "find")]
    found = {}
    with tempfile.TemporaryDirectory(prefix="datasets-smoke-") as scratch:
        for scenario, method in cells:
            cell = here | {"scenario": scenario, "method": method}
            found[scenario, method] = run_trial({name: cell[name] for name in CELL}, settings, Path(scratch))
    for (scenario, method), row in found.items():
        content_bytes = row["changed_bytes"] * here["sites"]
        if not content_bytes <= row["wire_bytes"] <= 1.5 * content_bytes + 400_000:
            raise Failed(f"{scenario}, {method}: {row['wire_bytes']} bytes over the network for {content_bytes} bytes of content")
        # A client may end between two looks at its memory.
        if row["took_s"] <= 0 or (method == "ours" and not all(row[f"rss_{role}_mib"] for role in ROLES if role != "client")):
            raise Failed(f"{scenario}, {method}: no time or no memory: {row}")
    if absent:
        raise Skipped(", ".join(absent))
    print(f"datasets: {len(found)} trials, every copy equal to its source")


if __name__ == "__main__":
    sys.exit(LAB.main())
