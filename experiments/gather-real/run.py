"""One object to one client over loopback: ``gather`` compared with curl and nginx.

``run.py all`` measures each method of `METHODS` and prints a table: goodput, and processor seconds
per gigabyte of servers and client together. Servers are started for each trial and stopped at its
end, so that their CPU time can be counted. Standard library only; needs ``anabranch``, ``curl`` and
``nginx``.

To add a method, write a function like `by_curl` and enter it in `METHODS`.
"""

from __future__ import annotations

import dataclasses
import filecmp
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Option, table
from anabranch_lab.programs import await_port, children_cpu_s, free_ports, json_lines, running, write_nginx

LAB = Experiment(__file__, __doc__)
OBJECT = "object"


class Trial(NamedTuple):
    """One trial: goodput in Gbit/s, processor seconds of both ends per gigabyte, and further
    remarks."""

    gbps: float
    cpu_s_per_gb: float
    note: str


@dataclasses.dataclass(frozen=True)
class Bench:
    """Settings that all trials share.

    Attributes
    ----------
    folder
        Folder of all files.
    anabranch, nginx
        Paths of the programs.
    count
        Number of servers.
    """

    folder: Path
    anabranch: Path
    nginx: str
    count: int

    def gather(self, folders: list[Path], ports: list[int]) -> list[Sequence[object]]:
        """Return the commands that serve these folders by ``gather serve``."""
        serve, keys = [self.anabranch, "gather", "serve"], ["--keys", self.folder / "keys"]
        return [[*serve, folder, "--listen", f"127.0.0.1:{port}", *keys] for folder, port in zip(folders, ports, strict=True)]

    def http(self, ports: list[int], tls: bool) -> list[Sequence[object]]:
        """Return the command of nginx, which serves the object at these ports."""
        pair = (self.folder / "keys/sites/server.pem", self.folder / "keys/sites/server.key")
        listen = [(self.folder, [f"127.0.0.1:{port}{' ssl' if tls else ''}"]) for port in ports]
        return [[self.nginx, *write_nginx(self.folder / "nginx.conf", listen, pair if tls else None, workers=2)[1:]]]

    @contextmanager
    def timed(self, servers: list[Sequence[object]], ports: list[int]) -> Iterator[Callable[[str], Trial]]:
        """Run servers during the block, and time the block. Yield a function that returns the trial; it may
        be called after the block."""
        size = (self.folder / OBJECT).stat().st_size
        used, ended = children_cpu_s(), 0.0
        began = 0.0

        def trial(note: str) -> Trial:
            return Trial(8e-9 * size / (ended - began), used / (size / 1e9), note)

        with running(servers, quiet=True):
            for port in ports:
                await_port(port)
            warm(size)
            began = time.monotonic()
            yield trial
            ended = time.monotonic()
        used = children_cpu_s() - used


