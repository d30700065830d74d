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
from typing import Annotated, Literal

import tinker
import tyro
from annotated_types import Gt

from tinker_client.connection.backend import Backend
from tinker_client.connection.connect import BackendConfig, connect
from tinker_client.dry_run import print_supervised
from tinker_client.errors import UserError, exit_on_user_error
from tinker_client.play.chat import ChatTemplate, Conversation
from tinker_client.play.progress import progress_bar, say
from tinker_client.run.flags import Count, NotNegative, check_flags
from tinker_client.run.run_dir import RunDir
from tinker_client.run.stopping import finishing_steps, resumable
from tinker_client.run.tracking import Tracker, require_tracker, track
from tinker_client.train.datums import REDUCTION, check_form, supervised_batch
from tinker_client.train.demonstrations import check_text, digest, epoch_batches, read_demonstrations, tokenize
from tinker_client.train.metrics import action_nll, optimizer_metrics
from tinker_client.train.updates import Adam, commit, forward, stop_if_not_finite, update


@dataclass(frozen=True)
class Config:
    """Fine-tune a LoRA adapter on demonstrations."""

    data: Path
    """Demonstrations, made by `python -m sft_data` or others, with a chat in `messages`: a JSONL or Parquet file, the
    folder of a saved dataset, or the name of a dataset on the hub."""
    run_dir: Path
    """Where config.json, plan.jsonl, metrics.jsonl and checkpoints.jsonl are written."""
    data_split: str = "train"
    """Which part of a saved dataset with several, or of one on the hub."""
    backend: tyro.conf.OmitArgPrefixes[BackendConfig] = field(default_factory=BackendConfig)
    rank: Count = 32
    """LoRA rank. The servers fix alpha at 32, so the adapter's scale is 32 / rank."""
    lr: Annotated[float, Gt(0)] = 1e-4
    """Learning rate of the first step."""
    adam: tyro.conf.OmitArgPrefixes[Adam] = field(default_factory=Adam)
    schedule: Literal["linear", "constant"] = "linear"
    """Learning rate over the run: down to zero in a straight line, or constant."""
    epochs: Count = 3
    """How often each demonstration is trained on."""
    batch_size: Count = 8
    """Demonstrations per optimizer step."""
    held_out: NotNegative = 0
    """Demonstrations to train on never, and to measure the loss on after each epoch."""
    seed: int = 0
    """Sets the adapter's first weights, the order of the demonstrations and which of them are held out."""
    save_every: Count = 20
    """Steps between checkpoints; there is always one at the end."""
    keep: Count = 5
    """Checkpoints to keep on the server, the newest ones."""
    track: Tracker | None = None
    """Mirror the metrics in trackio (local) or wandb; each is an extra to install."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Resume the run that --run-dir holds, from its last checkpoint."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the run that --run-dir holds."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the demonstrations by depth, the optimizer steps and the tokens this would take, and stop."""

    def __post_init__(self) -> None:
        check_flags(self)
        require_tracker(self.track)


