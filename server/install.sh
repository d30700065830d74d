# Sourced by the scripts in the repository's root, from there: makes uv available, then installs into .venv.
# Arguments: the extras to install (see pyproject.toml); none for a client of a server that runs elsewhere.

# A pyenv shim named uv can exist and fail, so ask it for its version instead of looking for its name.
if ! uv --version >/dev/null 2>&1; then
  if [ ! -x .uv/bin/uv ]; then
    echo "uv is missing: installing it into .uv"
    # A virtual environment of its own, since pip refuses to touch the Python of many systems.
    { python3.12 -m venv .uv && .uv/bin/pip install --quiet --disable-pip-version-check uv==0.13.9; } || {
      echo "error: cannot install uv: need Python 3.12 with its venv module and a package index" >&2
      return 2
    }
  fi
  export PATH="$PWD/.uv/bin:$PATH"
fi
extras=()
for extra in "$@"; do extras+=(--extra "$extra"); done
uv sync --quiet ${extras[@]+"${extras[@]}"}
