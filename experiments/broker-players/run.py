#!/usr/bin/env python3
"""A sample of `run.mjs` for `make test`: one player in a browser, if a browser is installed.

``run.py smoke`` plays HLS through all steps, and says ``skipped: 1 (why)`` if the machine lacks a
program for it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))
from anabranch_lab.cells import BINARY, Experiment, Skipped

LAB = Experiment(__file__, __doc__)


@LAB.verb(binary=BINARY)
def smoke(args):
    """Plays HLS in a browser."""
    if os.geteuid() != 0:
        raise Skipped("players in a browser need root, as hosts have port 80")
    if missing := [name for name in ("node", "chromium", "ffmpeg") if shutil.which(name) is None]:
        raise Skipped(f"players in a browser need {', '.join(missing)}")
    if not (LAB.folder / "node_modules").is_dir():
        raise Skipped("players in a browser need `npm ci` in experiments/broker-players")
    return subprocess.run(["node", LAB.folder / "run.mjs", "--binary", args.binary, "hls"]).returncode


if __name__ == "__main__":
    sys.exit(LAB.main())
