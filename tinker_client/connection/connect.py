"""The way to the model behind a script: on a running Tinker server, or on a local one that is started for it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import tinker
import tyro
from rich.console import Console

from tinker_client.connection import models
from tinker_client.connection.backend import Backend, LossReduction
from tinker_client.connection.local_server import LocalServer, answers, is_skyrl
from tinker_client.connection.local_state import import_state
from tinker_client.connection.models import Tokenizer
from tinker_client.connection.pulse import Pulse
from tinker_client.connection.versions import SKYRL, check_pair, installed
from tinker_client.errors import ServerError, UserError
from tinker_client.play.chat import ChatTemplate
from tinker_client.run.run_dir import SavedState, read_config

ANSWER_SECONDS = 5.0
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
    """Longest sequence in tokens. Default: the model's own, where the server names it or its folder is on this machine;
    else 65,536."""

    turns_in_flight: int | None = None
    """Turns that the server is asked for at once. Default: two of its batches for the local server, with --base-url
    no limit."""

    def __post_init__(self) -> None:
        if any(count is not None and count < 1 for count in (self.context_length, self.turns_in_flight)):
            raise UserError("--context-length and --turns-in-flight start at 1")
        if self.hosted and self.base_url is not None:
            raise UserError("--hosted and --base-url name two servers: give one of them")

    @property
    def is_local(self) -> bool:
        """Whether a server is started on this machine."""
        return self.base_url is None and not self.hosted


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
        pulse = Pulse(backend.server["url"]) if config.base_url is not None else None  # hosted Tinker needs none
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
        template = _chat_template(tokenizer, config.thinking)
        server.wait_until_ready()
        service = tinker.ServiceClient(base_url=server.base_url, api_key=NO_KEY)
        try:
            yield Backend(
                service=service,
                model=str(server.model_dir),
                loss_reduction=config.loss_reduction or "sequence_mean",
                context_length=config.context_length or models.context_length(model_dir),
                turns_in_flight=config.turns_in_flight or 2 * server.sample_batch,
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
    return Backend(
        service=service,
        model=model,
        loss_reduction=config.loss_reduction or "token_sum",
        context_length=config.context_length or known[model] or _own_context_length(model) or REMOTE_CONTEXT_LENGTH,
        turns_in_flight=config.turns_in_flight,
        template=_chat_template(tokenizer, config.thinking),
        server={"kind": "remote", "skyrl": skyrl, "model": models.short_name(model), "url": name},
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


def _chat_template(tokenizer: Tokenizer, thinking: bool) -> ChatTemplate:
    template = ChatTemplate(tokenizer, models.stop_token_ids(tokenizer), thinking=thinking)
    if difference := template.difference():
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"note: {difference}", markup=False)
    return template


def _own_context_length(model: str) -> int | None:
    """What the folder of a model says, if that is what the server calls it: SkyRL names no length."""
    folder = Path(model)
    return models.context_length(folder) if (folder / "config.json").exists() else None


def _choose_model(wanted: str | None, known: list[str]) -> str:
    if wanted is not None and wanted not in known:
        raise UserError(f"the server does not know --model {wanted}: it has {', '.join(known)}")
    if wanted is None and len(known) != 1:
        raise UserError(f"the server has several models: choose one with --model: {', '.join(known)}")
    return wanted or known[0]
