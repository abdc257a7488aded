"""One object to one client over loopback: ``gather`` beside curl and nginx.

``run.py`` measures each method of `METHODS` and prints a table: goodput, and processor seconds per gigabyte of servers and
client together. Servers are started for each trial and end with it, so that what they used can be counted. Standard library
only; needs ``anabranch``, ``curl`` and ``nginx``.

To add a method, write a function such as `by_curl` and enter it in `METHODS`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import filecmp
import functools
import json
import mmap
import os
import pathlib
import resource
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OBJECT = "object"
NGINX_CONFIG = """
daemon off; worker_processes 2; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 1024; }}
http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 10000; {temporary}
{servers}
}}
"""


class Trial(NamedTuple):
    """One trial: goodput in Gbit/s, processor seconds of both ends per gigabyte, and what is told besides."""

    gbps: float
    cpu_s_per_gb: float
    note: str


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all trials share.

    Attributes
    ----------
    folder
        Where all files are.
    anabranch, nginx
        The programs.
    count
        How many servers there are.
    """

    folder: pathlib.Path
    anabranch: str
    nginx: str
    count: int


    def free_ports(self, count: int) -> list[int]:
        """Ports that nobody listens on now."""
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            for each in sockets:
                each.bind(("127.0.0.1", 0))
            return [each.getsockname()[1] for each in sockets]

    @contextlib.contextmanager
    def running(self, commands: list[list[str]], ports: list[int]) -> Iterator[None]:
        """Run servers until their work is done."""
        servers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]
        try:
            for port in ports:
                await_port(port)
            yield
        finally:
            for server in servers:
                server.terminate()
            for server in servers:
                server.wait()

    def gather(self, folders: list[pathlib.Path], ports: list[int]) -> contextlib.AbstractContextManager[None]:
        """Run ``gather serve`` for each of these folders."""
        keys = ["--keys", str(self.folder / "keys")]
        commands = [
            [self.anabranch, "gather", "serve", str(folder), "--listen", f"127.0.0.1:{port}", *keys]
            for folder, port in zip(folders, ports, strict=True)
        ]
        return self.running(commands, ports)

    def http(self, folders: list[pathlib.Path], ports: list[int], tls: bool) -> contextlib.AbstractContextManager[None]:
        """Run nginx with a port for each of these folders."""
        keys = self.folder / "keys"
        pair = f"ssl_certificate {keys}/sites/server.pem; ssl_certificate_key {keys}/sites/server.key;" if tls else ""
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = " ".join(f"{kind}_temp_path {self.folder}/nginx-{kind};" for kind in kinds)
        servers = "\n".join(
            f"server {{ listen 127.0.0.1:{port}{' ssl' if tls else ''}; root {folder}; {pair} }}"
            for folder, port in zip(folders, ports, strict=True)
        )
        config = self.folder / "nginx.conf"
        config.write_text(NGINX_CONFIG.format(folder=self.folder, servers=servers, temporary=temporary))
        command = [self.nginx, "-p", str(self.folder), "-c", str(config), "-e", str(self.folder / "nginx.log")]
        return self.running([command], ports)


def warm(size: int) -> None:
    """Has as much memory as a trial writes, and half more, given by whoever runs this machine.

    A virtual machine gives back what it does not use for some seconds. The first program that writes there pays for it: up to two seconds a
    gigabyte, which would be charged to whichever method comes after a pause.
    """
    with mmap.mmap(-1, size + size // 2) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1


def await_port(port: int) -> None:
    """Wait until somebody listens there."""
    for _ in range(1000):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.01)
    raise TimeoutError(f"nobody listens on port {port}")


def by_gather(bench: Bench, parts: int) -> Trial:
    """Pull the object by ``gather get``: whole from one server, or striped over several."""
    ports = bench.free_ports(parts)
    out = bench.folder / "out"
    # The same content would not be fetched again.
    out.unlink(missing_ok=True)
    if parts == 1:
        # A folder with keys in it is not served.
        alone = bench.folder / "alone"
        if not alone.exists():
            alone.mkdir()
            os.link(bench.folder / OBJECT, alone / OBJECT)
        what, folders = [f"127.0.0.1:{ports[0]}/{OBJECT}"], [alone]
    else:
        cut = bench.folder / "cut"
        shutil.rmtree(cut, ignore_errors=True)
        holders = ",".join(f"127.0.0.1:{port}" for port in ports)
        command = [bench.anabranch, "gather", "stripe", str(bench.folder / OBJECT), "--into", str(cut)]
        subprocess.run([*command, "--servers", holders, "--json"], check=True, stdout=subprocess.DEVNULL)
        what, folders = ["--manifest", str(cut / f"{OBJECT}.toml")], [cut / str(n) for n in range(parts)]
    get = [bench.anabranch, "gather", "get", "--json", "--keys", str(bench.folder / "keys"), "-o", str(out), *what]
    used = processor_seconds()
    with bench.gather(folders, ports):
        warm((bench.folder / OBJECT).stat().st_size)
        began = time.monotonic()
        done = subprocess.run(get, check=True, capture_output=True, text=True)
        seconds = time.monotonic() - began
    used = processor_seconds() - used
    end = json.loads(done.stdout.splitlines()[-1])
    assert filecmp.cmp(bench.folder / OBJECT, out, shallow=False)
    note = ", ".join(f"{name} {end[name]}" for name in ("received_packets", "useless_packets", "dropped_by_the_kernel"))
    return record(bench, seconds, used, note)


