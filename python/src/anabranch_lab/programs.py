"""Programs that experiments start: JSON lines, networks and scenarios as TOML, servers, processor time.

Standard library only, for the reason that `anabranch_lab.cells` states. Read `json_lines` and
`topology` first.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Configuration of one nginx; `write_nginx` fills it in.
NGINX = """user {user}; daemon off; worker_processes {workers}; pid {conf}.pid; error_log {conf}.log;
events {{ worker_connections 1024; }}
http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; {temporary}
{servers}
}}
"""


class Failed(Exception):
    """A program or a trial that gave no figure; the message is the reason."""


class Skipped(Exception):
    """A sample that this machine cannot run; the message is the reason."""


def json_lines(
    command: Iterable[object], timeout_s: float | None = None, folder: Path | None = None
) -> list[dict[str, Any]]:
    """Run a command that prints a JSON object a line.

    Parameters
    ----------
    command
        Words of the command.
    timeout_s
        Seconds until the command is killed.
    folder
        Its working directory; the current one if left out.

    Returns
    -------
    list[dict[str, Any]]
        The objects.

    Raises
    ------
    Failed
        The command ended with another code than 0, or not in time.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, cwd=folder)
    except subprocess.TimeoutExpired:
        raise Failed(f"{words[0]}: no answer in {timeout_s} s") from None
    except OSError as error:
        raise Failed(f"{words[0]}: {error}") from None
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    sys.stderr.write(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def require_emulator(binary: Path) -> None:
    """Raise `Skipped` on a machine that cannot emulate a network."""
    probed = subprocess.run([binary, "-q", "emulate", "butterfly", "--", "true"], capture_output=True, text=True)
    if probed.returncode != 0:
        raise Skipped(" ".join(probed.stderr.split()))


def topology(
    name: str, switches: Iterable[str], hosts: Iterable[str], cables: Iterable[tuple[str, str, Mapping[str, object]]]
) -> str:
    """Write a network as ``anabranch emulate`` reads it.

    Parameters
    ----------
    name
        Name of the network.
    switches, hosts
        Names of sites.
    cables
        Both ends of each cable, and its keys with their units.

    Examples
    --------
    >>> print(topology("pair", [], ["a", "b"], [("a", "b", {"capacity": "1 Mbit/s", "loss_ppm": 10})]), end="")
    name = "pair"
    [[site]]
    name = "a"
    [[site]]
    name = "b"
    [[cable]]
    between = ["a", "b"]
    capacity = "1 Mbit/s"
    loss_ppm = 10
    """
    sites = [{"name": site, "switch": True} for site in switches] + [{"name": site} for site in hosts]
    return toml({"name": name, "site": sites, "cable": [{"between": [a, b], **keys} for a, b, keys in cables]})


def toml(table: Mapping[str, Any]) -> str:
    """Write a table as TOML: values first, then tables, then lists of tables.

    JSON's strings, numbers and flat lists are TOML's, too.

    Examples
    --------
    >>> print(toml({"workload": [{"kind": "long"}], "network": {"rate": "1 Gbit/s"}, "seed": 1}), end="")
    seed = 1
    [network]
    rate = "1 Gbit/s"
    [[workload]]
    kind = "long"
    """

    def is_list(value: object) -> bool:
        return isinstance(value, list) and any(isinstance(one, Mapping) for one in value)

    def pairs(of: Mapping[str, Any]) -> list[str]:
        return [f"{key} = {json.dumps(value)}" for key, value in of.items()]

    lines = pairs({key: of for key, of in table.items() if not isinstance(of, Mapping) and not is_list(of)})
    for key, of in table.items():
        if isinstance(of, Mapping):
            lines += [f"[{key}]", *pairs(of)]
    for key, of in table.items():
        if is_list(of):
            lines += [line for one in of for line in (f"[[{key}]]", *pairs(one))]
    return "\n".join(lines) + "\n"


def timed(command: Sequence[object], seconds_max: float) -> dict[str, float]:
    """Run a command to its end.

    Returns
    -------
    dict[str, float]
        ``took_s``, and ``cpu_s`` of the command and its children.

    Raises
    ------
    subprocess.CalledProcessError
        The command failed, or took longer than `seconds_max`.
    """
    before, began = children_cpu_s(), time.monotonic()
    # The program `timeout` limits the time, because Python's own wait with a limit polls only
    # twenty times a second.
    words = ["timeout", str(seconds_max), *map(str, command)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return {"took_s": time.monotonic() - began, "cpu_s": children_cpu_s() - before}


def installed(methods: Iterable[str], needs: Mapping[str, str]) -> list[str]:
    """Return the methods whose program this machine has, and say which are left out.

    Parameters
    ----------
    methods
        Names of methods.
    needs
        Programs by the first word of a method's name, up to a dash.
    """
    found = []
    for method in methods:
        program = needs.get(method.split("-")[0])
        if program is None or shutil.which(program):
            found.append(method)
        else:
            print(f"run.py: {program} is not installed: {method} is left out", file=sys.stderr)
    return found


def operator_tls(keys: Path) -> ssl.SSLContext:
    """Return the TLS configuration of an operator of a broker, from a folder of keys."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # a broker's certificate has a name by its role, not by its host
    context.load_verify_locations(keys / "ca.pem")
    context.load_cert_chain(keys / "operators/operator.pem", keys / "operators/operator.key")
    return context


def children_cpu_s() -> float:
    """Return the processor seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def processor_s(process: int, with_children: bool = False, with_ended: bool = False) -> float:
    """Return the processor seconds of a running process so far, with those of its running children or of its ended ones."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    own = sum(map(int, fields[11 : 15 if with_ended else 13])) / os.sysconf("SC_CLK_TCK")
    if not with_children:
        return own
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return own + sum(processor_s(int(child), True) for child in children)


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed, in the standard library alone.

    Examples
    --------
    >>> quantile([4, 1, 3, 2], 0.5), quantile([4, 1, 3, 2], 0.99)
    (3, 4)
    """
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def write_nginx(
    conf: Path,
    servers: Iterable[tuple[Path, Sequence[str]]],
    pair: tuple[Path, Path] | None = None,
    workers: int = 1,
) -> list[str]:
    """Write the configuration of one nginx.

    Parameters
    ----------
    conf
        The file; the process number and the log are written beside it.
    servers
        Folder of each server, and the addresses on which it listens.
    pair
        Certificate and key, if a server listens with TLS.
    workers
        Worker processes.

    Returns
    -------
    list[str]
        The command that runs it.
    """
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {conf}.{kind};" for kind in kinds)
    tls = f"ssl_certificate {pair[0]}; ssl_certificate_key {pair[1]}; ssl_protocols TLSv1.3;" if pair else ""
    text = "\n".join(
        f"server {{ {' '.join(f'listen {port};' for port in ports)} root {root}; {tls} }}" for root, ports in servers
    )
    conf.write_text(NGINX.format(user=getpass.getuser(), workers=workers, conf=conf, temporary=temporary, servers=text))
    return ["nginx", "-c", str(conf), "-e", f"{conf}.log"]


@contextlib.contextmanager
def running(commands: Iterable[Sequence[object]], quiet: bool = False) -> Iterator[list[subprocess.Popen[str]]]:
    """Run programs until the block ends, then end them and wait for them, so that their processor time is counted."""
    stderr = subprocess.DEVNULL if quiet else None
    programs: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            programs.append(subprocess.Popen([str(word) for word in command], text=True, stderr=stderr))
        yield programs
    finally:
        for program in programs:
            program.terminate()
        for program in programs:
            try:
                program.wait(timeout=20)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback on which no process listens now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def await_port(port: int, address: str = "127.0.0.1") -> None:
    """Wait until a server listens on a port.

    Raises
    ------
    Failed
        No server listens after ten seconds.
    """
    for _ in range(1000):
        with contextlib.suppress(OSError), socket.create_connection((address, port)):
            return
        time.sleep(0.01)
    raise Failed(f"no server on {address}:{port}")
