"""`python -m tinker_client`: a server that outlives the scripts, a look at a run, and a run's adapter for elsewhere."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from tinker_client.connection import models
from tinker_client.connection.connect import BackendConfig
from tinker_client.connection.engines import local_engine
from tinker_client.connection.export import export_adapter
from tinker_client.connection.local_server import LocalServer
from tinker_client.errors import UserError, exit_on_user_error
from tinker_client.run.jsonl import read_rows
from tinker_client.train.diagnostics import check

# Scripts send a heartbeat every 10 s. One that was killed leaves the only adapter behind for so long.
DEAD_SCRIPT_S = 120


def serve(
    *,
    run_dir: Path,
    model: str = "tiny",
    engine: Literal["torch", "jax"] = "torch",
    rank: int = 32,
    port: int = 0,
    stop_with_parent: bool = False,
) -> None:
    """Serve a model on this machine's CPU until Ctrl-C. Prints its URL once it is ready, and the flags that go with it.

    Saves a start of the server for each script. The scripts then need these flags, whose values they know by themselves
    of a server that they start.

    Args:
        run_dir: The server's database, checkpoints and log go to `server/` in it; earlier ones are taken up again.
        model: tiny, smollm2 or a directory.
        engine: What computes: torch is ours, jax SkyRL's JAX backend.
        rank: The highest LoRA rank to be asked for; the engine torch takes any.
        port: Port of 127.0.0.1; 0 takes any that is free.
        stop_with_parent: Stop too when the process that started this one has ended.
    """
    if rank < 1 or not 0 <= port < 65536:
        raise UserError("--rank starts at 1 and --port lies between 0 and 65535")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: leave through the context manager
    parent = os.getppid()
    try:
        model_dir = models.local_model_dir(model)
        computing = local_engine(engine, model_dir, rank)
        with LocalServer(
            run_dir / "server", model_dir, computing, port=port, session_timeout_s=DEAD_SCRIPT_S
        ) as server:
            server.wait_until_ready()
            print(server.base_url, flush=True)
            limit = "" if computing.turns_in_flight is None else f" --turns-in-flight {computing.turns_in_flight}"
            print(f"scripts take --base-url {server.base_url} --engine {engine}{limit}", file=sys.stderr)
            while not (stop_with_parent and os.getppid() != parent):
                server.check()
                time.sleep(0.5)
    except KeyboardInterrupt:
        pass


def health(run_dir: tyro.conf.Positional[Path]) -> None:
    """What a GRPO run's metrics warn of, and what to try. The run may be finished or going on.

    Args:
        run_dir: A run directory of train_grpo.py.
    """
    rows = read_rows(run_dir / "metrics.jsonl")
    if not any("group/mixed" in row for row in rows):
        raise UserError(f"{run_dir} holds no metrics of train_grpo.py: give its run directory")
    warnings = check(rows)
    console = Console(highlight=False, soft_wrap=True)
    for warning in warnings:
        console.print(str(warning), style="yellow", markup=False)
    if not warnings:
        console.print(f"nothing to warn of in {len(rows)} steps", markup=False)


def export(run_dir: tyro.conf.Positional[str], out: Path, backend: tyro.conf.OmitArgPrefixes[BackendConfig]) -> None:
    """Write a run's last checkpoint as a PEFT adapter, which transformers and vLLM load.

    A run on a server of yours needs the --base-url and --model that it was trained with.

    Args:
        run_dir: A run directory of train_sft.py or train_grpo.py, or a tinker:// training path.
        out: The folder to write.
        backend: The server that has the run's states.
    """
    content = export_adapter(run_dir, out, backend)
    base = content["base_model_name_or_path"]
    print(
        f"{out}: rank {content['r']} on {base}. For example: "
        f"vllm serve {base} --enable-lora --max-lora-rank {content['r']} --lora-modules adapter={out}"
    )


def main() -> None:
    with exit_on_user_error():
        tyro.extras.subcommand_cli_from_dict(
            {"serve": serve, "health": health, "export": export},
            prog="python -m tinker_client",
            description="A server for the scripts, what a run's metrics warn of, and a run's adapter for elsewhere.",
            config=(tyro.conf.FlagCreatePairsOff,),
        )


if __name__ == "__main__":
    main()
