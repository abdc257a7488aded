"""HDFS in the sites of an emulation: a NameNode, a DataNode and writers for each rack, and the figures in their logs.

`prepare` runs before the emulation, `run_job` in one of its sites, `check_laws` after it. Programs of other sites start
through ``nsenter``. No function here waits with a bound in seconds: a preloaded library stretches Python's time, too.

Standard library only. Read `run_job` and `check_laws` first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO
from xml.sax.saxutils import escape

from anabranch_lab.cells import Row
from anabranch_lab.programs import Failed, Skipped

NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
FSCK = "org.apache.hadoop.hdfs.tools.DFSck"
POLICIES = {
    "default": "org.apache.hadoop.hdfs.server.blockmanagement.BlockPlacementPolicyDefault",
    "next rack": "rehdfs.NextRack",
    "rotating": "rehdfs.NextRack",
}
REPLICAS = 2
#: Texts in lines of logs.
NAME_NODE_IS_UP = "NameNode RPC up at"
DATA_NODE_IS_KNOWN = "Successfully sent block report"
ALLOCATED = re.compile(r"BLOCK\* allocate (blk_\d+)_\d+, replicas=(\S+), (\S+) for (\S+)")
COPIED = re.compile(r"BLOCK\* ask .* to replicate")
TRACED = re.compile(r"bytes: (\d+), op: HDFS_WRITE, .*:(blk_\d+)_\d+, duration\(ns\): (\d+)")
#: Lines of fsck about a healthy file system, and their numbers; `None` for the number of blocks.
FSCK_LINES = {
    "Total blocks (validated)": None,
    "Minimally replicated blocks": None,
    "Over-replicated blocks": 0,
    "Under-replicated blocks": 0,
    "Mis-replicated blocks": 0,
    "Corrupt blocks": 0,
    "Missing replicas": 0,
}


def java(class_path: str, main: str, *words: object) -> list[str]:
    """Return the command of a Java program with options for a short life: one compiler, one collector's thread."""
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    return ["java", *options, "-cp", class_path, main, *map(str, words)]


def require_programs() -> None:
    """Raise `Skipped` on a machine without Java."""
    missing = [name for name in ("java", "javac", "nsenter") if shutil.which(name) is None]
    if missing:
        raise Skipped(f"no {' and no '.join(missing)}")


def compiled(jars: Path, sources: Path, classes: Path) -> str:
    """Compile the policy and the writers, and return the class path of all programs."""
    found = ":".join(str(jar) for jar in sorted(jars.glob("*.jar")))
    shutil.rmtree(classes, ignore_errors=True)
    classes.mkdir(parents=True)
    subprocess.run(["javac", "-cp", found, "-d", classes, *sorted(sources.glob("*/*.java"))], check=True)
    return f"{classes}:{found}"


