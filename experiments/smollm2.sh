# The post's experiment with SmolLM2-135M-Instruct on two CPU cores. Sourced by reproduce.sh.
# `./reproduce.sh smollm2` leaves GRPO alone out; `./reproduce.sh smollm2 --full` takes it in.
# The README says why the counts are what they are.
all_stages=(sft sft_grpo grpo evaluate report)
default_stages=(sft sft_grpo evaluate report)

prepare() {
  [ -n "${PYTHON:-}" ] || source server/install.sh tinker jax smollm2
  url=${URL:-http://127.0.0.1:8017}
  backend=(--base-url "$url" --loss-reduction sequence_mean --turns-in-flight 8)
  # On this backend sampling and training cannot overlap, so nothing is gained by sampling ahead.
  grpo=("${backend[@]}" --groups 4 --group-size 4 --max-staleness 0 --max-reply-tokens 96 --lr 1e-4 --save-every 1)
}

launch() { exec "$python" -m tinker_client serve --model smollm2 --run-dir "$out" --port 8017 --stop-with-parent; }

sft() {
  local demonstrate=("$python" -m sft_data --round 2 --wording terse)
  step sft-depth2 "${demonstrate[@]}" --depths 2 --count 260 --recovery 40 --out "$out/depth2.jsonl"
  step sft-depth3 "${demonstrate[@]}" --depths 3 --count 24 --recovery 5 --out "$out/depth3.jsonl"
  cat "$out"/depth[23].jsonl >"$out/round2.jsonl"
  step sft "$python" train_sft.py "${backend[@]}" --data "$out/round2.jsonl" --epochs 1 --batch-size 2 --lr 2e-3 \
    --held-out 4 --save-every 20 --run-dir "$out/sft" --resume
}

sft_grpo() {
  step sft_grpo "$python" train_grpo.py "${grpo[@]}" --init "$out/sft" --depths 3 --fits-budget 8 --max-turns 10 \
    --steps 3 --run-dir "$out/sft_grpo" --resume
}

grpo() {
  step grpo "$python" train_grpo.py "${grpo[@]}" --depths 2 --fits-budget 3 --max-turns 6 --steps 3 \
    --run-dir "$out/grpo" --resume
}

evaluate() {
  local -A made_by=([grpo]=grpo [sft]=sft [sft_grpo]=sft_grpo)
  local -A tasks=(
    [easy]="--difficulty easy --limit 24 --max-reply-tokens 96"
    [depth4]="--depths 4 --fits-budget 12 --limit 8 --max-reply-tokens 128"
  )
  local set model
  for set in easy depth4; do
    for model in base grpo sft sft_grpo; do
      # shellcheck disable=SC2086 # flags of their own
      evaluate_model $model "${made_by[$model]:-}" $set "${backend[@]}" --resume --max-turns 12 ${tasks[$set]}
    done
  done
}
