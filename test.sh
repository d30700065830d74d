#!/usr/bin/env bash
# Installs what is missing, then runs every check. Arguments go to pytest: `-m jax` runs the tests that need SkyRL's JAX
# backend, `-m slow` those that take minutes; both install what only they need.
set -euo pipefail
cd "$(dirname "$0")"
extras=(local dev)
[[ " $* " != *jax* ]] || extras+=(tinker jax)
[[ " $* " != *slow* ]] || extras+=(tinker jax smollm2)
source server/install.sh "${extras[@]}"

echo "== ruff" && uv run --no-sync ruff check . && uv run --no-sync ruff format --check .
echo "== mypy" && uv run --no-sync mypy
echo "== pytest" && uv run --no-sync pytest "$@"
