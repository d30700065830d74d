"""A SkyRL Tinker server on this machine's CPU, for as long as a script runs."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from tinker_client.connection.alive import Liveness, answers
from tinker_client.connection.local_state import forget_requests
from tinker_client.connection.models import cache_dir
from tinker_client.errors import ServerError, UserError
from tinker_client.run.locks import claimed

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 300.0
STOP_SECONDS = 15.0
# The engine's log line between loading the model and its first request. The API answers its health check long before.
ENGINE_READY = b"Starting background engine"


class LocalServer(Liveness):
    """SkyRL's JAX backend on a free port of 127.0.0.1, with all that it writes inside `directory`.

    Entering starts the process, `wait_until_ready` waits until it has loaded the model, leaving stops it. If the script
    dies instead, its watchdog stops it. A directory that an earlier server wrote is taken up again, with its states.
    max_rank: the highest LoRA rank to be asked for. adapters: how many adapters may be alive at once.
    port: 0 for any that is free. session_timeout_s: how long adapters outlive a script that has died; -1: for ever.
    Raises UserError on entering if uv or the `jax` extra is missing.
    """

    def __init__(
        self,
        directory: Path,
        model_dir: Path,
        *,
        max_rank: int,
        adapters: int = 1,
        port: int = 0,
        session_timeout_s: int = -1,
    ) -> None:
        self.directory = directory.resolve()
        self.model_dir = model_dir.resolve()
        self.log = self.directory / "server.log"
        self.database = self.directory / "tinker.db"
        self.checkpoints = self.directory / "checkpoints"
        self.sample_batch = sample_batch(model_dir)
        self.backend_config = backend_config(max_rank, adapters, self.sample_batch)
        self._port = port
        self._session_timeout_s = session_timeout_s
        self.base_url = ""

    def __enter__(self) -> Self:
        uv = find_uv()
        if find_spec("skyrl") is None or find_spec("jax") is None:
            raise UserError(
                "the local server is not installed: run `uv sync --extra tinker --extra jax`, or give --base-url"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        # The server of a script that was killed a moment ago may still be ending; its watchdog ends last.
        with claimed(self.directory, STOP_SECONDS) as claim:
            forget_requests(self.database)
            self._delete_sampler_weights()
            self._log_start = self.log.stat().st_size if self.log.exists() else 0
            port = _free_port(self._port)
            self.base_url = f"http://127.0.0.1:{port}"
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, Path(__file__).with_name("watchdog.py"), *self._command(uv, port)],
                    cwd=REPOSITORY,
                    env=_environment(uv),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=[claim],
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        forget_requests(self.database)
        self._delete_sampler_weights()

    def wait_until_ready(self) -> None:
        """Show a progress line until the server has loaded the model. Raises UserError if it does not come up."""
        deadline = time.monotonic() + START_SECONDS
        console = Console(stderr=True)
        with console.status(f"Starting the local server (log: {self.log})"):
            while not (ENGINE_READY in self._log_of_this_start() and answers(self.base_url, timeout=1.0)):
                try:
                    self.check()
                except ServerError as error:
                    raise UserError(str(error)) from error
                if time.monotonic() > deadline:
                    raise UserError(f"the local server is not ready after {START_SECONDS:.0f} s: see {self.log}")
                time.sleep(0.1)

    def check(self) -> None:
        """Raises ServerError if the server has ended; the SDK would wait for it for ever."""
        if self._process.poll() is not None:
            cause = _last_error(self._log_of_this_start())
            raise ServerError(f"the local server stopped ({cause}): see {self.log}")

    def delete_old_sampler_weights(self, model_id: str) -> None:
        """Delete what earlier calls for a sampling client wrote for this adapter.

        SkyRL's JAX backend writes an archive at every sync, reads it back at most once, and an older one must not be
        used: it would overwrite the weights in training.
        """
        shutil.rmtree(self.checkpoints / model_id / "sampler_weights", ignore_errors=True)

    def _delete_sampler_weights(self) -> None:
        # They cannot be sampled from after a restart: the server has forgotten the adapter they belong to.
        for folder in self.checkpoints.glob("*/sampler_weights"):
            shutil.rmtree(folder, ignore_errors=True)

    def _command(self, uv: Path, port: int) -> list[str | Path]:
        # SkyRL reads its parent's command line, and starts its engine with the same `uv run` flags.
        return [
            uv, "run", "--no-sync", "--extra", "tinker", "--extra", "jax", "-m", "skyrl.tinker.api",
            "--host", "127.0.0.1",
            "--port", str(port),
            "--base-model", self.model_dir,
            "--backend", "jax",
            "--backend-config", json.dumps(self.backend_config),
            "--database-url", f"sqlite:///{self.database}",
            "--checkpoints-base", self.checkpoints,
            "--session-timeout-sec", str(self._session_timeout_s),
            "--session-cleanup-interval-sec", "10",
        ]  # fmt: skip

    def _log_of_this_start(self) -> bytes:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()


def sample_batch(model_dir: Path) -> int:
    """How many episodes to sample together.

    A sequence of the tiny model costs the same in batches of 16, 32 and 64. One of SmolLM2-135M (384 tokens read, 48
    sampled) costs 1.4 s in a full batch of 8 and 1.6 s in one of 4. But the last episodes of a run do not fill a batch,
    and rows that only fill it are dear: a batch of 8 with 2 or 3 real rows took 29 s at 768 tokens and 61 s at 1,536.
    """
    size = sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))
    return 16 if size < 100e6 else 4


def backend_config(max_rank: int, adapters: int, sample_batch: int) -> dict[str, int]:
    """SkyRL's JAX settings for a small model on a few CPU cores."""
    return {
        # Slot 0 is the base model's. On a CPU ragged_dot computes every slot for every token: 4 instead of 2 slots cost
        # 13 % more to sample and 20 % more to train, at rank 32 with the 1.9 M model.
        "max_lora_adapters": adapters + 1,
        "max_lora_rank": max_rank,
        # A batch is always filled up to this size, with rows that cost as much as real ones and, since they rarely
        # stop, decode up to max_tokens.
        "sample_max_num_sequences": sample_batch,
        # Costs at most 8 % over 4 or 8, and every other value compiles again for each size of the last micro-batch.
        "train_micro_batch_size": 1,
        # Chunking saves memory that matters with a vocabulary of 150,000, not of a few hundred. With SmolLM2's 49,152
        # it makes a step 13 % slower at 1,024 tokens and 60 % at 768.
        "loss_chunk_size": 0,
    }


