# The post's experiment with SmolLM2-135M-Instruct on two CPU cores. Sourced by reproduce.sh.
# `./reproduce.sh smollm2` leaves GRPO alone and depth 4 out; `./reproduce.sh smollm2 --full` takes them in.
# results/smollm2/README.md says why the counts are what they are.
# shellcheck shell=bash disable=SC2034,SC2154  # reproduce.sh reads and sets variables here
source experiments/local.sh
all_stages=(sft sft_grpo grpo evaluate depth4 report)
default_stages=(sft sft_grpo evaluate report)
played_unlike=1  # depth 4 has longer replies than easy

prepare() {
  install_extras local smollm2
  url=${URL:-$(free_url)}
  backend=(--base-url "$url" --engine torch)
  # Trainer and sampler share the cores, so nothing is gained by sampling ahead.
  grpo=("${backend[@]}" --groups 4 --group-size 4 --max-staleness 0 --max-reply-tokens 96 --lr 1e-4 --save-every 1)
}

launch() { serve smollm2; }

sft() {
  local demonstrate=("$python" -m sft_data --round 2 --wording terse)
  step sft-depth2 "${demonstrate[@]}" --depths 2 --count 260 --recovery 40 --out "$out/depth2.jsonl"
  step sft-depth3 "${demonstrate[@]}" --depths 3 --count 24 --recovery 5 --out "$out/depth3.jsonl"
  cat "$out"/depth[23].jsonl >"$out/round2.jsonl"
  step sft "$python" train_sft.py "${backend[@]}" --data "$out/round2.jsonl" --epochs 1 --batch-size 2 --lr 2e-3 \
    --held-out 4 --save-every 20 --run-dir "$out/sft" --resume
}

sft_grpo() {
  step sft_grpo "$python" train_grpo.py "${grpo[@]}" --init "$out/sft" --depths 3 --fits-budget 7 --max-turns 9 \
    --steps 2 --run-dir "$out/sft_grpo" --resume
}

grpo() {
  step grpo "$python" train_grpo.py "${grpo[@]}" --depths 2 --fits-budget 3 --max-turns 6 --steps 2 \
    --run-dir "$out/grpo" --resume
}

evaluate() { every_model easy --difficulty easy --limit 24 --max-reply-tokens 96; }

depth4() { every_model depth4 --depths 4 --fits-budget 12 --limit 8 --max-reply-tokens 128; }

every_model() { # what the tasks are called, flags...
  local model
  for model in base grpo sft sft_grpo; do evaluate_model "$model" "$@" --max-turns 12 "${backend[@]}"; done
}
