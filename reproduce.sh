#!/usr/bin/env bash
# A whole experiment: ./reproduce.sh CONFIG [STAGE...], all its usual stages by default, all there are with --full.
# CONFIG is one of server/configs for the post's own run on GPUs (experiments/post.sh), or, for the same on a CPU,
# smollm2 (experiments/smollm2.sh) or tiny (experiments/tiny.sh, which is what quickstart.sh runs).
# A step that is done is not done again, so after an interruption the same command goes on: an evaluation where it
# stopped, a training from its last checkpoint.
# Environment: OUT, the folder for everything (default runs/post-CONFIG); URL, a server that runs already; PYTHON, one
# that has everything installed, in place of .venv's.
set -euo pipefail
cd "$(dirname "$0")"

fail() {
  echo "error: $1" >&2
  exit 2
}

configs="$(cd server/configs && echo *.json | sed 's/\.json//g') smollm2 tiny"
config=${1:?"usage: ./reproduce.sh CONFIG [STAGE...], or CONFIG --full, with CONFIG one of: $configs"}
shift
[[ " $configs " == *" $config "* ]] || fail "no config $config: there are $configs"
case $config in
  smollm2 | tiny) experiment=$config ;;
  *) experiment=post ;;
esac
# An experiment has all_stages, default_stages and a function for each stage; prepare, which sets $url; launch, which
# becomes the server; and ready, which says whether that has come up.
# shellcheck source=experiments/post.sh
source "experiments/$experiment.sh"

stages=("$@")
[ $# -gt 0 ] || stages=("${default_stages[@]}")
[ "$*" != --full ] || stages=("${all_stages[@]}")
for stage in "${stages[@]}"; do
  [[ " ${all_stages[*]} " == *" $stage "* ]] || fail "no stage $stage: the stages are ${all_stages[*]}"
done
out=${OUT:-runs/post-$config}
python=${PYTHON:-.venv/bin/python}
done_before=
server_is_up=

step() { # what it is called, command...: runs it unless it is done, and notes the seconds that it took
  local name=$1 started status
  shift
  if [ -e "$out/done/$name" ]; then
    echo "== $name: done before"
    done_before=1
    return
  fi
  server
  printf '\n== %s\n+%s\n' "$name" "$(printf ' %q' "$@")"
  started=$SECONDS
  "$@" || {
    status=$?
    echo "$name stopped, and so does its server: repeat your ./quickstart.sh or ./reproduce.sh command to go on" >&2
    exit "$status"
  }
  echo $((SECONDS - started)) >"$out/done/$name"
}

evaluate_model() { # model: base, or the step that trained it; what the tasks are called, flags...
  local model=$1 tasks=$2 command=("$python" evaluate.py)
  shift 2
  if [ "$model" != base ]; then
    [ -e "$out/done/$model" ] || return 0
    command+=(--checkpoint "$out/$model")
  fi
  step "evaluate-$model-$tasks" "${command[@]}" "$@" --run-dir "$out/eval/$model-$tasks" --resume
}

answers() {
  "$python" -c 'import sys; from tinker_client.connection.alive import answers; sys.exit(not answers(sys.argv[1], 5.0))' "$url"
}

server() { # makes sure that one runs: that of URL, or one that the first call starts
  local started=$SECONDS
  [ -z "$server_is_up" ] || return 0
  if answers; then
    [ -n "${URL:-}" ] || fail "a server answers at $url already: give URL=$url to use it, or stop it"
  else
    [ -z "${URL:-}" ] || fail "no server answers at $URL"
    echo "starting the server (log: $out/server.log)"
    touch "$out/server.log"
    launch >>"$out/server.log" 2>&1 &
    server_pid=$!
    trap 'kill "$server_pid" 2>/dev/null && wait "$server_pid" || true' EXIT
    until ready; do
      kill -0 "$server_pid" 2>/dev/null || fail "the server ended: see $out/server.log"
      sleep 0.5
    done
    echo $((SECONDS - started)) >"$out/done/server"
  fi
  server_is_up=1
}

report() {
  local directories=() path name
  for path in "$out"/eval/*; do
    name=$(basename "$path")
    # Directories of one name are one model's, which must have been played alike.
    [ -n "${played_unlike:-}" ] || name=${name%-*}
    directories+=("$name=$path")
  done
  "$python" evaluate.py report "${directories[@]}" --out "$out/report"
  printf '\nSeconds of each step, of its last start:\n'
  for path in "$out"/done/*; do
    [ ! -s "$path" ] || printf '%6d  %s\n' "$(<"$path")" "$(basename "$path")"  # an OUT of an earlier version has none
  done
  printf '%6d  all of this command\n' "$SECONDS"
}

prepare
mkdir -p "$out/done"
for stage in "${stages[@]}"; do "$stage"; done
[ -z "$done_before" ] || echo "What was done before was not done again: for a new run delete $out, or set OUT to another folder"
