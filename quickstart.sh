#!/usr/bin/env bash
# The post's four models at the scale of a laptop: base, GRPO alone, SFT, SFT then GRPO. Needs Python 3.12 and no GPU.
# Every stage is one of the project's commands, printed before it runs; results go to a new folder under runs/.
set -euo pipefail
cd "$(dirname "$0")"
source server/install.sh tinker jax
source .venv/bin/activate

out=runs/quickstart-$(date +%Y%m%d-%H%M%S)
mkdir -p "$out"
timings=()

stage() { # name, command...
  local name=$1 started=$SECONDS
  shift
  printf '\n== %s\n+ %s\n' "$name" "$*"
  "$@"
  timings+=("$(printf '%5d s  %s' $((SECONDS - started)) "$name")")
}

# One server for all stages: each start of one costs half a minute, and as much again for what it compiles.
started=$SECONDS
python -m tinker_client serve --run-dir "$out" --stop-with-parent >"$out/url" &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server"' EXIT
until [ -s "$out/url" ]; do kill -0 "$server" 2>/dev/null || exit 2; sleep 0.2; done
timings+=("$(printf '%5d s  %s' $((SECONDS - started)) "server: start")")
backend="--base-url $(cat "$out/url") --engine jax --turns-in-flight 32"

# The longest ideal run of an easy task (depth 2-3) takes 12 turns.
play="$backend --difficulty easy --limit 72 --max-turns 12 --max-reply-tokens 128"
# On this backend sampling and training cannot overlap, so nothing is gained by sampling ahead.
grpo="$backend --groups 8 --group-size 8 --max-staleness 0 --max-reply-tokens 128"

# A demonstration of depth 3 costs several times one of depth 2, and all of it must be right: most are of depth 2.
demonstrate="python -m sft_data --round 2 --recovery 0 --wording terse --seed 0"
stage "demonstrations of depth 2" $demonstrate --depths 2 --count 240 --out "$out/depth2.jsonl"
stage "demonstrations of depth 3" $demonstrate --depths 3 --count 130 --out "$out/depth3.jsonl"
cat "$out"/depth[23].jsonl >"$out/demonstrations.jsonl"
stage "base: evaluate" python evaluate.py --run-dir "$out/eval/base" $play
# The shortest tasks: a base model that fails nearly always has nothing to compare, and short episodes say the most.
stage "GRPO alone: train" \
  python train_grpo.py --run-dir "$out/grpo" --depths 2 --fits-budget 3 --max-turns 6 --steps 5 --lr 1e-3 $grpo
stage "GRPO alone: evaluate" python evaluate.py --run-dir "$out/eval/grpo" --checkpoint "$out/grpo" $play
stage "SFT: train" \
  python train_sft.py --run-dir "$out/sft" --data "$out/demonstrations.jsonl" --epochs 1 --batch-size 4 --lr 3e-3 --held-out 8 $backend
stage "SFT: evaluate" python evaluate.py --run-dir "$out/eval/sft" --checkpoint "$out/sft" $play
stage "SFT then GRPO: train" \
  python train_grpo.py --run-dir "$out/sft_grpo" --init "$out/sft" --depths 2 --max-turns 8 --steps 4 --lr 3e-4 $grpo
stage "SFT then GRPO: evaluate" python evaluate.py --run-dir "$out/eval/sft_grpo" --checkpoint "$out/sft_grpo" $play

printf '\n== val easy\n'
python evaluate.py report "$out"/eval/{base,grpo,sft,sft_grpo} --out "$out/report"
printf '\nTime of each stage:\n'
printf '%s\n' "${timings[@]}" "$(printf '%5d s  all' "$SECONDS")"
