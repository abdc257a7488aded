"""The working tree behind published rows: no commit gives the rows of a changed tree again.

Read `refuse_changes`.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

#: Environment variable that lets rows of a changed tree be written.
VARIABLE = "ANABRANCH_CHANGED_TREE"
#: Files that rows depend on, from the root of the repository.
SOURCES = (
    *("Cargo.toml", "Cargo.lock", "crates", "xtask", "python/src", "clients", "scenarios", "experiments"),
    # Rows, and files written from them.
    *(f":(exclude,glob)experiments/**/*.{end}" for end in ("csv", "jsonl", "md", "svg", "png", "sha256", "tsv")),
    ":(exclude)experiments/numbers.toml",
)


class ChangedTreeError(ValueError):
    """Sources of rows have changes without a commit; the message has the first one."""


def _git(folder: Path, *words: str) -> str | None:
    """Return git's output; ``None`` outside a repository, and without git."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


@functools.lru_cache(maxsize=16)
def root_of(folder: Path) -> Path | None:
    """Return the root of the repository around a folder; ``None`` outside a repository."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    return Path(top.strip()) if top else None


def changed_sources(root: Path) -> list[str]:
    """Return the changed files of a repository that rows depend on."""
    status = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *SOURCES) or ""
    return [line[3:] for line in status.splitlines()]


def refuse_changes(path: Path) -> None:
    """Refuse to write rows below ``experiments/`` while sources have changes. Rows in other folders are not checked.

    Parameters
    ----------
    path
        File or folder of the rows.

    Raises
    ------
    ChangedTreeError
        A source has changes, and `VARIABLE` is not set.
    """
    folder = path if path.is_dir() else path.parent
    root = root_of(folder.resolve()) if folder.is_dir() else None
    if os.environ.get(VARIABLE) or root is None or not folder.resolve().is_relative_to(root / "experiments"):
        return
    if changed := changed_sources(root):
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise ChangedTreeError(
            f"{path}: rows of a changed tree ({changed[0]}{more}): commit first, so that a commit gives them again, "
            f"or set {VARIABLE}=1"
        )
