#!/usr/bin/env bash
# Remove what make and the Python tools made in this clone; nothing that a user made, nothing outside the clone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -d .venv && ! -e .venv/pyrt-setup ]]; then
    echo "clean: .venv was not made by make: left as it is"
else
    rm -rf .venv
fi
rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache pyrt.egg-info build/lib build/bdist.*
[[ ! -d build ]] || rmdir --ignore-fail-on-non-empty build
find . -name '.?*' -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
