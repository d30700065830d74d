#!/usr/bin/env bash
# Installs, then the post's four models at the scale of a laptop: base, GRPO alone, SFT, SFT then GRPO. Needs Python 3.12
# and no GPU. The commands are in experiments/tiny.sh, and each is printed before it runs.
# After an interruption the same command goes on in the same folder; once all is done it prints the results again.
# Arguments and environment as for reproduce.sh, but everything goes to runs/quickstart.
set -euo pipefail
cd "$(dirname "$0")"
OUT=${OUT:-runs/quickstart} exec ./reproduce.sh tiny "$@"
