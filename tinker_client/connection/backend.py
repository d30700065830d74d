"""What a script asks of the server behind it: adapters, samplers, states, each with a bound on the wait."""

import concurrent.futures
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tinker
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

from tinker_client.connection.alive import STEP_TIMEOUT_S, Liveness, Request
from tinker_client.connection.local_server import LocalServer
from tinker_client.connection.models import Tokenizer
from tinker_client.errors import ServerError, UserError

# What computes behind the server. Everything that differs between servers follows from it: how a loss is reduced
# (tinker_client/train/datums.py), whether sampling shares the weights in training, and what is padded.
ServerKind = Literal["local", "skyrl-gpu", "skyrl-jax", "hosted"]

# Creating, loading and saving an adapter. A minute at most was measured on two cores; GPU servers build engines here.
CALL_SECONDS = 1800.0
# A server forgets an adapter or deletes a state at once, but only after the work that it has already accepted.
RELEASE_SECONDS = 60.0
# How long a server without a free place for an adapter is asked again: `serve` forgets those of a dead script in 120 s.
FULL_SECONDS = 180.0
ASK_AGAIN_SECONDS = 2.0
SKYRL_FULL = "Maximum number of LoRA adapters"


@dataclass(frozen=True)
class Backend:
    """A connected server and one base model of it."""

    service: tinker.ServiceClient
    model: str
    """What the server calls the base model."""
    kind: ServerKind
    context_length: int
    turns_in_flight: int | None
    tokenizer: Tokenizer
    stop_token_ids: list[int]
    """The tokens that end a reply."""
    thinking: bool
    """Whether the model may think before it replies, where its chat template has such a mode."""
    server: dict[str, Any]
    """What config.json records about the server."""
    init_state_path: str | None = None
    """The state given to connect(), ready for adapter() and training_client_from()."""
    local: LocalServer | None = field(default=None, repr=False)
    liveness: Liveness = field(default_factory=Liveness, repr=False)
    adapters: list[tinker.TrainingClient] = field(default_factory=list, repr=False)
    """The adapters that were made and not released yet."""

    @property
    def shared_weights(self) -> bool:
        """Whether sampling reads the weights in training themselves, as SkyRL's JAX backend does."""
        return self.kind == "skyrl-jax"

    def adapter(self, rank: int, seed: int, *, with_optimizer: bool = False) -> tinker.TrainingClient:
        """An adapter with the weights of the state given to connect(), if asked with its Adam state; or a fresh one."""
        if self.init_state_path is None:
            return self.new_training_client(rank, seed)
        return self.training_client_from(self.init_state_path, with_optimizer)

    def adapter_to_train(self, rank: int, seed: int, *, with_optimizer: bool = False) -> tinker.TrainingClient:
        """As `adapter`, and sure to have no gradients of a script that died before its optimizer step.

        SkyRL's JAX backend leaves them in the adapter's place, and would add them to those of the next one there.
        """
        if self.kind == "skyrl-jax" and self.local is None:
            passing = self.adapter(rank, seed)
            step = passing.optim_step(tinker.AdamParams(learning_rate=0.0))
            self.result(step, "clearing an adapter's place")
            self.release(passing)
        return self.adapter(rank, seed, with_optimizer=with_optimizer)

    def new_training_client(self, rank: int, seed: int) -> tinker.TrainingClient:
        """A fresh LoRA adapter (B = 0, so it samples like the base model).

        The local server holds one adapter at a time: `release` the one before.
        """
        return self._adapter(
            "creating an adapter",
            lambda: self.service.create_lora_training_client(base_model=self.model, rank=rank, seed=seed),
        )

    def training_client_from(self, state_path: str, with_optimizer: bool) -> tinker.TrainingClient:
        """A new adapter with the weights, and if asked the Adam state, of a training state.

        Raises UserError if the server has no such state.
        """
        create = (
            self.service.create_training_client_from_state_with_optimizer
            if with_optimizer
            else self.service.create_training_client_from_state
        )
        try:
            return self._adapter("loading a state", lambda: create(state_path))
        except ServerError as error:
            if not isinstance(error.__cause__, tinker.NotFoundError):
                raise
            raise UserError(
                f"the server has no state {state_path}: give the run directory or server that saved it"
            ) from error

    def _adapter(self, what: str, create: Callable[[], tinker.TrainingClient]) -> tinker.TrainingClient:
        """A new adapter, as soon as the server has a place for it: a killed script's keeps its own until a time-out."""
        deadline = time.monotonic() + FULL_SECONDS
        while True:
            try:
                adapter = self._call(what, create)
            except ServerError as error:
                if SKYRL_FULL not in str(error) or time.monotonic() > deadline:
                    raise
            else:
                self.adapters.append(adapter)
                return adapter
            time.sleep(ASK_AGAIN_SECONDS)

    def sampling_client(self, training_client: tinker.TrainingClient) -> tinker.SamplingClient:
        """A client that samples from the adapter's present weights.

        Call it after every optim_step and use no older client afterwards: SkyRL's GPU backends would sample from the
        newest weights all the same, and on its JAX backend that would undo training.
        """
        if self.local is not None and self.shared_weights:
            self.local.delete_old_sampler_weights(training_client.model_id)
        return self._call("saving weights for sampling", training_client.save_weights_and_get_sampling_client)

    def save_state(self, training_client: tinker.TrainingClient, name: str) -> str:
        """Save weights and Adam state; returns the state path, for `RunDir.log_checkpoint`.

        `name` must be new to the adapter: the server answers 409 otherwise, which the SDK retries for five minutes.
        """
        return str(self._call("saving the state", lambda: training_client.save_state(name).result()).path)

    def download_adapter(self, training_client: tinker.TrainingClient, path: Path) -> None:
        """Write the adapter's present weights, in the server's archive for samplers (a tar), to the file `path`."""
        name = f"export_{time.time_ns()}"
        saved = self._call("saving for samplers", lambda: training_client.save_weights_for_sampler(name).result()).path
        # tinker://RUN/NAME on SkyRL, tinker://RUN/sampler_weights/NAME as the SDK documents it.
        run, _, checkpoint = saved.removeprefix("tinker://").partition("/")
        rest = self.service.create_rest_client()
        answer = self._call("preparing the archive", lambda: rest.get_checkpoint_archive_url(run, checkpoint).result())
        try:
            with urllib.request.urlopen(answer.url, timeout=CALL_SECONDS) as response, path.open("wb") as file:  # noqa: S310
                shutil.copyfileobj(response, file)
        except OSError as error:
            raise UserError(f"the archive of the adapter cannot be downloaded ({error}): try again") from error

    def delete_state(self, state_path: str) -> None:
        """Delete a saved state, if the server still has it. Raises ServerError if it refuses to."""
        rest = self.service.create_rest_client()
        try:
            delete = rest.delete_checkpoint_from_tinker_path
            self._call("deleting a state", lambda: delete(state_path).result(), seconds=RELEASE_SECONDS)
        except ServerError as error:
            if not isinstance(error.__cause__, tinker.NotFoundError):
                raise

    def release(self, training_client: tinker.TrainingClient) -> None:
        """Forget an adapter, which frees its place on the server. Its saved states stay.

        `connect` does it for all that are left at its end.
        """

        async def unload() -> None:
            holder = self.service.holder
            with holder.aclient(ClientConnectionPoolType.TRAIN) as client:
                await client.models.unload(request=tinker.types.UnloadModelRequest(model_id=training_client.model_id))

        self.adapters.remove(training_client)
        self._call(
            "releasing an adapter",
            lambda: self.service.holder.run_coroutine_threadsafe(unload()).result(),
            seconds=RELEASE_SECONDS,
        )

    def result[T](self, request: Request[T], what: str) -> T:
        """The answer to a request of the SDK. Raises ServerError if it fails or takes more than an hour."""
        return self._wait(request, what, STEP_TIMEOUT_S)

    def _call[T](self, what: str, call: Callable[[], T], seconds: float = CALL_SECONDS) -> T:
        """The result of a blocking call of the SDK, which has no time-out of its own. Raises ServerError."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        # A daemon thread: one that hangs must not keep the script from ending.
        threading.Thread(target=run, daemon=True, name=what).start()
        return self._wait(future, what, seconds)

    def _wait[T](self, request: Request[T], what: str, seconds: float) -> T:
        try:
            return self.liveness.wait(request, lambda: what, seconds)
        except ServerError:
            raise
        except Exception as error:  # the SDK raises ValueError and others for what a server answers
            line = " ".join(str(error).split())[:300]
            raise ServerError(f"{what} failed with {type(error).__name__}: {line}") from error
