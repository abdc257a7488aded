"""Puts the release binary into the wheel and tags the wheel for its platform."""

import os
import platform
import re
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CarryBinary(BuildHookInterface[Any]):
    """A wheel carries ``target/release/anabranch``, or what ANABRANCH_BIN names; an editable install finds its own."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the binary to what the wheel holds; refuse to make one without."""
        if self.target_name != "wheel" or version == "editable":
            return
        named = os.environ.get("ANABRANCH_BIN")
        binary = Path(named) if named else Path(self.root).parent / "target" / "release" / "anabranch"
        if not (binary.is_file() and os.access(binary, os.X_OK)):
            raise SystemExit(
                f"no binary for the wheel at {binary}: build it with `cargo build --release -p anabranch-cli`, or name "
                "it in ANABRANCH_BIN"
            )
        build_data["force_include"][str(binary.resolve())] = "anabranch_lab/bin/anabranch"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag(binary.read_bytes())}"


def tag(binary: bytes) -> str:
    """Give the platform's tag: on Linux by the newest glibc symbol that the binary needs (PEP 600)."""
    needed = [(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)\b", binary)]
    if platform.system() == "Linux" and needed:
        major, minor = max(needed)
        return f"manylinux_{major}_{minor}_{platform.machine()}"
    return re.sub(r"[-.]", "_", sysconfig.get_platform())
