#!/usr/bin/env bash
# Installs what is missing, then runs every check.
set -euo pipefail
cd "$(dirname "$0")"
source server/install.sh tinker jax dev

echo "== ruff" && uv run --no-sync ruff check . && uv run --no-sync ruff format --check .
echo "== mypy" && uv run --no-sync mypy
echo "== pytest" && uv run --no-sync pytest "$@"
