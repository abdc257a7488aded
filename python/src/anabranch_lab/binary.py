"""Finds the ``anabranch`` binary, its version and its hash.

Leaves out: running it (`anabranch_lab.batches`). Read `find` first.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

#: The environment variable that names the binary.
VARIABLE = "ANABRANCH_BIN"
#: Advice for getting a missing binary.
BUILD = "build it with `cargo build --release -p anabranch-cli`, or name it in ANABRANCH_BIN"

_PACKAGE = Path(__file__).resolve().parent


class BinaryNotFoundError(FileNotFoundError):
    """No binary was found, or the named file is no binary; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Binary:
    """A binary that can be run.

    Attributes
    ----------
    path
        Path of the file.
    version
        Version that the binary reports, such as ``0.1.0``.
    digest
        Hash of the file's contents: another build has another hash.
    """

    path: Path
    version: str
    digest: str


def find(binary: str | Path | None = None) -> Binary:
    """Find the binary.

    In this order: the argument; ``ANABRANCH_BIN``; the one in the wheel;
    ``target/release/anabranch`` of a repository above the working directory or above this package;
    ``PATH``.

    Parameters
    ----------
    binary
        Path of the binary. If it is given, here or in ``ANABRANCH_BIN``, no other place is
        searched.

    Returns
    -------
    Binary
        The first binary found.

    Raises
    ------
    BinaryNotFoundError
        No binary was found.
    """
    if binary is not None:
        return _named(Path(binary), "the argument")
    variable = os.environ.get(VARIABLE)
    if variable:
        return _named(Path(variable), VARIABLE)
    candidates = [_PACKAGE / "bin" / "anabranch"]
    for start in (Path.cwd(), _PACKAGE):
        candidates += [folder / "target" / "release" / "anabranch" for folder in (start, *start.parents)]
    on_path = shutil.which("anabranch")
    candidates += [Path(on_path)] if on_path else []
    for candidate in candidates:
        if _is_program(candidate):
            return _identify(candidate)
    raise BinaryNotFoundError(f"no anabranch binary found: {BUILD}")


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _named(path: Path, source: str) -> Binary:
    if not _is_program(path):
        raise BinaryNotFoundError(f"{path}: no program (named by {source}): {BUILD}")
    return _identify(path)


def _identify(path: Path) -> Binary:
    path = path.resolve()
    stat = path.stat()
    return _identified(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _identified(path: Path, _size: int, _mtime_ns: int) -> Binary:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
        version = said.split()[1]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise BinaryNotFoundError(f"{path}: does not say its version: {BUILD}") from error
    return Binary(path, version, digest)
