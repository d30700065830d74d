"""The model behind a script: on a running Tinker server, or on a local one that is started for it."""

import concurrent.futures
import os
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import tinker
import tyro
from rich.console import Console
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

from tinker_client import models
from tinker_client.chat import ChatTemplate
from tinker_client.errors import ServerError, UserError
from tinker_client.models import Tokenizer
from tinker_client.pulse import Pulse
from tinker_client.run_dir import SavedState, read_config
from tinker_client.server import SAMPLE_BATCH, LocalServer, answers, import_state, is_skyrl
from tinker_client.versions import SKYRL, check_pair, installed
from tinker_client.waiting import STEP_TIMEOUT_S, Request, wait

LossReduction = Literal["token_sum", "sequence_mean"]

ANSWER_SECONDS = 5.0
# Creating, loading and saving an adapter. A minute at most was measured on two cores; GPU servers build engines here.
CALL_SECONDS = 1800.0
# A server forgets an adapter or deletes a state at once, but only after the work that it has already accepted.
RELEASE_SECONDS = 60.0
# `max_model_len` of the configurations in server/configs.
REMOTE_CONTEXT_LENGTH = 65_536
# SkyRL asks for no key, but the SDK does not start without one of this form.
NO_KEY = "tml-none"


@dataclass(frozen=True)
class BackendConfig:
    """Which model, on which server."""

    model: str | None = None
    """Base model. Local server: tiny (the default), smollm2 or a directory.
    With --base-url: a name that the server knows, by default its only one."""

    base_url: str | None = None
    """URL of a running Tinker server, for example http://127.0.0.1:8000. Without it, a local CPU server is started."""

    hosted: tyro.conf.FlagCreatePairsOff[bool] = False
    """Use Thinking Machines' hosted Tinker. It wants your key in the environment variable TINKER_API_KEY."""

    loss_reduction: LossReduction | None = None
    """How the server reduces a loss. Default: sequence_mean (JAX) for the local server, token_sum with --base-url."""

    tokenizer: str | None = None
    """Hugging Face name or directory of the tokenizer. Default: the model's."""

    thinking: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let the model think before each reply, if its chat template has a thinking mode. Earlier thoughts stay in the
    conversation, and all count towards --max-reply-tokens."""

    context_length: int | None = None
    """Longest sequence in tokens. Default: the model's own, with --base-url at most 65,536."""

    turns_in_flight: int | None = None
    """Turns that the server is asked for at once. Default: two batches (32) for the local server, with --base-url no
    limit."""

    def __post_init__(self) -> None:
        if any(count is not None and count < 1 for count in (self.context_length, self.turns_in_flight)):
            raise UserError("--context-length and --turns-in-flight start at 1")
        if self.hosted and self.base_url is not None:
            raise UserError("--hosted and --base-url name two servers: give one of them")

    @property
    def is_local(self) -> bool:
        """Whether a server is started on this machine."""
        return self.base_url is None and not self.hosted


@dataclass(frozen=True)
class Backend:
    """A connected server and one base model of it."""

    service: tinker.ServiceClient
    model: str
    """What the server calls the base model."""
    tokenizer: Tokenizer
    loss_reduction: LossReduction
    context_length: int
    turns_in_flight: int | None
    stop_token_ids: list[int]
    template: ChatTemplate
    server: dict[str, Any]
    """What config.json records about the server."""
    init_state_path: str | None = None
    """The state given to connect(), ready for adapter() and training_client_from()."""
    local: LocalServer | None = field(default=None, repr=False)
    check_alive: Callable[[], None] = field(default=lambda: None, repr=False)
    """Raises ServerError if the server is gone. The SDK itself would wait for ever."""
    adapters: list[tinker.TrainingClient] = field(default_factory=list, repr=False)
    """The adapters that were made and not released yet."""

    def adapter(self, rank: int, seed: int, *, with_optimizer: bool = False) -> tinker.TrainingClient:
        """An adapter with the weights of the state given to connect(), if asked with its Adam state; or a fresh one."""
        if self.init_state_path is None:
            return self.new_training_client(rank, seed)
        return self.training_client_from(self.init_state_path, with_optimizer)

    def new_training_client(self, rank: int, seed: int) -> tinker.TrainingClient:
        """A fresh LoRA adapter (B = 0, so it samples like the base model).

        The local server holds one adapter at a time: `release` the one before.
        """
        adapter = self._call(
            "creating an adapter",
            lambda: self.service.create_lora_training_client(base_model=self.model, rank=rank, seed=seed),
        )
        self.adapters.append(adapter)
        return adapter

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
            adapter = self._call("loading a state", lambda: create(state_path))
        except ServerError as error:
            if not isinstance(error.__cause__, tinker.NotFoundError):
                raise
            raise UserError(
                f"the server has no state {state_path}: give the run directory or server that saved it"
            ) from error
        self.adapters.append(adapter)
        return adapter

    def sampling_client(self, training_client: tinker.TrainingClient) -> tinker.SamplingClient:
        """A client that samples from the adapter's present weights.

        Call it after every optim_step and use no older client afterwards: on the JAX backend that would undo training.
        """
        if self.local is not None:
            self.local.delete_old_sampler_weights(training_client.model_id)
        return self._call("saving weights for sampling", training_client.save_weights_and_get_sampling_client)

    def base_sampling_client(self) -> tinker.SamplingClient:
        """A client that samples from the base model.

        Not for SkyRL on GPUs, whose engines start with the first adapter: sample from a fresh one there.
        """
        return self._call("opening the base model", lambda: self.service.create_sampling_client(base_model=self.model))

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
            return wait(request, lambda: what, self.check_alive, seconds)
        except ServerError:
            raise
        except Exception as error:  # the SDK raises ValueError and others for what a server answers
            line = " ".join(str(error).split())[:300]
            raise ServerError(f"{what} failed with {type(error).__name__}: {line}") from error


