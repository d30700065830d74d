#!/usr/bin/env bash
# A whole experiment: ./reproduce.sh CONFIG [STAGE...], all its usual stages by default, all there are with --full.
# CONFIG is one of server/configs for the post's own run on GPUs (experiments/post.sh), or smollm2 for the same with a
# small model on a CPU (experiments/smollm2.sh).
# A stage that is done is not done again, so after an interruption the same command goes on: an evaluation where it
# stopped, a training from its last checkpoint.
# Environment: OUT, the folder for everything (default runs/post-CONFIG); URL, a server that runs already.
set -euo pipefail
cd "$(dirname "$0")"

configs="$(cd server/configs && echo *.json | sed 's/\.json//g') smollm2"
config=${1:?"usage: ./reproduce.sh CONFIG [STAGE...], or CONFIG --full, with CONFIG one of: $configs"}
shift
[[ " $configs " == *" $config "* ]] || { echo "error: no config $config: there are $configs" >&2; exit 2; }
experiment=post
[ "$config" != smollm2 ] || experiment=smollm2
source "experiments/$experiment.sh"

stages=("$@")
[ $# -gt 0 ] || stages=("${default_stages[@]}")
[ "$*" != --full ] || stages=("${all_stages[@]}")
for stage in "${stages[@]}"; do
  [[ " ${all_stages[*]} " == *" $stage "* ]] || { echo "error: no stage $stage: the stages are ${all_stages[*]}" >&2; exit 2; }
done
out=${OUT:-runs/post-$config}
python=${PYTHON:-.venv/bin/python}

step() { # what it is called, command...: runs it unless it is done, and notes the seconds that it took
  local name=$1 started
  shift
  [ ! -e "$out/done/$name" ] || { echo "== $name: done before"; return 0; }
  server
  printf '\n== %s\n+ %s\n' "$name" "$*"
  started=$SECONDS
  "$@"
  echo $((SECONDS - started)) >"$out/done/$name"
}

evaluate_model() { # model, the stage that trained it (none for base), what the tasks are called, flags...
  local model=$1 trained_by=$2 tasks=$3 checkpoint=()
  shift 3
  if [ -n "$trained_by" ]; then
    [ -e "$out/done/$trained_by" ] || return 0
    checkpoint=(--checkpoint "$out/$model")
  fi
  step "evaluate-$model-$tasks" "$python" evaluate.py "$@" "${checkpoint[@]}" --run-dir "$out/eval/$model-$tasks"
}

answers() {
  "$python" -c 'import sys; from tinker_client.connection.alive import answers; sys.exit(not answers(sys.argv[1], 5.0))' "$url"
}

server() { # starts one unless it runs, and waits for it
  if answers; then
    [ -z "${URL:-}${server_pid:-}" ] || return 0
    echo "error: a server answers at $url already: give URL=$url to use it, or stop it" >&2
    exit 2
  fi
  [ -z "${URL:-}" ] || { echo "error: no server answers at $URL" >&2; exit 2; }
  echo "starting the server (log: $out/server.log)"
  launch >>"$out/server.log" 2>&1 &
  server_pid=$!
  trap 'kill "$server_pid" 2>/dev/null && wait "$server_pid" || true' EXIT
  until answers; do
    kill -0 "$server_pid" 2>/dev/null || { echo "error: the server ended: see $out/server.log" >&2; exit 2; }
    sleep 2
  done
}

report() {
  local directories=() directory name
  for directory in "$out"/eval/*; do
    name=$(basename "$directory")
    directories+=("${name%-*}=$directory")
  done
  "$python" evaluate.py report "${directories[@]}" --out "$out/report"
  printf '\nSeconds of each stage, of its last start:\n'
  (cd "$out/done" && grep -Hs . -- * | sed 's/:/  /') || true  # an OUT of an earlier version has none
}

prepare
mkdir -p "$out/done"
for stage in "${stages[@]}"; do "$stage"; done
