# The post's own experiment on GPUs. Sourced by reproduce.sh, with $config one of server/configs.
# server/README.md has a table of what each stage takes, and of what the post got.
# shellcheck shell=bash disable=SC2034,SC2154  # reproduce.sh reads and sets variables here
all_stages=(server round1 round2 grpo sft_grpo evaluate report)
default_stages=("${all_stages[@]}")

field() { "$python" -c 'import json, sys; print(json.loads(open(f"server/configs/{sys.argv[1]}.json").read())[sys.argv[2]])' "$config" "$1"; }

prepare() {
  [ -x "$python" ] || fail "the client is not installed: run server/install_skyrl.sh"
  [ -n "${URL:-}" ] || "$python" -m server "$config" --check
  url=${URL:-http://127.0.0.1:8000}
  backend=(--base-url "$url" --model "$(field model)" --context-length "$(field context_length)")
  # Where trainer and sampler share one GPU, sampling ahead gains nothing.
  staleness=4
  [ "$(field gpus)" -gt 1 ] || staleness=0
  play=("${backend[@]}" --rollouts 4)
}

# In a session of its own: Ctrl-C is for the training script, which then has a step to finish and a state to save.
launch() { exec setsid "$python" -m server "$config" --run-dir "$out/server"; }

ready() { answers; }

round1() {
  step sft_round1-data "$python" -m sft_data --round 1 --out "$out/round1.jsonl"
  step sft_round1 "$python" train_sft.py "${backend[@]}" --data "$out/round1.jsonl" --run-dir "$out/sft_round1" --resume
}

round2() {
  step sft-data "$python" -m sft_data --round 2 --out "$out/round2.jsonl"
  step sft "$python" train_sft.py "${backend[@]}" --data "$out/round2.jsonl" --run-dir "$out/sft" --resume
}

grpo() {
  step grpo "$python" train_grpo.py "${backend[@]}" --difficulty medium --steps 50 --max-staleness "$staleness" \
    --run-dir "$out/grpo" --resume
}

sft_grpo() {
  step sft_grpo "$python" train_grpo.py "${backend[@]}" --init "$out/sft" --depths 6 --steps 30 \
    --max-staleness "$staleness" --run-dir "$out/sft_grpo" --resume
}

evaluate() { # 60 medium tasks and all 136 hard ones, 150 turns each
  local model
  for model in base sft_round1 grpo sft sft_grpo; do
    evaluate_model "$model" medium "${play[@]}" --difficulty medium --limit 60
    evaluate_model "$model" hard "${play[@]}" --difficulty hard
  done
}