def prepare(
    folder: Path, addresses: Sequence[str], class_path: str, placement: str, block_bytes: int, more: Row
) -> None:
    """Write the configuration of a cluster and format its NameNode.

    Parameters
    ----------
    folder
        Folder of the cluster, in memory.
    addresses
        Address of each rack. The first rack also has the NameNode.
    class_path
        Class path of all programs.
    placement
        Key of `POLICIES`.
    block_bytes
        Size of a block.
    more
        Further settings of HDFS.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    racks = "".join(f"{address} /rack{rack}\n" for rack, address in enumerate(addresses, 1))
    (folder / "racks").write_text(racks)
    settings = {
        "fs.defaultFS": f"hdfs://{addresses[0]}:9000",
        "net.topology.node.switch.mapping.impl": "org.apache.hadoop.net.TableMapping",
        "net.topology.table.file.name": folder / "racks",
        "dfs.namenode.name.dir": f"file://{folder}/names",
        "dfs.namenode.http-address": f"{addresses[0]}:9870",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.namenode.safemode.extension": 0,
        "dfs.namenode.max.full.block.report.leases": len(addresses),
        "dfs.replication": REPLICAS,
        "dfs.blocksize": block_bytes,
        "dfs.block.replicator.classname": POLICIES[placement],
        **more,
    }
    entries = (
        f"<property><name>{key}</name><value>{escape(str(value))}</value></property>\n"
        for key, value in settings.items()
    )
    text = f"<configuration>\n{''.join(entries)}</configuration>\n"
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(text)
    command = java(f"{folder}:{class_path}", NAME_NODE, "-format", "-force", "-nonInteractive")
    with (folder / "format.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)


class Program:
    """A program in a site. A thread writes its lines to a log and lets others wait for one of them.

    Parameters
    ----------
    site
        Site, as ``ANABRANCH_SITES`` describes it.
    log
        File for all lines.
    command
        Words of the command.
    """

    def __init__(self, site: Row, log: Path, command: Sequence[str]) -> None:
        self.name = log.stem
        self.log = log
        self._lines: list[str] = []
        self._is_over = False
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            ["nsenter", f"--net={site['namespace']}", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()

    def _read(self, output: IO[str]) -> None:
        with self.log.open("w") as log:
            for line in output:
                log.write(line)
                log.flush()
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def say(self, word: str) -> None:
        """Write a line to the program's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def line_with(self, text: str) -> str:
        """Wait for a line that contains a text, and return it.

        Raises
        ------
        Failed
            The program ended without such a line.
        """
        seen = 0
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    if text in line:
                        return line
                seen = len(self._lines)
                if self._is_over:
                    raise Failed(f"{self.name} ended before it said `{text}`: {''.join(self._lines[-3:])}")
                self._changed.wait()

    def lines(self) -> list[str]:
        """Return all lines so far."""
        with self._changed:
            return list(self._lines)

    def end(self) -> None:
        """Kill the program; its data are in memory and are lost."""
        self.process.kill()
        self.process.wait()


def run_job(task: Row) -> Row:
    """Start a cluster, let the writers of all racks write at once, read all files back and check the file system.

    Parameters
    ----------
    task
        ``cluster``, the folder of `prepare`; ``addresses``, ``class_path``, ``writers`` of a rack and ``file_bytes``.

    Returns
    -------
    Row
        ``files`` (rack, writer, begin and end in ns), ``allocated`` (block, both addresses, path), ``copied`` blocks,
        ``traced`` writes of blocks (bytes, block, ns), ``read_bytes``, the text of ``fsck``, and ``idle_share`` of the
        processors while files were written.
    """
    folder = Path(task["cluster"])
    class_path = f"{folder}:{task['class_path']}"
    sites = [site for site in json.loads(os.environ["ANABRANCH_SITES"]) if site["address"] in task["addresses"]]
    programs: list[Program] = []

    def start(site: Row, name: str, command: Sequence[str]) -> Program:
        programs.append(Program(site, folder / f"{name}.log", command))
        return programs[-1]

    try:
        name_node = start(sites[0], "name-node", java(class_path, NAME_NODE))
        name_node.line_with(NAME_NODE_IS_UP)
        data_nodes = []
        for rack, site in enumerate(sites, 1):
            own = {"dfs.datanode.data.dir": f"file://{folder}/blocks{rack}", "dfs.datanode.hostname": site["address"]}
            command = java(class_path, DATA_NODE, *(f"-D{key}={value}" for key, value in own.items()))
            data_nodes.append(start(site, f"data-node{rack}", command))
        for data_node in data_nodes:
            data_node.line_with(DATA_NODE_IS_KNOWN)
        writers = []
        for rack, site in enumerate(sites, 1):
            command = java(class_path, "rehdfs.Writers", rack, task["writers"], task["file_bytes"])
            writers.append(start(site, f"writers{rack}", command))
        for one in writers:
            one.line_with("ready")
        before = processors()
        for one in writers:
            one.say("write")
        for one in writers:
            one.line_with("written")
        idle, total = (after - then for after, then in zip(processors(), before, strict=True))
        for one in writers:
            one.say("read")
        read = sum(int(one.line_with("read ").split()[1]) for one in writers)
        checker = start(sites[0], "fsck", java(class_path, FSCK, "/", "-files", "-blocks", "-locations"))
        checker.line_with("The filesystem under path")
        return {
            "files": [
                [rack, *map(int, line.split()[1:])]
                for rack, one in enumerate(writers, 1)
                for line in one.lines()
                if line.startswith("wrote ")
            ],
            "allocated": matches(ALLOCATED, name_node.lines()),
            "copied": len(matches(COPIED, name_node.lines())),
            "traced": [list(found) for one in data_nodes for found in matches(TRACED, one.lines())],
            "read_bytes": read,
            "idle_share": idle / total,
            "fsck": "".join(checker.lines()),
        }
    finally:
        for program in programs:
            program.end()


