#!/usr/bin/env bash
# Everything that is checked of the lab: lint, types, tests, doctests, the examples of docs/lab.md. Needs a binary.
set -euo pipefail
cd "$(dirname "$0")"
VENV=${ANABRANCH_LAB_VENV:-.venv}
# Installed anew only where what it stands on has changed.
if ! cmp --silent pyproject.toml "$VENV/installed.toml"; then
  [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dask,test]'
  cp pyproject.toml "$VENV/installed.toml"
fi
"$VENV/bin/ruff" check
"$VENV/bin/ruff" format --check --quiet
"$VENV/bin/mypy"
"$VENV/bin/pytest"
# Records of both are as they were recorded, and so is what a sample gives; the third sample takes minutes.
"$VENV/bin/anabranch-lab" check incast lttp --known --quiet
