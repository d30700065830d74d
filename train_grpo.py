"""GRPO on TextCraft-Synth, through a Tinker server.

    python train_grpo.py --difficulty medium --run-dir runs/grpo
    python train_grpo.py --depths 6 --steps 30 --init runs/sft --run-dir runs/sft_grpo

Without --base-url it starts SkyRL's server with the tiny model on this machine's CPU.

A step plays `groups` tasks `group_size` times each with the newest weights, then takes one optimizer step on all of it.
How this differs from the GRPO paper (Shao et al. 2024):
- the advantage is the reward minus the group's mean, not divided by the standard deviation (Dr. GRPO, Liu et al. 2025);
- the loss is the mean over all action tokens of the step, not the mean of the episodes' means (Dr. GRPO);
- no KL term to a reference policy, and one optimizer step a batch, so that PPO's clipping rarely acts.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import tinker
import tyro
from rich.console import Console

from textcraft.world import Difficulty
from tinker_client.backend import BackendConfig, connect
from tinker_client.chat import ChatTemplate
from tinker_client.datums import ppo_batch
from tinker_client.dry_run import print_play
from tinker_client.errors import UserError, exit_on_user_error
from tinker_client.metrics import episode_metrics, optimizer_metrics, policy_metrics
from tinker_client.rollout import EpisodeRecord, PlayConfig, play, sync_policy
from tinker_client.run_dir import RunDir, resolve_state
from tinker_client.tasks import select_tasks, task_order
from tinker_client.waiting import wait


@dataclass(frozen=True)
class Config:
    """Train a LoRA adapter with GRPO on train tasks."""

    run_dir: Path
    """Where config.json, metrics.jsonl, checkpoints.jsonl and episodes/ are written."""
    backend: tyro.conf.OmitArgPrefixes[BackendConfig] = field(default_factory=BackendConfig)
    init: str | None = None
    """Weights to start from: a run directory (its last checkpoint) or a tinker:// training path. Adam starts afresh."""
    rank: int = 32
    """LoRA rank, where --init does not set it."""
    difficulty: Difficulty | None = None
    """Train on tasks of this difficulty: easy is depth 2-3, medium 4-6, hard 7-9, extreme 10-12. Default: medium,
    where --depths does not say otherwise."""
    depths: tuple[int, ...] | None = None
    """Train on tasks of these depths only."""
    steps: int = 50
    """Optimizer steps, counting those that found nothing to learn from."""
    groups: int = 16
    """Tasks per step."""
    group_size: int = 8
    """Episodes of each task."""
    lr: float = 1e-5
    """Learning rate, constant."""
    max_turns: int = 75
    """Turns of an episode."""
    max_reply_tokens: int = 512
    """Tokens of a reply; a longer one is cut off."""
    temperature: float = 1.0
    """Sampling temperature. The ratio of PPO is between policies at 1.0, so other values make it off-policy."""
    save_every: int = 10
    """Steps between checkpoints; there is always one at the end."""
    seed: int = 0
    """Sets the adapter's first weights, the order of the tasks and every sampling seed."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the run that --run-dir holds."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the tasks, the ceiling and the most turns and tokens this could take, and stop."""

    def __post_init__(self) -> None:
        counts = (self.rank, self.steps, self.groups, self.max_turns, self.max_reply_tokens, self.save_every)
        if min(counts) < 1 or self.lr <= 0 or self.temperature < 0:
            raise UserError("counts start at 1, --lr is above 0 and --temperature is not negative")
        if self.group_size < 2:
            raise UserError("--group-size 1 compares an episode with itself and learns nothing: take 2 or more")


