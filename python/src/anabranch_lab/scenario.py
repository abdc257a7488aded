"""Scenarios for the simulator, written as TOML or in Python.

The binary checks a scenario. This module only stores it, changes its settings and hashes it. The
settings are the same as for ``anabranch simulate``. Read `Scenario` first.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import tomli_w

#: Name in messages of a scenario that does not come from a file.
UNNAMED = "scenario.toml"


class Scenario:
    """A scenario for the packet simulator. It is immutable; `set` returns a changed copy.

    Parameters
    ----------
    source
        TOML text, or the same as a dictionary.
    name
        Name in the binary's messages.
    folder
        Folder of the files that the scenario names (a topology, a trace, a distribution of sizes). The
        working directory if left out.

    Raises
    ------
    ValueError
        The text is no TOML, or the dictionary cannot be written as TOML.

    Examples
    --------
    >>> scenario = Scenario('''
    ... [network]
    ... topology = "star"
    ... hosts = 5
    ... [workload]
    ... kind = "incast"
    ... servers = 4
    ... block = "64 KiB"
    ... ''')
    >>> faster = scenario.set({"network.rate": "10 Gbit/s", "workload.servers": 2})
    >>> faster.table["network"]["rate"], faster.table["workload"]["servers"], scenario.table["workload"]["servers"]
    ('10 Gbit/s', 2, 4)
    >>> Scenario(faster.to_toml()).table == faster.table
    True
    """

    def __init__(
        self, source: str | Mapping[str, Any], *, name: str = UNNAMED, folder: str | Path | None = None
    ) -> None:
        try:
            self._text = source if isinstance(source, str) else tomli_w.dumps(_plain(dict(source)))
            self._table: dict[str, Any] = tomllib.loads(self._text)
        except (tomllib.TOMLDecodeError, TypeError) as error:
            raise ValueError(f"{name}: {error}") from error
        self._name = Path(name).name or UNNAMED
        self._folder = Path.cwd() if folder is None else Path(folder).resolve()
        self._sets: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def from_file(cls, path: str | Path) -> Scenario:
        """Read a scenario file.

        Parameters
        ----------
        path
            Path of the file. Other files that it names lie in the same folder.

        Returns
        -------
        Scenario
            The scenario in the file.
        """
        path = Path(path)
        return cls(path.read_text(encoding="utf-8"), name=path.name, folder=path.parent)

    def set(self, settings: Mapping[str, Any]) -> Scenario:
        """Return a copy with some settings changed.

        Parameters
        ----------
        settings
            Values by the path of their setting, as ``network.rate`` or ``workload[1].servers``. A
            list of one table may go without its index.

        Returns
        -------
        Scenario
            The copy with these settings.

        Raises
        ------
        ValueError
            A path leads to no setting.
        """
        other = copy.copy(self)
        other._table = copy.deepcopy(self._table)
        for key, value in settings.items():
            plain = _plain(value)
            _assign(other._table, key, plain)
            other._sets = (*other._sets, (key, plain))
        return other

    @property
    def table(self) -> dict[str, Any]:
        """All settings that are given, as a dictionary; a copy."""
        return copy.deepcopy(self._table)

    @property
    def text(self) -> str:
        """The TOML from which the scenario was made, without the changes of `set`."""
        return self._text

    @property
    def name(self) -> str:
        """Name of the scenario in messages."""
        return self._name

    @property
    def folder(self) -> Path:
        """Folder of the files that the scenario names."""
        return self._folder

    @property
    def sets(self) -> tuple[str, ...]:
        """Settings changed by `set`, in the form that the binary's ``--set`` takes."""
        return tuple(f"{key}={inline(value)}" for key, value in self._sets)

    @property
    def seed(self) -> int:
        """The seed of the first trial; trial ``t`` runs with ``seed + t``."""
        seed = self._table.get("seed", 1)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"{self._name}: seed {seed!r}: must be a whole number")
        return seed

    @property
    def swept(self) -> dict[str, list[Any]]:
        """The settings that the scenario sweeps itself, with their values."""
        return copy.deepcopy(dict(self._table.get("sweep", {})))

    def to_toml(self) -> str:
        """Return the scenario as TOML, with the changes of `set`."""
        return tomli_w.dumps(self._table) if self._sets else self._text

    def files(self) -> dict[str, bytes]:
        """Contents of the files that the scenario names, by name: any of its texts that names a file in its folder.

        Raises
        ------
        ValueError
            A name leads out of the folder, where a run on another machine could not follow.
        """
        found = {}
        for text in sorted(set(_texts(self._table))):
            pure = PurePosixPath(text)
            if not text or "\0" in text or len(text) > 255 or not (self._folder / pure).is_file():
                continue
            if pure.is_absolute() or ".." in pure.parts:
                raise ValueError(f"{self._name}: file `{text}`: must lie beside the scenario or below it")
            found[text] = (self._folder / pure).read_bytes()
        return found

    def digest(self) -> str:
        """Hash of the whole scenario, the contents of named files included."""
        parts = [self._text, *self.sets]
        parts += [f"{name}\0{hashlib.blake2b(data).hexdigest()}" for name, data in self.files().items()]
        return hashlib.blake2b("\0\0".join(parts).encode(), digest_size=16).hexdigest()

    def __eq__(self, other: object) -> bool:
        """Whether both scenarios have the same settings and the same folder."""
        return isinstance(other, Scenario) and (self._table, self._folder) == (other._table, other._folder)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Scenario({self._name}{''.join(f', {one}' for one in self.sets)})"


def inline(value: Any) -> str:  # noqa: ANN401
    """Write a value as TOML in one line.

    Examples
    --------
    >>> inline({"workload.servers": [1, 2.5, "64 KiB", True]})
    '{ "workload.servers" = [1, 2.5, "64 KiB", true] }'
    """
    match value:
        case Mapping():
            return "{ " + ", ".join(f"{inline(str(key))} = {inline(inner)}" for key, inner in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(inline(inner) for inner in value) + "]"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return json.dumps(value)


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Convert a value to Python's own types: numpy's numbers, ranges and paths are accepted."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    match value:
        case bool() | int() | str():
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{value}: must be finite")
            return value
        case Path():
            return value.as_posix()
        case Mapping():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case range() | Sequence():
            return [_plain(inner) for inner in value]
        case _:
            raise ValueError(f"{value!r}: no value of a setting; write text, numbers, lists or tables")


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from _texts(inner)
        case list():
            for inner in value:
                yield from _texts(inner)


def _assign(table: dict[str, Any], path: str, value: Any) -> None:  # noqa: ANN401
    """Put a value where ``--set`` of the binary puts it."""
    steps = re.findall(r"([^.\[\]]+)(?:\[(\d+)\])?(?:\.|$)", path)
    if not steps or steps[-1][1] or "".join(f"{n}[{i}]." if i else f"{n}." for n, i in steps)[:-1] != path:
        raise ValueError(f"`{path}` names no setting: write it as network.rate or workload[0].servers")
    at = table
    for name, index in steps[:-1]:
        inner = at.setdefault(name, {})
        number = int(index or 0)
        if isinstance(inner, list) and number < len(inner) and isinstance(inner[number], dict):
            at = inner[number]
        elif isinstance(inner, dict) and number == 0:
            at = inner
        else:
            raise ValueError(f"`{path}`: there is no {name}[{number}]")
    at[steps[-1][0]] = value
