"""Supervised fine-tuning of a LoRA adapter on demonstrations, through a Tinker server.

    python -m sft_data --round 2 --count 150 --depths 4 5 6 --split train --seed 0 --out demonstrations.jsonl
    python train_sft.py --data demonstrations.jsonl --run-dir runs/sft

Without --base-url it starts SkyRL's server with the tiny model on this machine's CPU.

The loss is the negative log-likelihood of the demonstrations' replies (each with its stop token), the mean over all
reply tokens of a batch. What is read, the task and the environment's answers, is context and carries no loss.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tinker
import tyro
from rich.console import Console
from rich.progress import Progress

from tinker_client.backend import Backend, BackendConfig, connect
from tinker_client.chat import Conversation
from tinker_client.datums import supervised_batch
from tinker_client.demonstrations import epoch_batches, read_demonstrations, tokenize
from tinker_client.dry_run import print_supervised
from tinker_client.errors import UserError, exit_on_user_error
from tinker_client.metrics import action_nll, optimizer_metrics
from tinker_client.run_dir import RunDir
from tinker_client.waiting import wait


@dataclass(frozen=True)
class Config:
    """Fine-tune a LoRA adapter on demonstrations."""

    data: Path
    """Demonstrations, a JSONL file made by `python -m sft_data`."""
    run_dir: Path
    """Where config.json, metrics.jsonl and checkpoints.jsonl are written."""
    backend: tyro.conf.OmitArgPrefixes[BackendConfig] = field(default_factory=BackendConfig)
    rank: int = 32
    """LoRA rank. The servers fix alpha at 32, so the adapter's scale is 32 / rank."""
    lr: float = 1e-4
    """Learning rate of the first step."""
    schedule: Literal["linear", "constant"] = "linear"
    """Learning rate over the run: down to zero in a straight line, or constant."""
    epochs: int = 3
    """How often each demonstration is trained on."""
    batch_size: int = 8
    """Demonstrations per optimizer step."""
    held_out: int = 0
    """Demonstrations to train on never, and to measure the loss on after each epoch."""
    seed: int = 0
    """Sets the adapter's first weights, the order of the demonstrations and which of them are held out."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the run that --run-dir holds."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the demonstrations by depth, the optimizer steps and the tokens this would take, and stop."""

    def __post_init__(self) -> None:
        if min(self.rank, self.epochs, self.batch_size) < 1 or self.lr <= 0 or self.held_out < 0:
            raise UserError("--rank, --epochs and --batch-size start at 1, --held-out at 0, and --lr is above 0")


def main(config: Config) -> None:
    chats = shuffled(read_demonstrations(config.data), config.seed)
    if config.held_out >= len(chats):
        raise UserError(f"--held-out {config.held_out} leaves none of {len(chats)} demonstrations to train on")
    if config.dry_run:
        print_supervised(config.data, chats[config.held_out :], config.epochs, config.batch_size, config.backend)
        return
    run = RunDir.create(config.run_dir, config, overwrite=config.overwrite)
    console = Console(highlight=False, soft_wrap=True)
    with (
        connect(config.backend, config.run_dir, rank=config.rank) as backend,
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        run.record_server(backend.server)
        template = backend.template
        demonstrations = tokenize(chats, template, backend.context_length)
        held_out, train = demonstrations[: config.held_out], demonstrations[config.held_out :]
        trainer = backend.new_training_client(config.rank, config.seed)

        steps = config.epochs * -(-len(train) // config.batch_size)
        bar = progress.add_task("training", total=steps)
        step = 0
        for epoch in range(1, config.epochs + 1):
            batches = epoch_batches([len(c.tokens) for c in train], config.batch_size, f"{config.seed}/{epoch}")
            for indices in batches:
                started = time.monotonic()
                batch = supervised_batch([train[i] for i in indices], backend.loss_reduction)
                lr = config.lr * (1 - step / steps) if config.schedule == "linear" else config.lr
                # Submitted back to back: the server goes from one to the other without waiting for us.
                forward_backward = trainer.forward_backward(batch.datums, batch.loss_fn, batch.loss_fn_config)
                optim_step = trainer.optim_step(tinker.AdamParams(learning_rate=lr))
                logprobs = batch.action_logprobs(wait(forward_backward, backend.check_alive))
                metrics = {
                    "epoch": epoch,
                    "loss/train": action_nll(logprobs),
                    "tokens/trained": sum(map(len, logprobs)),
                    "optim/lr": lr,
                    **optimizer_metrics(wait(optim_step, backend.check_alive)),
                    "time/train": time.monotonic() - started,
                }
                if indices is batches[-1] and held_out:
                    metrics["loss/held_out"] = held_out_loss(backend, trainer, held_out, config.batch_size)
                step += 1
                run.log_metrics(step, metrics)
                progress.update(bar, advance=1)
                console.print(summary_line(step, steps, metrics))
            run.log_checkpoint(step, backend.save_state(trainer, f"step_{step:06d}"), epoch=epoch)
    print(
        f"saved: go on from it with train_grpo.py --init {config.run_dir} or evaluate.py --checkpoint {config.run_dir}"
    )


def shuffled[T](rows: Sequence[T], seed: int) -> list[T]:
    return random.Random(seed).sample(rows, len(rows))


def held_out_loss(
    backend: Backend, trainer: tinker.TrainingClient, conversations: Sequence[Conversation], batch_size: int
) -> float:
    """The loss on demonstrations that are not trained on: per action token, in nats."""
    by_length = sorted(conversations, key=lambda conversation: len(conversation.tokens))
    batches = [
        supervised_batch(by_length[i : i + batch_size], backend.loss_reduction)
        for i in range(0, len(by_length), batch_size)
    ]
    futures = [trainer.forward(batch.datums, batch.loss_fn, batch.loss_fn_config) for batch in batches]
    return action_nll(
        [
            logprobs
            for batch, future in zip(batches, futures, strict=True)
            for logprobs in batch.action_logprobs(wait(future, backend.check_alive))
        ]
    )


def summary_line(step: int, steps: int, metrics: dict[str, float]) -> str:
    line = (
        f"step {step}/{steps}  epoch {metrics['epoch']}  loss {metrics['loss/train']:.4f}  lr {metrics['optim/lr']:.2e}"
        f"  {metrics['tokens/trained']} tokens  {metrics['time/train']:.1f} s"
    )
    return line + (f"  held-out loss {metrics['loss/held_out']:.4f}" if "loss/held_out" in metrics else "")


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Config))