def main(config: Config) -> None:
    difficulty = config.difficulty or (None if config.depths else "medium")
    tasks = select_tasks("train", difficulty, config.depths)
    if config.dry_run:
        factors = {"steps": config.steps, "groups": config.groups, "episodes": config.group_size}
        print_play(tasks, factors, config.max_turns, config.max_reply_tokens)
        return
    order = task_order(tasks, config.seed)
    init = resolve_state(config.init) if config.init else None
    run = RunDir.create(config.run_dir, config, overwrite=config.overwrite, init=init)
    console = Console(highlight=False, soft_wrap=True)
    with connect(config.backend, config.run_dir, rank=config.rank, init=init) as backend:
        run.record_server(backend.server)
        template = ChatTemplate(backend.tokenizer, backend.stop_token_ids)
        playing = PlayConfig(
            max_turns=config.max_turns,
            max_reply_tokens=config.max_reply_tokens,
            temperature=config.temperature,
            context_length=backend.context_length,
            seed=config.seed,
        )
        if backend.init_state_path:
            trainer = backend.training_client_from(backend.init_state_path, with_optimizer=False)
        else:
            trainer = backend.new_training_client(config.rank, config.seed)
        policy = sync_policy(backend, trainer, version=0)

        for step in range(1, config.steps + 1):
            started = time.monotonic()
            step_tasks = list(islice(order, config.groups))
            episodes = play(
                step_tasks,
                config.group_size,
                policy,
                template,
                playing,
                step=step,
                label=f"step {step}/{config.steps}",
                check_alive=backend.check_alive,
            )
            sampled = time.monotonic()
            run.log_episodes(f"step_{step:06d}", [episode.row() for episode in episodes])

            played = [episode for episode in episodes if episode.end != "broken"]
            advantages = group_advantages(played)
            batch = ppo_batch([episode.conversation for episode in played], advantages, backend.loss_reduction)
            metrics = episode_metrics(episodes, policy.version)
            metrics["group/mixed"] = len({e.group for e, a in zip(played, advantages, strict=True) if a != 0.0})
            if batch.datums:
                # Submitted back to back: the server goes from one to the other without waiting for us.
                forward_backward = trainer.forward_backward(batch.datums, batch.loss_fn, batch.loss_fn_config)
                optim_step = trainer.optim_step(tinker.AdamParams(learning_rate=config.lr))
                metrics |= policy_metrics(batch, wait(forward_backward, backend.check_alive))
                metrics |= optimizer_metrics(wait(optim_step, backend.check_alive))
                policy = sync_policy(backend, trainer, version=policy.version + 1)
            metrics |= {"time/sample": sampled - started, "time/train": time.monotonic() - sampled}
            run.log_metrics(step, metrics)
            console.print(summary_line(step, config.steps, metrics))
            if step % config.save_every == 0 or step == config.steps:
                run.log_checkpoint(step, backend.save_state(trainer, f"step_{step:06d}"))
        backend.release(trainer)
    console.print(f"saved: evaluate it with evaluate.py --checkpoint {config.run_dir}")


def group_advantages(episodes: Sequence[EpisodeRecord]) -> list[float]:
    """Dr. GRPO: the reward of each episode minus the mean reward of its group, which are the episodes of its task."""
    rewards = defaultdict(list)
    for episode in episodes:
        rewards[episode.group].append(episode.reward)
    return [episode.reward - float(np.mean(rewards[episode.group])) for episode in episodes]


def summary_line(step: int, steps: int, metrics: dict[str, float]) -> str:
    if "reward/mean" not in metrics:
        return f"step {step}/{steps}  every episode broke"
    depths = (name for name in metrics if name.startswith("success/depth_"))
    by_depth = " ".join(f"{name.removeprefix('success/depth_')}:{metrics[name]:.2f}" for name in depths)
    trained = (
        f"kl {metrics['policy/kl_sampler_trainer']:+.4f}  entropy {metrics['policy/entropy']:.3f}"
        if "tokens/trained" in metrics
        else "no mixed group, so no optimizer step"
    )
    return (
        f"step {step}/{steps}  reward {metrics['reward/mean']:.3f}  by depth {by_depth}"
        f"  mixed {metrics['group/mixed']}  turns {metrics['episode/turns']:.1f}  {trained}"
        f"  sample {metrics['time/sample']:.0f} s  train {metrics['time/train']:.0f} s"
    )


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Config))
