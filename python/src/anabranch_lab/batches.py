"""Batches: the pieces in which a sweep runs, each one call of the binary.

A batch is plain data, so that it can be sent to another machine. It contains all data on which its
outcome depends, so that its key identifies the outcome in a cache. Read `Batch` and `execute` first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import subprocess
import tempfile
import threading
from pathlib import Path

from anabranch_lab import binary as binaries

#: Version of the cache key's format; a new version invalidates all caches.
KEY_FORMAT = 1
#: Files of a run directory that every outcome has.
RUN, ROWS = "run.json", "rows.jsonl"
#: Exit codes of the binary for wrong input and for an interrupt.
WRONG, INTERRUPTED = 2, 130


class RunError(RuntimeError):
    """The binary failed; the message is its last line."""


class ScenarioError(ValueError):
    """The binary refused a scenario; the message is its one line: place, setting, value, what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Stopped(Exception):
    """A batch was stopped before it was complete."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some trials of one scenario with all settings given.

    Attributes
    ----------
    name
        File name of the scenario, for messages.
    text, sets, files
        The scenario, in the form that `Scenario` holds.
    seed
        Seed of the first trial in the batch; the seeds of the next trials count up from it.
    trials
        Number of trials.
    first
        Number of the batch's first trial in the whole sweep.
    tables
        Whether flows, links and series are kept.
    digest
        Hash of the binary that must run the batch.
    """

    name: str
    text: str
    sets: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...]
    seed: int
    trials: int
    first: int
    tables: bool
    digest: str

    @property
    def key(self) -> str:
        """Identify the outcome: batches with equal keys have equal outcomes, whichever sweep they belong to."""
        hasher = hashlib.blake2b(digest_size=20)
        parts = [KEY_FORMAT, self.text, *self.sets, self.seed, self.trials, self.tables, self.digest]
        for part in [*parts, *(f"{name}\0{_hash(data)}" for name, data in self.files)]:
            encoded = str(part).encode()
            hasher.update(len(encoded).to_bytes(8, "little") + encoded)
        return hasher.hexdigest()


@functools.lru_cache(maxsize=64)
def _hash(data: bytes) -> str:
    """Return the hash of a file, computed once for all batches of a sweep."""
    return hashlib.blake2b(data).hexdigest()


class Children:
    """The running child processes, so that one call ends all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def stop(self) -> None:
        """End all processes, and let no further process begin."""
        with self._lock:
            self._stopped = True
            for child in self._running:
                with contextlib.suppress(ProcessLookupError):
                    child.terminate()

    def run(self, command: list[str], folder: Path) -> tuple[int, str]:
        """Run a command to its end.

        Returns
        -------
        tuple[int, str]
            Exit code, and the text on stderr.
        """
        with self._lock:
            if self._stopped:
                raise Stopped
            child = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._running.add(child)
        try:
            said = child.communicate()[1]
        except BaseException:
            child.kill()
            child.wait()
            raise
        finally:
            with self._lock:
                self._running.discard(child)
        if self._stopped:
            raise Stopped
        return child.returncode, said


def execute(
    batch: Batch, binary: str | None = None, jobs: int | None = 1, children: Children | None = None
) -> dict[str, bytes]:
    """Run a batch on this machine.

    Parameters
    ----------
    batch
        Batch to run.
    binary
        Path of the binary; if this machine does not have the file, another binary is searched for.
    jobs
        Threads of the binary; the number of processors if ``None``.
    children
        Registry of child processes, through which the run can be stopped.

    Returns
    -------
    dict[str, bytes]
        The run directory: contents by file name.

    Raises
    ------
    ScenarioError
        The binary refused the scenario.
    RunError
        The run failed, or this machine has another binary.
    Stopped
        The run was stopped.
    """
    path = _binary(batch, binary)
    with tempfile.TemporaryDirectory(prefix="anabranch-lab-") as scratch:
        folder = Path(scratch)
        place = folder / "scenario"
        place.mkdir()
        for name, data in batch.files:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
        (place / batch.name).write_text(batch.text, encoding="utf-8")
        command = [str(path), "-q", "simulate", batch.name, "--out", str(folder / "run"), "--trials", str(batch.trials)]
        for setting in (*batch.sets, f"seed={batch.seed}"):
            command += ["--set", setting]
        if jobs is not None:
            command += ["--jobs", str(jobs)]
        code, said = (children or Children()).run(command, place)
        if code in (INTERRUPTED, -2, -15):
            raise Stopped
        if code:
            line = (said.strip().splitlines() or [f"{path.name} ended with exit code {code} and said nothing"])[-1]
            line = line.removeprefix("anabranch: ")
            raise ScenarioError(line) if code == WRONG else RunError(line)
        kept = {RUN, ROWS} if not batch.tables else {file.name for file in (folder / "run").iterdir()}
        return {name: (folder / "run" / name).read_bytes() for name in sorted(kept)}


def _binary(batch: Batch, binary: str | None) -> Path:
    """Return a binary with the batch's digest: the named one, or else one found on this machine."""
    for named in (binary, None):
        try:
            found = binaries.find(named)
        except binaries.BinaryNotFoundError:
            if named is None:
                raise
            continue
        if found.digest == batch.digest:
            return found.path
    raise RunError(
        f"{found.path}: another build ({found.version}, {found.digest[:8]}) than the sweep's ({batch.digest[:8]}): "
        "install the same wheel here"
    )