def by_curl(bench: Bench, parts: int, tls: bool) -> Trial:
    """Pull the object by curl: whole from one server, or a range from each of several at once."""
    ports = bench.free_ports(parts)
    size = (bench.folder / OBJECT).stat().st_size
    ends = [size * part // parts for part in range(parts + 1)]
    outs = [bench.folder / f"out.{part}" for part in range(parts)]
    commands = [
        ["curl", "-sSfk", "-r", f"{ends[part]}-{ends[part + 1] - 1}", "-o", str(outs[part])]
        + [f"http{'s' if tls else ''}://127.0.0.1:{ports[part]}/{OBJECT}"]
        for part in range(parts)
    ]
    for out in outs:
        out.unlink(missing_ok=True)
    used = processor_seconds()
    with bench.http([bench.folder] * parts, ports, tls):
        warm(size)
        began = time.monotonic()
        clients = [subprocess.Popen(command) for command in commands]
        codes = [client.wait() for client in clients]
        seconds = time.monotonic() - began
    used = processor_seconds() - used
    assert not any(codes), codes
    assert sum(out.stat().st_size for out in outs) == size
    return record(bench, seconds, used, "not verified")


def processor_seconds() -> float:
    """Processor time of all programs that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def record(bench: Bench, seconds: float, used: float, note: str) -> Trial:
    """What is told of a trial."""
    size = (bench.folder / OBJECT).stat().st_size
    return Trial(8e-9 * size / seconds, used / (size / 1e9), note)


METHODS: dict[str, Callable[[Bench], Trial]] = {
    "gather, one server": lambda bench: by_gather(bench, 1),
    "gather, all servers": lambda bench: by_gather(bench, bench.count),
    "curl, http, one server": lambda bench: by_curl(bench, 1, False),
    "curl, http, all servers": lambda bench: by_curl(bench, bench.count, False),
    "curl, https, one server": lambda bench: by_curl(bench, 1, True),
    "curl, https, all servers": lambda bench: by_curl(bench, bench.count, True),
}


def main() -> None:
    """Run all methods and print their table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--anabranch", default=str(ROOT / "target/release/anabranch"), help="the command")
    parser.add_argument("--beside", help="another build of the command, whose gather is measured in turns with this one's")
    parser.add_argument("--nginx", default=shutil.which("nginx") or "/usr/sbin/nginx", help="the web server")
    parser.add_argument("--mib", type=int, default=1024, help="the object's length")
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--trials", type=int, default=3, help="of which medians are printed")
    parser.add_argument("--only", default="", help="methods whose name has this in it")
    parser.add_argument("--folder", help="where to put files; a temporary one without")
    options = parser.parse_args()
    print("| method | Gbit/s | lowest to highest | CPU s/GB | lowest to highest | notes |\n| --- | ---: | ---: | ---: | ---: | --- |")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        bench = Bench(pathlib.Path(name), options.anabranch, options.nginx, options.servers)
        os.chmod(name, 0o755)
        with (bench.folder / OBJECT).open("wb") as file:
            for _ in range(options.mib):
                file.write(os.urandom(1 << 20))
        made = [bench.anabranch, "gather", "keys", "--out", str(bench.folder / "keys")]
        subprocess.run(made, check=True, stderr=subprocess.DEVNULL)
        methods = dict(METHODS)
        if options.beside:
            other = dataclasses.replace(bench, anabranch=options.beside)
            methods |= {f"{method}, {options.beside}": functools.partial(lambda measure, _: measure(other), measure)
                        for method, measure in METHODS.items() if method.startswith("gather")}
        measured: dict[str, list[Trial]] = collections.defaultdict(list)
        # In turns: a shared machine is slower at some times than at others.
        for _ in range(options.trials):
            for method, measure in methods.items():
                if options.only in method:
                    measured[method].append(measure(bench))
        for method in methods:
            if method in measured:
                trials = measured[method]
                rates = sorted(trial.gbps for trial in trials)
                costs = sorted(trial.cpu_s_per_gb for trial in trials)
                spans = [f"{figures[0]:.2f} to {figures[-1]:.2f}" for figures in (rates, costs)]
                medians = [f"{statistics.median(figures):.2f}" for figures in (rates, costs)]
                print(f"| {method} | {medians[0]} | {spans[0]} | {medians[1]} | {spans[1]} | {trials[-1].note} |", flush=True)


if __name__ == "__main__":
    main()