def warm(size: int) -> None:
    """Touch one and a half times the memory that a trial writes, so that the host of this virtual
    machine provides it.

    A virtual machine gives back memory that it does not use for some seconds. The first program
    that writes there again waits up to two seconds a gigabyte, which would count as time of the
    first method after a pause.
    """
    with mmap.mmap(-1, size + size // 2) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1


def by_gather(bench: Bench, parts: int) -> Trial:
    """Pull the object by ``gather get``: whole from one server, or striped over several."""
    ports, out = free_ports(parts), bench.folder / "out"
    # `gather get` does not fetch content that is already in the file.
    out.unlink(missing_ok=True)
    if parts == 1:
        # `gather serve` does not serve a folder that contains keys.
        alone = bench.folder / "alone"
        if not alone.exists():
            alone.mkdir()
            os.link(bench.folder / OBJECT, alone / OBJECT)
        what, folders = [f"127.0.0.1:{ports[0]}/{OBJECT}"], [alone]
    else:
        cut = bench.folder / "cut"
        shutil.rmtree(cut, ignore_errors=True)
        holders = ",".join(f"127.0.0.1:{port}" for port in ports)
        json_lines([bench.anabranch, "gather", "stripe", bench.folder / OBJECT, "--into", cut, "--servers", holders, "--json"])
        what, folders = ["--manifest", cut / f"{OBJECT}.toml"], [cut / str(n) for n in range(parts)]
    get = [bench.anabranch, "gather", "get", "--json", "--keys", bench.folder / "keys", "-o", out, *what]
    with bench.timed(bench.gather(folders, ports), ports) as trial:
        end = json_lines(get)[-1]
    assert filecmp.cmp(bench.folder / OBJECT, out, shallow=False)
    return trial(", ".join(f"{name} {end[name]}" for name in ("received_packets", "useless_packets", "dropped_by_the_kernel")))


def by_curl(bench: Bench, parts: int, tls: bool) -> Trial:
    """Pull the object by curl: whole from one server, or a range from each of several at once."""
    ports, size = free_ports(parts), (bench.folder / OBJECT).stat().st_size
    ends = [size * part // parts for part in range(parts + 1)]
    outs = [bench.folder / f"out.{part}" for part in range(parts)]
    commands = [
        ["curl", "-sSfk", "-r", f"{ends[part]}-{ends[part + 1] - 1}", "-o", outs[part]]
        + [f"http{'s' if tls else ''}://127.0.0.1:{ports[part]}/{OBJECT}"]
        for part in range(parts)
    ]
    for out in outs:
        out.unlink(missing_ok=True)
    with bench.timed(bench.http(ports, tls), ports) as trial:
        clients = [subprocess.Popen(command) for command in commands]
        codes = [client.wait() for client in clients]
    assert not any(codes), codes
    assert sum(out.stat().st_size for out in outs) == size
    return trial("not verified")


METHODS: dict[str, Callable[[Bench], Trial]] = {
    "gather, one server": lambda bench: by_gather(bench, 1),
    "gather, all servers": lambda bench: by_gather(bench, bench.count),
    "curl, http, one server": lambda bench: by_curl(bench, 1, False),
    "curl, http, all servers": lambda bench: by_curl(bench, bench.count, False),
    "curl, https, one server": lambda bench: by_curl(bench, 1, True),
    "curl, https, all servers": lambda bench: by_curl(bench, bench.count, True),
}


@LAB.verb(
    "all",
    binary=BINARY,
    beside=Option(kind=Path, help="another build of the command, whose gather is measured in turns with this one's"),
    nginx=Option(shutil.which("nginx") or "/usr/sbin/nginx", "the web server"),
    mib=Option(1024, "the object's length"),
    servers=8,
    trials=Option(3, "of which medians are printed"),
    only=Option("", "methods whose name has this in it"),
    folder=Option(kind=Path, help="where to put files; a temporary one without"),
)
def all_methods(args) -> None:
    """Runs all methods and prints their table."""
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        bench = Bench(Path(name), args.binary, args.nginx, args.servers)
        bench.folder.chmod(0o755)
        with (bench.folder / OBJECT).open("wb") as file:
            for _ in range(args.mib):
                file.write(os.urandom(1 << 20))
        made = [bench.anabranch, "gather", "keys", "--out", bench.folder / "keys"]
        subprocess.run(made, check=True, stderr=subprocess.DEVNULL)
        methods = {method: (measure, bench) for method, measure in METHODS.items()}
        if args.beside:
            other = dataclasses.replace(bench, anabranch=args.beside)
            methods |= {f"{method}, {args.beside}": (METHODS[method], other) for method in METHODS if method.startswith("gather")}
        measured: dict[str, list[Trial]] = {method: [] for method in methods if args.only in method}
        # Methods take turns, because the speed of a shared machine varies with time.
        for _ in range(args.trials):
            for method, trials in measured.items():
                measure, of = methods[method]
                trials.append(measure(of))
    lines = []
    for method, trials in measured.items():
        cells = [method]
        for figures in ([trial.gbps for trial in trials], [trial.cpu_s_per_gb for trial in trials]):
            cells += [f"{statistics.median(figures):.2f}", f"{min(figures):.2f} to {max(figures):.2f}"]
        lines.append([*cells, trials[-1].note])
    print(table(["method", "Gbit/s", "lowest to highest", "CPU s/GB", "lowest to highest", "notes"], lines, "lrrrrl"))


if __name__ == "__main__":
    sys.exit(LAB.main())
