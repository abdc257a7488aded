"""Cache of outcomes of batches, by content: the same scenario, seed and binary are not run again.

A cache is a folder that may be deleted at any time. Read `Cache` first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from anabranch_lab.batches import ROWS, RUN

#: The environment variable that names the folder.
VARIABLE = "ANABRANCH_LAB_CACHE"


class Cache:
    """A folder of outcomes.

    Parameters
    ----------
    folder
        Path of the folder. If left out: ``ANABRANCH_LAB_CACHE``, else ``anabranch-lab`` in the user's
        cache folder.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        if folder is None:
            home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            folder = os.environ.get(VARIABLE) or home / "anabranch-lab"
        self._folder = Path(folder)

    def path(self, key: str) -> Path:
        """Return the path of this key's outcome, whether it exists or not."""
        return self._folder / key[:2] / key[2:]

    def load(self, key: str) -> dict[str, bytes] | None:
        """Read an outcome, as `anabranch_lab.batches.execute` gives it; ``None`` if it is not stored."""
        try:
            files = {file.name: file.read_bytes() for file in self.path(key).iterdir()}
        except (FileNotFoundError, NotADirectoryError):
            return None
        return files if RUN in files and ROWS in files else None

    def store(self, key: str, files: dict[str, bytes]) -> None:
        """Store an outcome completely, or not at all."""
        target = self.path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
        try:
            for name, data in files.items():
                (scratch / name).write_bytes(data)
            scratch.chmod(0o755)
            # Another process may have stored the same outcome first. Both outcomes are equal.
            with contextlib.suppress(OSError):
                scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