def matches(pattern: re.Pattern[str], lines: Iterable[str]) -> list[Sequence[str]]:
    """Return the groups of all lines that match a pattern; the whole match if the pattern has no groups."""
    found = (pattern.search(line) for line in lines)
    return [one.groups() or one[0] for one in found if one]


def processors() -> tuple[int, int]:
    """Return the idle and the total ticks of all processors since the machine's start."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def check_laws(result: Row, addresses: Sequence[str], placement: str, blocks: int, file_bytes: int) -> None:
    """Check the laws of each run: placements equal blocks written, no copy was made afterwards, ``fsck`` is clean.

    Parameters
    ----------
    result
        Result of `run_job`.
    addresses
        Address of each rack.
    placement
        Key of `POLICIES`.
    blocks
        Number of blocks of all files.
    file_bytes
        Size of a file.

    Raises
    ------
    Failed
        A law is broken; the message names it.
    """
    rack_of = {address: rack for rack, address in enumerate(addresses, 1)}
    allocated = {block: [rack_of[place.split(":")[0]] for place in places] for block, *places, _ in result["allocated"]}
    if not len(result["allocated"]) == len(allocated) == blocks:
        raise Failed(f"{len(result['allocated'])} placements of {len(allocated)} blocks, {blocks} written")
    if result["copied"]:
        raise Failed(f"{result['copied']} blocks were copied after their placement")
    for block, *_, path in result["allocated"]:
        first, second = allocated[block]
        wanted = {first % len(addresses) + 1} if placement == "next rack" else set(rack_of.values()) - {first}
        if path.split("/")[1] != f"from-rack{first}" or second not in wanted:
            raise Failed(f"{block} of {path}: on racks {first} and {second}, with {placement} placement")
    whole = {(block, size) for size, block, _ in result["traced"]}
    if len(result["traced"]) != REPLICAS * blocks or {block for block, _ in whole} != set(allocated):
        raise Failed(
            f"{len(result['traced'])} writes of {len(whole)} blocks: each of {blocks} is written {REPLICAS} times"
        )
    if result["read_bytes"] != len(result["files"]) * file_bytes:
        raise Failed(f"{result['read_bytes']} bytes read back, {len(result['files'])} files of {file_bytes} written")
    check_fsck(result["fsck"], allocated, rack_of)


def check_fsck(text: str, allocated: Mapping[str, Sequence[int]], rack_of: Mapping[str, int]) -> None:
    """Check that ``fsck`` finds a healthy file system, whose replicas are where they were placed.

    Raises
    ------
    Failed
        The check fails; the message has the reason.
    """
    if "is HEALTHY" not in text or "policy is violated" in text:
        raise Failed(f"fsck is not clean:\n{text}")
    replicated = text.split("Erasure Coded")[0]
    for name, number in FSCK_LINES.items():
        found = re.search(rf"^ {re.escape(name)}:\s+(\d+)", replicated, re.MULTILINE)
        wanted = len(allocated) if number is None else number
        if found is None or int(found[1]) != wanted:
            raise Failed(f"fsck: `{name}` is {found and found[1]}, and must be {wanted}")
    located = dict(re.findall(r"(blk_\d+)_\d+ len=.*?\[(.*)\]", text))
    for block, racks in allocated.items():
        places = re.findall(r"DatanodeInfoWithStorage\[([\d.]+):", located.get(block, ""))
        if sorted(rack_of[place] for place in places) != sorted(racks):
            raise Failed(f"fsck: {block} is at {places}, and was placed on racks {racks}")
