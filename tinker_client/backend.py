"""The model behind a script: on a running Tinker server, or on a local one that is started for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tinker

from tinker_client.models import Tokenizer
from tinker_client.run_dir import SavedState

LossReduction = Literal["token_sum", "sequence_mean"]


@dataclass(frozen=True)
class BackendConfig:
    """Which model, on which server."""

    model: str | None = None
    """Base model. Local server: tiny (default), smollm2 or a directory. With --base-url: a name the server knows; its only one by default."""

    base_url: str | None = None
    """URL of a running Tinker server, for example http://127.0.0.1:8000. Without it, a local CPU server is started."""

    loss_reduction: LossReduction | None = None
    """How the server reduces a loss. Default: sequence_mean (JAX) for the local server, token_sum for --base-url."""

    tokenizer: str | None = None
    """Hugging Face name or directory of the tokenizer, where the server's model name is neither."""

    context_length: int | None = None
    """Longest sequence in tokens. Default: the model's own, at most 65,536 with --base-url."""


@dataclass(frozen=True)
class Backend:
    """A connected server and one base model of it."""

    service: tinker.ServiceClient
    model: str
    """What the server calls the base model."""
    tokenizer: Tokenizer
    loss_reduction: LossReduction
    context_length: int
    stop_token_ids: list[int]
    server: dict[str, Any]
    """What config.json records about the server."""
    init_state_path: str | None
    """The state given to connect() as this server knows it."""

    def new_training_client(self, rank: int, seed: int) -> tinker.TrainingClient:
        """A fresh LoRA adapter (B = 0, so it samples like the base model)."""
        raise NotImplementedError

    def training_client_from(self, state_path: str, with_optimizer: bool) -> tinker.TrainingClient:
        """A new adapter with the weights, and if asked the Adam state, of a training state. Raises UserError if there is none."""
        raise NotImplementedError

    def sampling_client(self, training_client: tinker.TrainingClient) -> tinker.SamplingClient:
        """A client that samples from the adapter's present weights.

        Call it after every optim_step and use no older client afterwards: on the JAX backend that would undo the training.
        """
        raise NotImplementedError

    def base_sampling_client(self) -> tinker.SamplingClient:
        """A client that samples from the base model."""
        raise NotImplementedError

    def save_state(self, training_client: tinker.TrainingClient, name: str) -> str:
        """Save weights and Adam state; the state path, for `RunDir.log_checkpoint`. `name` must be new to the adapter."""
        raise NotImplementedError


@contextmanager
def connect(
    config: BackendConfig, run_dir: Path, *, rank: int = 32, init: SavedState | None = None
) -> Iterator[Backend]:
    """Connect to `config.base_url`, or start a local server inside `run_dir` and stop it at the end.

    rank: the LoRA rank that will be asked for; the local server is sized for it (with `init`, for the saved rank).
    init: a state to start from; a local server gets a copy of it before it starts.
    Raises UserError if nothing answers, the model is unknown or the state cannot be had.
    """
    raise NotImplementedError
    yield
