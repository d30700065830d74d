"""The way to the model behind a script: on a running Tinker server, or on a local one that is started for it."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import tinker
import tyro

from tinker_client.connection import models
from tinker_client.connection.alive import Pulse, answers, is_skyrl
from tinker_client.connection.backend import Backend, ServerKind
from tinker_client.connection.engines import Engine, local_engine
from tinker_client.connection.local_server import LocalServer
from tinker_client.connection.local_state import import_state
from tinker_client.errors import ServerError, UserError
from tinker_client.run.flags import Count, check_flags
from tinker_client.run.run_dir import SavedState, installed, read_config

ANSWER_SECONDS = 5.0
# `max_model_len` of the configurations in server/configs.
REMOTE_CONTEXT_LENGTH = 65_536
# SkyRL asks for no key, but the SDK does not start without one of this form.
NO_KEY = "tml-none"
KINDS: dict[Engine, ServerKind] = {"torch": "local", "jax": "skyrl-jax", "gpu": "skyrl-gpu"}
# SkyRL releases, and the releases of the tinker SDK that speak their protocol: from the first one, below the second.
# tinker 0.38 loads a state in one request without a model id, which SkyRL 0.4 refuses with status 422.
SKYRL = "0.4"  # the one that this project is written for
TINKER_FOR_SKYRL = {"0.4": ("0.25", "0.26")}


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

    engine: Engine | None = None
    """What computes behind the server: torch (ours, on a CPU), jax (SkyRL's JAX backend) or gpu (SkyRL's Megatron or
    FSDP, with vLLM). Default: for the local server torch, or what the run to start from was trained with; with
    --base-url gpu."""

    tokenizer: str | None = None
    """Hugging Face name or directory of the tokenizer. Default: the model's."""

    thinking: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let the model think before each reply, if its chat template has a thinking mode. Earlier thoughts stay in the
    conversation, and all count towards --max-reply-tokens."""

    context_length: Count | None = None
    """Longest sequence in tokens. Default: the model's own, where the server names it or its folder is on this machine;
    else 65,536."""

    turns_in_flight: Count | None = None
    """Turns that the server is asked for at once. Default: no limit, but two batches where a server with --engine jax
    is started here."""

    def __post_init__(self) -> None:
        check_flags(self)
        if self.hosted and self.base_url is not None:
            raise UserError("--hosted and --base-url name two servers: give one of them")
        if self.hosted and self.engine is not None:
            raise UserError("--engine is about a SkyRL server: leave it out with --hosted")
        if self.is_local and self.engine == "gpu":
            raise UserError("--engine gpu needs a server: start one (server/README.md) and give its --base-url")

    @property
    def is_local(self) -> bool:
        """Whether a server is started on this machine."""
        return self.base_url is None and not self.hosted

    @property
    def kind(self) -> ServerKind:
        """The kind of server that these flags mean."""
        if self.hosted:
            return "hosted"
        return KINDS[self.engine or ("torch" if self.is_local else "gpu")]


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
                backend = replace(backend, liveness=pulse)
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
    directory = run_dir / "server"
    if init is not None:
        config = as_trained(config, init.run_dir or run_dir)
        rank = import_state(init.state_path, (init.run_dir or run_dir) / "server", directory)
    name = config.model or "tiny"
    model_dir = models.local_model_dir(name)
    check_pair(installed("tinker") or "", installed("skyrl") or SKYRL)
    tokenizer = models.load_tokenizer(config.tokenizer or str(model_dir))
    models.check_vocabulary(tokenizer, model_dir)
    with LocalServer(directory, model_dir, local_engine(config.engine, model_dir, rank)) as server:
        server.wait_until_ready()
        service = tinker.ServiceClient(base_url=server.base_url, api_key=NO_KEY)
        try:
            yield Backend(
                service=service,
                model=str(server.model_dir),
                kind=config.kind,
                context_length=config.context_length or models.context_length(model_dir),
                turns_in_flight=config.turns_in_flight or server.engine.turns_in_flight,
                tokenizer=tokenizer,
                stop_token_ids=models.stop_token_ids(tokenizer),
                thinking=config.thinking,
                server={"kind": config.kind, "model": name, "url": server.base_url, "backend": server.engine.settings},
                init_state_path=init.state_path if init else None,
                local=server,
                liveness=server,
            )
        finally:
            service.holder.close()


def as_trained(config: BackendConfig, run_dir: Path) -> BackendConfig:
    """The flags with the model and the engine that a run was trained with, which the flags may leave out.

    Raises UserError if they name others.
    """
    server = (read_config(run_dir) or {}).get("server") or {}
    engines = {kind: engine for engine, kind in KINDS.items()}
    trained = {"model": server.get("model"), "engine": engines.get(server.get("kind", ""))}
    for flag, was in trained.items():
        now = getattr(config, flag)
        if None not in (was, now) and was != now:
            raise UserError(f"{run_dir} was trained with --{flag} {was}, not {now}: leave --{flag} out")
    return replace(config, model=config.model or trained["model"], engine=config.engine or trained["engine"])


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
    folder = Path(model) if (Path(model) / "config.json").exists() else None  # on this machine, as SkyRL may call it
    if folder is not None:
        models.check_vocabulary(tokenizer, folder)
    own_length = models.context_length(folder) if folder is not None else None  # SkyRL names none
    return Backend(
        service=service,
        model=model,
        kind=config.kind,
        context_length=config.context_length or known[model] or own_length or REMOTE_CONTEXT_LENGTH,
        turns_in_flight=config.turns_in_flight,
        tokenizer=tokenizer,
        stop_token_ids=models.stop_token_ids(tokenizer),
        thinking=config.thinking,
        server={"kind": config.kind, "skyrl": skyrl, "model": models.short_name(model), "url": name},
        init_state_path=init.state_path if init else None,
    )


def check_pair(tinker: str, skyrl: str) -> None:
    """Raises UserError if this SDK is known not to work with this SkyRL; a SkyRL that is not in the table may."""
    first, below = TINKER_FOR_SKYRL.get(".".join(skyrl.split(".")[:2]), ("0", "999"))
    if not _numbers(first) <= _numbers(tinker) < _numbers(below):
        raise UserError(
            f"tinker {tinker} does not work with SkyRL {skyrl}: run `uv pip install 'tinker>={first},<{below}'`"
        )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def _answering(base_url: str) -> str:
    """The URL of a server that answers. Raises UserError if none does, or it is no URL."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise UserError("--base-url must look like http://127.0.0.1:8000 (a key belongs into TINKER_API_KEY)")
    base_url = base_url.rstrip("/")
    if not answers(base_url, ANSWER_SECONDS):
        raise UserError(f"no Tinker server answers at {base_url}: start one, or leave --base-url out for a local one")
    return base_url


def _choose_model(wanted: str | None, known: list[str]) -> str:
    if wanted is not None and wanted not in known:
        raise UserError(f"the server does not know --model {wanted}: it has {', '.join(known)}")
    if wanted is None and len(known) != 1:
        raise UserError(f"the server has several models: choose one with --model: {', '.join(known)}")
    return wanted or known[0]
