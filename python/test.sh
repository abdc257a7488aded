#!/usr/bin/env bash
# Everything that is checked of the lab: lint, types, tests, doctests, the examples of docs/lab.md. Needs a binary.
set -euo pipefail
cd "$(dirname "$0")"
VENV=${ANABRANCH_LAB_VENV:-.venv}
# Installs the lab again only if its dependencies have changed.
if ! cmp --silent pyproject.toml "$VENV/installed.toml"; then
  [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dask,test]'
  cp pyproject.toml "$VENV/installed.toml"
fi
"$VENV/bin/ruff" check
# Programs outside the package: undefined and unused names.
"$VENV/bin/ruff" check --quiet --isolated --select E9,F ../experiments ../clients ../crates
"$VENV/bin/ruff" format --check --quiet
"$VENV/bin/mypy"
"$VENV/bin/pytest"
