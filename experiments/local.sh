# Installation and server of the experiments on this machine's CPU. Sourced by them.
# shellcheck shell=bash disable=SC2034,SC2154  # reproduce.sh reads and sets variables here

install_extras() { # extras...: into .venv, but not where PYTHON is given
  # shellcheck source=server/install.sh
  [ -n "${PYTHON:-}" ] || source server/install.sh "$@"
}

free_url() { # one that no server has
  local port
  port=$("$python" -c 'import socket; probe = socket.create_server(("127.0.0.1", 0)); print(probe.getsockname()[1])')
  echo "http://127.0.0.1:$port"
}

serve() { # model: becomes its server
  # Ctrl-C is for the training script, which then has a step to finish and a state to save. A job in the background has
  # it ignored, but exec would undo that.
  trap '' INT
  exec "$python" -m tinker_client serve --model "$1" --run-dir "$out" --port "${url##*:}" --stop-with-parent
}

# It prints its URL once the model is loaded. It answers long before, and then the first script would wait.
ready() { grep -qxF "$url" "$out/server.log"; }
