#!/usr/bin/env bash
# Installs SkyRL with Megatron and vLLM at the release that this project supports, in an environment of its own beside
# this repository, and this project's client. For GPU machines; needs Linux, git, Python 3.12 and an NVIDIA driver.
# Argument: where to put SkyRL. Run again after an interruption, it goes on.
set -euo pipefail
release=0.4.0
tag=skyrl-v$release
cd "$(dirname "$0")/.."
skyrl=$(realpath -m "${1:-../$tag}")

fail() {
  echo "error: $1" >&2
  exit 2
}
driver=$(nvidia-smi --id=0 --query-gpu=driver_version --format=csv,noheader 2>/dev/null) ||
  fail "no NVIDIA driver answers: this is for GPU machines; on a CPU run ./quickstart.sh"
[ "${driver%%.*}" -ge 580 ] || fail "the NVIDIA driver is $driver, SkyRL's CUDA 13.0 needs 580 or newer: update it"
command -v git >/dev/null || fail "git is missing: install it"
command -v cc >/dev/null || fail "a C compiler is missing: apt-get install build-essential"
grep -q libnuma.so <<<"$(PATH=$PATH:/sbin ldconfig -p)" ||
  echo "warning: libnuma is not among the system's libraries, and SkyRL needs it: apt-get install libnuma-dev" >&2

source server/install.sh

# Its GPU packages come from indices that only its own pyproject.toml and uv.lock name, hence the repository.
[ -d "$skyrl" ] || git clone --depth 1 --branch "$tag" https://github.com/NovaSky-AI/SkyRL.git "$skyrl"
grep -q "\"$release\"" "$skyrl/skyrl/__init__.py" || fail "$skyrl is not SkyRL $release: delete it or name another folder"
cd "$skyrl"
unset VIRTUAL_ENV
uv sync --frozen --python 3.12 --extra tinker --extra megatron
uv run --frozen --extra tinker --extra megatron python -c '
import megatron.core, torch, vllm
assert torch.cuda.is_available(), "torch sees no GPU"
print(f"SkyRL is installed: vLLM {vllm.__version__}, torch {torch.__version__}, {torch.cuda.device_count()} GPUs")'
