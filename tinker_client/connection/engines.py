"""What can compute behind a local server, and how each is started: our PyTorch backend, or SkyRL's JAX backend.

Both sit behind SkyRL's own Tinker API and engine loop, write the same database, and keep states in the same places.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

from tinker_client.connection.models import cache_dir
from tinker_client.errors import UserError

Engine = Literal["torch", "jax", "gpu"]  # as --engine names them; gpu is no local one

REPOSITORY = Path(__file__).resolve().parents[2]


class LocalEngine(Protocol):
    """How a local server computes.

    settings: SkyRL's `--backend-config`. turns_in_flight: how many turns it is asked for at once, None for no limit.
    """

    @property
    def settings(self) -> dict[str, int]: ...
    @property
    def turns_in_flight(self) -> int | None: ...

    def command(self, arguments: Sequence[str | Path]) -> list[str | Path]:
        """The command that serves with these arguments of SkyRL's API. Raises UserError if something is missing."""

    def environment(self) -> dict[str, str]:
        """The environment to start it in."""


@dataclass(frozen=True)
class TorchEngine:
    """Ours (`server/local`): continuous batching and a cache of keys and values that outlives a turn, for CPUs."""

    @property
    def settings(self) -> dict[str, int]:
        return {}

    @property
    def turns_in_flight(self) -> int | None:
        return None

    def command(self, arguments: Sequence[str | Path]) -> list[str | Path]:
        if find_spec("skyrl") is None or find_spec("peft") is None:
            raise UserError("the local server is not installed: run `uv sync --extra local`, or give --base-url")
        return [sys.executable, "-m", "server.local", *arguments]

    def environment(self) -> dict[str, str]:
        return _environment()


@dataclass(frozen=True)
class JaxEngine:
    """SkyRL's JAX backend, with what a small model on a few CPU cores needs.

    max_rank: the highest LoRA rank to be asked for. model_dir: the base model's folder, whose size decides on the
    batches. adapters: how many may be alive at once.
    """

    max_rank: int
    model_dir: Path
    adapters: int = 1

    @property
    def sample_batch(self) -> int:
        """How many episodes to sample together.

        A sequence of the tiny model costs the same in batches of 16, 32 and 64. One of SmolLM2-135M (384 tokens read,
        48 sampled) costs 1.4 s in a full batch of 8 and 1.6 s in one of 4. But the last episodes of a run do not fill
        a batch, and rows that only fill it are dear: a batch of 8 with 2 or 3 real rows took 29 s at 768 tokens and
        61 s at 1,536.
        """
        size = sum(file.stat().st_size for file in self.model_dir.glob("*.safetensors"))
        return 16 if size < 100e6 else 4

    @property
    def settings(self) -> dict[str, int]:
        return {
            # Slot 0 is the base model's. On a CPU ragged_dot computes every slot for every token: 4 instead of 2 slots
            # cost 13 % more to sample and 20 % more to train, at rank 32 with the 1.9 M model.
            "max_lora_adapters": self.adapters + 1,
            "max_lora_rank": self.max_rank,
            # A batch is always filled up to this size, with rows that cost as much as real ones and, since they rarely
            # stop, decode up to max_tokens.
            "sample_max_num_sequences": self.sample_batch,
            # Costs at most 8 % over 4 or 8, and every other value compiles again for each size of the last micro-batch.
            "train_micro_batch_size": 1,
            # Chunking saves memory that matters with a vocabulary of 150,000, not of a few hundred. With SmolLM2's
            # 49,152 it makes a step 13 % slower at 1,024 tokens and 60 % at 768.
            "loss_chunk_size": 0,
        }

    @property
    def turns_in_flight(self) -> int | None:
        return 2 * self.sample_batch  # one batch that is sampled and one that waits

    def command(self, arguments: Sequence[str | Path]) -> list[str | Path]:
        uv = find_uv()
        if find_spec("skyrl") is None or find_spec("jax") is None:
            raise UserError("--engine jax is not installed: run `uv sync --extra tinker --extra jax`")
        # SkyRL reads its parent's command line, and starts its engine with the same `uv run` flags.
        jax = ["--extra", "tinker", "--extra", "jax", "-m", "skyrl.tinker.api", "--backend", "jax"]
        return [uv, "run", "--no-sync", *jax, *arguments]

    def environment(self) -> dict[str, str]:
        environment = _environment()
        environment.pop("VIRTUAL_ENV", None)  # uv would warn that it is not the project's
        return environment | {
            "PATH": f"{find_uv().parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "UV_PROJECT_ENVIRONMENT": sys.prefix,  # the environment of this script, wherever it was made
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(cache_dir() / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }


def local_engine(name: Engine | None, model_dir: Path, max_rank: int) -> LocalEngine:
    """The engine of this name, ours if none is named, for the model in a folder and adapters of up to a rank."""
    return JaxEngine(max_rank, model_dir) if name == "jax" else TorchEngine()


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


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop("TINKER_API_KEY", None)
    return environment | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