def find_uv() -> Path:
    """The uv to start a server with. Raises UserError if there is none that runs."""
    on_path = shutil.which("uv")
    # A pyenv shim of this name may be on PATH without a uv behind it, so it has to answer.
    for candidate in (on_path, REPOSITORY / ".uv" / "bin" / "uv"):
        if candidate is not None and _runs(candidate):
            return Path(candidate)
    raise UserError("the server needs uv, which SkyRL calls by name: run ./quickstart.sh or `pip install uv`")


def _runs(uv: Path | str) -> bool:
    try:
        return subprocess.run([uv, "--version"], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _environment(uv: Path) -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop("TINKER_API_KEY", None)
    environment.pop("VIRTUAL_ENV", None)  # uv would warn that it is not the project's
    return environment | {
        "PATH": f"{uv.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "UV_PROJECT_ENVIRONMENT": sys.prefix,  # the environment of this script, wherever it was made
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache_dir() / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _free_port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just closed is free
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise UserError(f"port {wanted} of 127.0.0.1 is taken ({error.strerror}): choose another") from error
        return int(probe.getsockname()[1])


def _last_error(log: bytes) -> str:
    lines = [line.strip() for line in re.sub(r"\x1b\[[\d;]*m", "", log.decode(errors="replace")).splitlines()]
    lines = [line for line in lines if line]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception|Interrupt)\b|error:", line)]
    if errors:
        return errors[-1][:300]
    return f"killed, or out of memory? Its log ends with: {(lines or ['nothing'])[-1][:300]}"
