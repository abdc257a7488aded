"""Finds ns-3 on this machine, compiles ``scenarios.cpp`` against it, and runs the program.

Only the headers and the shared libraries of an installed ns-3 are used, no Python binding. Read first:
`find`, `Ns3.run`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import subprocess
from typing import Any

from anabranch_lab.programs import Failed

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE / "scenarios.cpp"
#: Folder of compiled programs, named by the hash of their content; git ignores it.
BUILD = HERE.parents[1] / "target" / "sim-vs-ns3"
MODULES = ("internet", "network", "core")
INSTALL = (
    "`pip install --no-deps ns3==3.44.post0` (Linux on x86-64, no root) or `apt-get install libns3-dev`, and g++; "
    "elsewhere, --ns3 DIR or NS3_PREFIX names the folder that holds its include and lib"
)
LIBRARY = re.compile(r"libns3(?P<dotted>\.\d[\d.]*)?-core(?P<profile>-[a-z]+)?\.so$")


class Ns3Error(Failed):
    """ns-3 is installed, but the program does not compile or run."""


@dataclasses.dataclass(frozen=True)
class Ns3:
    """An installed ns-3.

    Attributes
    ----------
    include, library
        Folders of its headers and of its shared libraries.
    dotted, profile
        Parts of the libraries' names before and after the module.
    version
        Version of ns-3.
    """

    include: pathlib.Path
    library: pathlib.Path
    dotted: str
    profile: str
    version: str

    def program(self) -> pathlib.Path:
        """Return the path of the compiled program; compile it unless this source was compiled before.

        Raises
        ------
        Ns3Error
            The program compiles with none of the C++ standards; the message is the compiler's.
        """
        compiler = os.environ.get("CXX", "g++")
        program = BUILD / f"scenarios-{self.version}-{digest(repr((self, compiler)))}"
        if program.exists():
            return program
        BUILD.mkdir(parents=True, exist_ok=True)
        # Named by process, because two processes may compile the program at the same time.
        partial = program.with_name(f"{program.name}.{os.getpid()}.partial")
        # `-isystem /usr/include` would reorder g++'s own list and break <cstdlib>.
        own = self.include in (pathlib.Path("/usr/include"), pathlib.Path("/usr/local/include"))
        include = [] if own else ["-isystem", str(self.include)]
        # The rpath-link lets libraries outside the loader's path find each other.
        link = [f"-L{self.library}", f"-Wl,-rpath,{self.library}", f"-Wl,-rpath-link,{self.library}"]
        link += [f"-lns3{self.dotted}-{module}{self.profile}" for module in MODULES]
        said = ""
        # 3.44's headers need C++20, later ones C++23; 3.37's are refused by g++ 12 under either.
        for standard in ("c++20", "c++23", "c++17"):
            command = [compiler, "-O2", f"-std={standard}", *include, str(SOURCE), "-o", str(partial), *link]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode == 0:
                partial.rename(program)
                return program
            said = said or done.stderr
        raise Ns3Error(f"ns-3 {self.version} in {self.include}: scenarios.cpp does not compile: {said[:2000]}")

    def run(self, scenario: str, **options: object) -> dict[str, Any]:
        """Run one scenario once, and return the JSON object that the program prints.

        Raises
        ------
        Ns3Error
            The program does not compile, or ends with an error.
        """
        command = [str(self.program()), f"--scenario={scenario}"]
        command += [f"--{name}={value}" for name, value in options.items()]
        path = ":".join(filter(None, [str(self.library), os.environ.get("LD_LIBRARY_PATH")]))
        environment = {**os.environ, "LD_LIBRARY_PATH": path}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode != 0:
            raise Ns3Error(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def digest(more: str = "") -> str:
    """Return 12 digits of the hash of the program's source and `more`."""
    return hashlib.sha256(SOURCE.read_bytes() + more.encode()).hexdigest()[:12]


def find(given: str | None = None) -> Ns3 | None:
    """Return the first ns-3 that has both its headers and its libraries.

    Looks in `given` only, or else in this Python's packages, /usr and /usr/local.
    """
    places = [pathlib.Path(given).resolve()] if given else []
    if given:
        places += [*places[0].glob("lib/python3*/site-packages/ns3"), places[0] / "ns3"]
    else:
        spec = importlib.util.find_spec("ns3")  # finds the package without importing it
        if spec is not None and spec.submodule_search_locations:
            places += [pathlib.Path(place) for place in spec.submodule_search_locations]
        places += [pathlib.Path("/usr"), pathlib.Path("/usr/local")]
    for place in places:
        # ns-3's own install step puts headers under include/ns3.NN/ns3.
        headers = [place / "include", *(file.parents[1] for file in sorted(place.glob("include/ns3*/ns3/core-module.h")))]
        headers = [folder for folder in headers if (folder / "ns3" / "core-module.h").is_file()]
        for library in (place / "lib64", place / "lib", *sorted(place.glob("lib/*-linux-gnu"))):
            for file in sorted(library.glob("libns3*-core*.so")):
                match = LIBRARY.match(file.name)
                if match and headers:
                    dotted, profile = match["dotted"] or "", match["profile"] or ""
                    return Ns3(headers[-1], library, dotted, profile, _version(library, dotted))
    return None


def _version(library: pathlib.Path, dotted: str) -> str:
    if dotted:
        return "3" + dotted
    for file in library.glob("pkgconfig/*ns3-core.pc"):
        match = re.search(r"^Version:\s*(\S+)", file.read_text(), re.MULTILINE)
        if match:
            return match[1]
    return "unknown"
