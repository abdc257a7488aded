#!/usr/bin/env python3
"""A sample of `run.mjs` for `make test`: one player in a browser, where there is one.

``run.py smoke`` plays HLS through all steps, and says ``skipped: 1 (why)`` where the machine lacks what that needs. Standard library only.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def lacks():
    """What this machine lacks, if anything."""
    if os.geteuid() != 0:
        return "players in a browser need root, as hosts have port 80"
    missing = [name for name in ("node", "chromium", "ffmpeg") if shutil.which(name) is None]
    if missing:
        return f"players in a browser need {', '.join(missing)}"
    if not (HERE / "node_modules").is_dir():
        return "players in a browser need `npm ci` in experiments/broker-players"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["smoke"])
    parser.add_argument("--binary", type=Path, required=True)
    args = parser.parse_args()
    why = lacks()
    if why:
        print(f"broker-players: skipped: 1 ({why})")
        return 0
    return subprocess.run(["node", HERE / "run.mjs", "--binary", args.binary.resolve(), "hls"]).returncode


if __name__ == "__main__":
    sys.exit(main())
