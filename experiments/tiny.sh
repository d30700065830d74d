# The post's experiment with a model of 2 M parameters that is in this repository. Sourced by reproduce.sh.
# The README has a table of what it gives.
# shellcheck shell=bash disable=SC2034,SC2154  # reproduce.sh reads and sets variables here
source experiments/local.sh
all_stages=(base grpo sft sft_grpo report)
default_stages=("${all_stages[@]}")

prepare() {
  install_extras local
  url=${URL:-$(free_url)}
  backend=(--base-url "$url" --engine torch)
  # The longest ideal run of an easy task (depth 2-3) takes 12 turns.
  play=("${backend[@]}" --difficulty easy --limit 72 --max-turns 12 --max-reply-tokens 128)
  # Trainer and sampler share the cores, so nothing is gained by sampling ahead.
  grpo=("${backend[@]}" --groups 8 --group-size 8 --max-staleness 0 --max-reply-tokens 128 --save-every 1)
}

launch() { serve tiny; }

base() { evaluate_model base easy "${play[@]}"; }

grpo() {
  # The shortest tasks: a base model that fails nearly always has nothing to compare, and short episodes say the most.
  step grpo "$python" train_grpo.py "${grpo[@]}" --depths 2 --fits-budget 3 --max-turns 6 --steps 5 --lr 1e-3 \
    --run-dir "$out/grpo" --resume
  evaluate_model grpo easy "${play[@]}"
}

sft() {
  # A demonstration of depth 3 costs several times one of depth 2, and all of it must be right: most are of depth 2.
  local demonstrate=("$python" -m sft_data --round 2 --recovery 0 --wording terse --seed 0)
  step sft-depth2 "${demonstrate[@]}" --depths 2 --count 240 --out "$out/depth2.jsonl"
  step sft-depth3 "${demonstrate[@]}" --depths 3 --count 130 --out "$out/depth3.jsonl"
  cat "$out"/depth[23].jsonl >"$out/demonstrations.jsonl"
  step sft "$python" train_sft.py "${backend[@]}" --data "$out/demonstrations.jsonl" --epochs 1 --batch-size 4 --lr 3e-3 \
    --held-out 8 --run-dir "$out/sft" --resume
  evaluate_model sft easy "${play[@]}"
}

sft_grpo() {
  step sft_grpo "$python" train_grpo.py "${grpo[@]}" --init "$out/sft" --depths 2 --max-turns 8 --steps 4 --lr 3e-4 \
    --run-dir "$out/sft_grpo" --resume
  evaluate_model sft_grpo easy "${play[@]}"
}
