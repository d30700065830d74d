#!/usr/bin/env bash
# The post's own run on GPUs: ./reproduce.sh CONFIG [STAGE...], with CONFIG from server/configs, all stages by default.
# A stage that is done is not done again, so after an interruption the same command goes on: an evaluation where it
# stopped, a training from its last checkpoint. The README has a table of what each stage takes, and of what the post got.
# Environment: OUT, the folder for everything (default runs/post-CONFIG); URL, a server that runs already.
set -euo pipefail
cd "$(dirname "$0")"
all_stages=(server round1 round2 grpo sft_grpo evaluate report)

config=${1:?"usage: ./reproduce.sh CONFIG [STAGE...], with CONFIG one of: $(cd server/configs && echo *.json | sed 's/\.json//g')"}
shift
stages=("$@")
[ $# -gt 0 ] || stages=("${all_stages[@]}")
for stage in "${stages[@]}"; do
  [[ " ${all_stages[*]} " == *" $stage "* ]] || { echo "error: no stage $stage: the stages are ${all_stages[*]}" >&2; exit 2; }
done
out=${OUT:-runs/post-$config}
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || { echo "error: the client is not installed: run server/install_skyrl.sh" >&2; exit 2; }
[ -n "${URL:-}" ] || "$python" -m server "$config" --check
mkdir -p "$out/done"

field() { "$python" -c 'import json, sys; print(json.loads(open(f"server/configs/{sys.argv[1]}.json").read())[sys.argv[2]])' "$config" "$1"; }
url=${URL:-http://127.0.0.1:8000}
backend=(--base-url "$url" --model "$(field model)" --context-length "$(field context_length)")
# Where trainer and sampler share one GPU, sampling ahead gains nothing.
staleness=4
[ "$(field gpus)" -gt 1 ] || staleness=0
play=("${backend[@]}" --rollouts 4 --resume)

step() { # what it is called, command...: runs it unless it is done
  local name=$1
  shift
  [ ! -e "$out/done/$name" ] || { echo "== $name: done before"; return 0; }
  server
  printf '\n== %s\n+ %s\n' "$name" "$*"
  "$@"
  touch "$out/done/$name"
}

answers() {
  "$python" -c 'import sys; from tinker_client import server; sys.exit(not server.answers(sys.argv[1], 5.0))' "$url"
}

server() { # starts one unless it answers, and waits for it
  ! answers || return 0
  [ -z "${URL:-}" ] || { echo "error: no server answers at $URL" >&2; exit 2; }
  echo "starting the server (log: $out/server.log)"
  "$python" -m server "$config" --run-dir "$out/server" >>"$out/server.log" 2>&1 &
  server_pid=$!
  trap 'kill "$server_pid" 2>/dev/null && wait "$server_pid" || true' EXIT
  until answers; do
    kill -0 "$server_pid" 2>/dev/null || { echo "error: the server ended: see $out/server.log" >&2; exit 2; }
    sleep 2
  done
}

round1() {
  step round1-data "$python" -m sft_data --round 1 --out "$out/round1.jsonl"
  step round1 "$python" train_sft.py "${backend[@]}" --data "$out/round1.jsonl" --run-dir "$out/sft_round1" --resume
}

round2() {
  step round2-data "$python" -m sft_data --round 2 --out "$out/round2.jsonl"
  step round2 "$python" train_sft.py "${backend[@]}" --data "$out/round2.jsonl" --run-dir "$out/sft" --resume
}

grpo() {
  step grpo "$python" train_grpo.py "${backend[@]}" --difficulty medium --steps 50 --max-staleness $staleness \
    --run-dir "$out/grpo" --resume
}

sft_grpo() {
  step sft_grpo "$python" train_grpo.py "${backend[@]}" --init "$out/sft" --depths 6 --steps 30 \
    --max-staleness $staleness --run-dir "$out/sft_grpo" --resume
}

evaluate() { # the base model and those that have been trained: 60 medium tasks and all 136 hard ones, 150 turns each
  local model checkpoint
  local -A made_by=([sft_round1]=round1 [grpo]=grpo [sft]=round2 [sft_grpo]=sft_grpo)
  for model in base sft_round1 grpo sft sft_grpo; do
    checkpoint=()
    if [ $model != base ]; then
      [ -e "$out/done/${made_by[$model]}" ] || continue
      checkpoint=(--checkpoint "$out/$model")
    fi
    step "evaluate-$model-medium" "$python" evaluate.py "${play[@]}" "${checkpoint[@]}" --difficulty medium --limit 60 \
      --run-dir "$out/eval/$model-medium"
    step "evaluate-$model-hard" "$python" evaluate.py "${play[@]}" "${checkpoint[@]}" --difficulty hard \
      --run-dir "$out/eval/$model-hard"
  done
}

report() {
  local directories=() directory name
  for directory in "$out"/eval/*; do
    name=$(basename "$directory")
    directories+=("${name%-*}=$directory")
  done
  "$python" evaluate.py report "${directories[@]}" --out "$out/report"
}

for stage in "${stages[@]}"; do "$stage"; done