def main(config: Config) -> None:
    demonstrations = read_demonstrations(config.data, config.data_split)
    template = ChatTemplate.before_connecting(config.backend)
    if template is not None:
        check_text(config.data, demonstrations, template)
    order = shuffled(range(len(demonstrations)), config.seed)
    if config.held_out >= len(order):
        raise UserError(f"--held-out {config.held_out} leaves none of {len(order)} demonstrations to train on")
    if config.dry_run:
        trained_on = [demonstrations[i] for i in order[config.held_out :]]
        print_supervised(demonstrations, trained_on, config.epochs, config.batch_size, template)
        return
    run = RunDir.create(
        config.run_dir,
        config,
        resume=config.resume,
        overwrite=config.overwrite,
        may_change=("data", "data_split", "save_every", "keep", "track"),
        contents={"data": digest(demonstrations)},
    )
    steps_of_epoch = -(-(len(order) - config.held_out) // config.batch_size)
    steps, done = config.epochs * steps_of_epoch, run.saved["step"] if run.saved else 0
    if done == steps:
        say(f"{config.run_dir} has all of its {steps} steps already")
        return
    with (
        track(config.track, config.run_dir) as track_metrics,
        connect(config.backend, config.run_dir, rank=config.rank, init=run.start) as backend,
        progress_bar("training", steps, unit="step", done=done) as bar,
        finishing_steps() as asked_to_stop,
    ):
        run.record_server(backend.server)
        reduction = REDUCTION[backend.kind]
        template = ChatTemplate.of(backend)
        check_text(config.data, demonstrations, template)
        conversations = tokenize([demonstrations[i].messages for i in order], template, backend.context_length)
        held_out, train = conversations[: config.held_out], conversations[config.held_out :]
        trainer = backend.adapter_to_train(config.rank, config.seed, with_optimizer=True)
        lengths = [len(conversation.tokens) for conversation in train]
        plan = [
            (epoch, indices)
            for epoch in range(1, config.epochs + 1)
            for indices in epoch_batches(lengths, config.batch_size, f"{config.seed}/{epoch}")
        ]
        run.log_plan(
            {"step": step, "epoch": epoch, "lines": [order[config.held_out + i] + 1 for i in indices]}
            for step, (epoch, indices) in enumerate(plan, start=1)
        )

        for step in range(done + 1, steps + 1):
            started = time.monotonic()
            epoch, indices = plan[step - 1]
            batch = supervised_batch([train[i] for i in indices], reduction)
            lr = config.lr * (1 - (step - 1) / steps) if config.schedule == "linear" else config.lr
            with stop_if_not_finite(run, step):
                output, optimizer = update(backend, trainer, batch, config.adam.at(lr))
            check_form(output, reduction)
            logprobs = batch.action_logprobs(output)
            metrics = {
                "epoch": epoch,
                "loss/train": action_nll(logprobs),
                "tokens/trained": sum(map(len, logprobs)),
                "optim/lr": lr,
                **optimizer_metrics(optimizer),
                "time/train": time.monotonic() - started,
            }
            if step % steps_of_epoch == 0 and held_out:
                with stop_if_not_finite(run, step):
                    metrics["loss/held_out"] = held_out_loss(backend, trainer, held_out)
            run.log_metrics(step, metrics)
            track_metrics(step, metrics)
            bar.update()
            say(summary_line(step, steps, metrics))
            stop = asked_to_stop() and step < steps
            if stop or step % config.save_every == 0 or step == steps:
                commit(run, backend, trainer, step, keep=config.keep, epoch=epoch)
            if stop:
                raise KeyboardInterrupt
    say(f"saved: train on with train_grpo.py --init {config.run_dir}, evaluate.py --checkpoint {config.run_dir}")


def shuffled[T](rows: Sequence[T], seed: int) -> list[T]:
    return random.Random(seed).sample(rows, len(rows))


def held_out_loss(backend: Backend, trainer: tinker.TrainingClient, conversations: Sequence[Conversation]) -> float:
    """The loss on demonstrations that are not trained on: per action token, in nats."""
    batch = supervised_batch(conversations, REDUCTION[backend.kind])
    return action_nll(batch.action_logprobs(forward(backend, trainer, batch)))


def summary_line(step: int, steps: int, metrics: dict[str, float]) -> str:
    line = (
        f"step {step}/{steps}  epoch {metrics['epoch']}  loss {metrics['loss/train']:.4f}  lr {metrics['optim/lr']:.2e}"
        f"  {metrics['tokens/trained']} tokens  {metrics['time/train']:.1f} s"
    )
    return line + (f"  held-out loss {metrics['loss/held_out']:.4f}" if "loss/held_out" in metrics else "")


if __name__ == "__main__":
    with exit_on_user_error(), resumable():
        main(tyro.cli(Config))