@contextmanager
def connect(
    config: BackendConfig, run_dir: Path, *, rank: int = 32, init: SavedState | None = None
) -> Iterator[Backend]:
    """Connect to the server of `config`, or start a local one inside `run_dir` and stop it at the end.

    rank: the LoRA rank that will be asked for; the local server is sized for it (with `init`, for the saved one).
    init: a state to start from; a local server gets a copy of it before it starts.
    Raises UserError if nothing answers, the model is unknown or the state cannot be had.
    """
    if config.is_local:
        with _local(config, run_dir, rank, init) as backend:
            yield backend
    else:
        backend = _remote(config, init)
        pulse = Pulse(config.base_url) if config.base_url is not None else None  # hosted Tinker looks after itself
        with pulse or nullcontext():
            if pulse is not None:
                backend = replace(backend, check_alive=pulse.check_alive)
            try:
                yield backend
            finally:
                # Whatever happened: an adapter that stays takes a place until the server's time-out, if it has one.
                for adapter in list(backend.adapters):
                    with suppress(ServerError):
                        backend.release(adapter)
                with suppress(tinker.TinkerError):  # a session that never came about is opened here, in vain
                    backend.service.holder.close()


@contextmanager
def _local(config: BackendConfig, run_dir: Path, rank: int, init: SavedState | None) -> Iterator[Backend]:
    name = config.model or "tiny"
    directory = run_dir / "server"
    if init is not None:
        source = init.run_dir or run_dir
        trained = (read_config(source) or {}).get("server") or {}
        if config.model is None:
            name = trained.get("model", name)
        elif trained.get("model", name) != name:
            raise UserError(f"{source} was trained on --model {trained['model']}, not {name}: leave --model out")
        rank = import_state(init.state_path, source / "server", directory)
    model_dir = models.local_model_dir(name)
    check_pair(installed("tinker") or "", installed("skyrl") or SKYRL)
    with LocalServer(directory, model_dir, max_rank=rank) as server:
        # While the server loads the model.
        tokenizer = models.load_tokenizer(config.tokenizer or str(model_dir))
        stop = models.stop_token_ids(tokenizer)
        template = _chat_template(tokenizer, stop, config.thinking)
        server.wait_until_ready()
        service = tinker.ServiceClient(base_url=server.base_url, api_key=NO_KEY)
        try:
            yield Backend(
                service=service,
                model=str(server.model_dir),
                tokenizer=tokenizer,
                loss_reduction=config.loss_reduction or "sequence_mean",
                context_length=config.context_length or models.context_length(model_dir),
                turns_in_flight=config.turns_in_flight or 2 * SAMPLE_BATCH,
                stop_token_ids=stop,
                template=template,
                server={"kind": "local", "model": name, "url": server.base_url, "backend": server.backend_config},
                init_state_path=init.state_path if init else None,
                local=server,
                check_alive=server.check_alive,
            )
        finally:
            service.holder.close()


def _remote(config: BackendConfig, init: SavedState | None) -> Backend:
    key = os.environ.get("TINKER_API_KEY")
    skyrl = False
    if config.base_url is None:
        if not key:
            raise UserError("--hosted needs your key in the environment variable TINKER_API_KEY")
        base_url, name = None, "hosted Tinker"  # the SDK knows its address
    else:
        base_url = name = _answering(config.base_url)
        skyrl = is_skyrl(base_url, ANSWER_SECONDS)
    if skyrl:
        check_pair(installed("tinker") or "", SKYRL)  # it does not tell its version
    try:
        service = tinker.ServiceClient(base_url=base_url, api_key=key or NO_KEY)
        known = {m.model_name: m.max_context_length for m in service.get_server_capabilities().supported_models}
    except tinker.TinkerError as error:
        raise UserError(f"{name} refused the connection ({error}): check TINKER_API_KEY") from error
    model = _choose_model(config.model, [name for name in known if name])
    tokenizer = models.load_tokenizer(config.tokenizer or model)
    stop = models.stop_token_ids(tokenizer)
    return Backend(
        service=service,
        model=model,
        tokenizer=tokenizer,
        loss_reduction=config.loss_reduction or "token_sum",
        context_length=config.context_length or known[model] or REMOTE_CONTEXT_LENGTH,
        turns_in_flight=config.turns_in_flight,
        stop_token_ids=stop,
        template=_chat_template(tokenizer, stop, config.thinking),
        server={"kind": "remote", "skyrl": skyrl, "model": model, "url": name},
        init_state_path=init.state_path if init else None,
    )


def _answering(base_url: str) -> str:
    """The URL of a server that answers. Raises UserError if none does, or it is no URL."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise UserError("--base-url must look like http://127.0.0.1:8000 (a key belongs into TINKER_API_KEY)")
    base_url = base_url.rstrip("/")
    if not answers(base_url, ANSWER_SECONDS):
        raise UserError(f"no Tinker server answers at {base_url}: start one, or leave --base-url out for a local one")
    return base_url


def _chat_template(tokenizer: Tokenizer, stop_token_ids: list[int], thinking: bool) -> ChatTemplate:
    template = ChatTemplate(tokenizer, stop_token_ids, thinking=thinking)
    if difference := template.difference():
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"note: {difference}", markup=False)
    return template


def _choose_model(wanted: str | None, known: list[str]) -> str:
    if wanted is not None and wanted not in known:
        raise UserError(f"the server does not know --model {wanted}: it has {', '.join(known)}")
    if wanted is None and len(known) != 1:
        raise UserError(f"the server has several models: choose one with --model: {', '.join(known)}")
    return wanted or known[0]
