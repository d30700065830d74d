"""`python -m server CONFIG` starts SkyRL's Tinker server on GPUs; with `--check` it only looks at the configuration."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import tyro

from server import check
from tinker_client.connection.alive import answers
from tinker_client.connection.engines import find_uv
from tinker_client.connection.local_state import forget_requests
from tinker_client.errors import UserError, exit_on_user_error
from tinker_client.run.locks import claimed

REPOSITORY = Path(__file__).resolve().parent.parent
CONFIGS = REPOSITORY / "server" / "configs"
# SkyRL reads these from its parent's command line and starts its engine, and Ray its workers, with the same ones.
UV_RUN = ("run", "--frozen", "--extra", "tinker", "--extra", "megatron")


@dataclass(frozen=True)
class Config:
    """Start SkyRL's Tinker server with Megatron and vLLM. Stop it with Ctrl-C."""

    name: tyro.conf.Positional[str]
    """A configuration of server/configs by name, such as qwen3.5-4b_h200, or the path of your own."""
    run_dir: Path = Path("runs/server")
    """Database, checkpoints and logs go here, and are taken up again. Several nodes must share it."""
    host: str = "127.0.0.1"
    """Address to listen on. The server asks nobody for a key: open it to networks that you trust only."""
    port: int = 8000
    """Port to listen on."""
    skyrl: Path = REPOSITORY.parent / "skyrl-v0.4.0"
    """Where server/install_skyrl.sh put SkyRL."""
    check: tyro.conf.FlagCreatePairsOff[bool] = False
    """Check the configuration against SkyRL's configuration classes, which needs no GPU, and stop."""


def main(config: Config) -> None:
    path, content = read(config.name)
    if found := problems(path, content, config.skyrl):
        raise UserError(f"{path}: {'; '.join(found)}")
    if config.check:
        print(f"{path.name}: every key is one of SkyRL's and fits (vLLM's own and the memory only show on the GPUs)")
        return
    start(config, content)


def read(name: str) -> tuple[Path, dict[str, Any]]:
    """The file that `name` means, and its content. Raises UserError if it is not there or no JSON object."""
    path = CONFIGS / f"{name}.json"
    if not path.exists():
        path = Path(name)
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in CONFIGS.glob("*.json")))
        raise UserError(f"there is no configuration {name}: give a path, or one of {known}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): repair it") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object: start from a file of server/configs")
    return path, content


def problems(path: Path, content: dict[str, Any], skyrl: Path) -> list[str]:
    """What is wrong with a configuration, checked here if SkyRL can be imported, else in its own environment."""
    try:
        return check.problems(content)
    except ImportError:
        command = [str(find_uv()), *UV_RUN, "python", check.__file__, str(path.resolve())]
        done = subprocess.run(
            command, cwd=installed(skyrl), env=environment(), capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, check.FOUND):
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise UserError(f"SkyRL in {skyrl} does not run ({last}): repeat server/install_skyrl.sh") from None
        return done.stdout.splitlines()


def installed(skyrl: Path) -> Path:
    """The folder of SkyRL. Raises UserError if it is not there."""
    if not (skyrl / "skyrl" / "tinker").is_dir():
        raise UserError(f"SkyRL is not in {skyrl}: run server/install_skyrl.sh, or give --skyrl")
    return skyrl


def start(config: Config, content: dict[str, Any]) -> NoReturn:
    """Become the server's process. SkyRL insists on having `uv run` as its parent.

    Raises UserError if a server answers there already, or works in the run directory.
    """
    skyrl, uv, run_dir = installed(config.skyrl), find_uv(), config.run_dir.resolve()
    url = f"http://{config.host}:{config.port}"
    if answers(url, timeout=1.0):
        raise UserError(f"a server answers at {url} already: stop it, or give another --port and --run-dir")
    run_dir.mkdir(parents=True, exist_ok=True)
    with claimed(run_dir, wait_s=0.0) as claim:
        os.set_inheritable(claim, True)  # the server keeps it
        forget_requests(run_dir / "tinker.db")
        flags = f"--base-url {url} --context-length {content['context_length']}"
        print(f"starting; give the scripts {flags}", flush=True)
        os.chdir(skyrl)
        os.execve(uv, command(uv, config, run_dir, content), environment())  # noqa: S606


def command(uv: Path, config: Config, run_dir: Path, content: dict[str, Any]) -> list[str]:
    """The command line of the server, to be run in SkyRL's folder."""
    backend_config = content["backend_config"] | {
        # Not the defaults in /tmp: two servers would mix, and several nodes not share them.
        "trainer.policy.model.lora.lora_sync_path": str(run_dir / "lora_sync"),
        "trainer.log_path": str(run_dir / "logs"),
    }
    return [
        str(uv), *UV_RUN, "-m", "skyrl.tinker.api",
        "--host", config.host,
        "--port", str(config.port),
        "--base-model", content["model"],
        "--backend", "megatron",
        "--backend-config", json.dumps(backend_config),
        "--database-url", f"sqlite:///{run_dir / 'tinker.db'}",
        "--checkpoints-base", str(run_dir / "checkpoints"),
        "--session-timeout-sec", "-1",  # a busy script that misses heartbeats must not lose its adapter
    ]  # fmt: skip


def environment() -> dict[str, str]:
    """This process's environment, with uv on PATH for SkyRL, which calls it by name, and for Ray's workers."""
    own = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "TINKER_API_KEY")}
    return own | {
        "PATH": f"{find_uv().parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "RAY_RUNTIME_ENV_HOOK": "ray._private.runtime_env.uv_runtime_env_hook.hook",
    }


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Config, args=sys.argv[1:], prog="python -m server"))
