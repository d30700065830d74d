"""GRPO on TextCraft-Synth, through a Tinker server.

    python train_grpo.py --difficulty medium --run-dir runs/grpo
    python train_grpo.py --depths 6 --steps 30 --init runs/sft --run-dir runs/sft_grpo

Without --base-url it starts SkyRL's server with the tiny model on this machine's CPU.

A step takes the `groups` next tasks of the plan, each played `group_size` times, and makes one optimizer step on all
of it. Sampling goes on while a batch trains, `steps_ahead` steps ahead, and never more than `max_staleness`
(tinker_client/play/scheduler.py).
In the names below G counts the groups of a step and E the episodes of a group: `rewards_GE` is a list for each group,
`advantages_N` is one list over all N episodes of the step.
How this differs from the GRPO paper (Shao et al. 2024), where no flag changes it:
- the advantage is the reward minus the group's mean, not divided by the standard deviation (Dr. GRPO, Liu et al. 2025);
- the loss is the mean over all action tokens of the step, not the mean of the episodes' means (DAPO, Yu et al. 2025).
  Episodes without an advantage are not sent, but their tokens count; with --dynamic-sampling those of all of the step;
- a step in which no episode has an advantage makes no optimizer step: Adam would move on its momentum alone;
- no KL term to a reference policy, and one optimizer step a batch, so that clipping acts on stale turns only;
- the importance ratio is between the trainer and the policy that sampled the token, by the sampler's own logprobs; an
  episode may span several policies, since each turn is sampled from the newest;
- the outcome of an episode is its only reward, the same for all its tokens; what the game answers carries no loss.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tinker
import tyro
from annotated_types import Ge, Gt, Le

from textcraft.world import Difficulty
from tinker_client.connection.backend import Backend
from tinker_client.connection.connect import BackendConfig, connect
from tinker_client.dry_run import print_play
from tinker_client.errors import UserError, exit_on_user_error
from tinker_client.play.ahead import Group, Rollouts
from tinker_client.play.chat import ChatTemplate
from tinker_client.play.environment import find_environment
from tinker_client.play.gate import Gate
from tinker_client.play.progress import say
from tinker_client.play.rollout import PlayConfig
from tinker_client.play.scheduler import Scheduler
from tinker_client.play.tasks import Plan, select_tasks
from tinker_client.run.flags import Count, NotNegative, check_flags
from tinker_client.run.run_dir import RunDir, resolve_state
from tinker_client.run.stopping import finishing_steps, resumable
from tinker_client.run.tracking import Tracker, require_tracker, track
from tinker_client.train.advantages import Advantage, advantages, group_has_signal, group_metrics
from tinker_client.train.datums import REDUCTION, PolicyLoss, PolicyLossName, check_reduction, policy_batch
from tinker_client.train.diagnostics import check_last
from tinker_client.train.metrics import episode_metrics, optimizer_metrics, policy_metrics
from tinker_client.train.updates import Adam, commit, stop_if_not_finite, sync_policy, update


@dataclass(frozen=True)
class Config:
    """Train a LoRA adapter with GRPO on train tasks."""

    run_dir: Path
    """Where config.json, metrics.jsonl, checkpoints.jsonl and episodes/ are written."""
    backend: tyro.conf.OmitArgPrefixes[BackendConfig] = field(default_factory=BackendConfig)
    init: str | None = None
    """Weights to start from: a run directory (its last checkpoint) or a tinker:// training path. Adam starts afresh."""
    env: str = "textcraft"
    """The game, or module:object of one of your own (tinker_client/play/environment.py)."""
    rank: Count = 32
    """LoRA rank, where --init does not set it."""
    difficulty: Difficulty | None = None
    """Train on tasks of this difficulty: easy is depth 2-3, medium 4-6, hard 7-9, extreme 10-12. Default: medium,
    where --depths does not say otherwise."""
    depths: tuple[int, ...] | None = None
    """Train on tasks of these depths only."""
    fits_budget: Count | None = None
    """Train only on tasks whose ideal run fits so many turns. No reward can come of others than those that fit
    --max-turns."""
    limit: Count | None = None
    """Train on so many of the tasks only, a fixed sample: a few, over and over, show whether learning works at all."""
    steps: Count = 50
    """Optimizer steps, counting those that found nothing to learn from."""
    groups: Count = 16
    """Tasks per step."""
    group_size: Count = 8
    """Episodes of each task."""
    advantage: Advantage = "dr_grpo"
    """What an episode is worth: dr_grpo is its reward minus the group's mean, grpo divides that by the group's standard
    deviation, reinforce is the reward minus the mean of the whole step."""
    loss: PolicyLossName = "ppo"
    """Policy loss. cispo needs a server that takes its clip range from the client, which SkyRL's JAX backend does."""
    clip_low: Annotated[float, Ge(0), Le(1)] = 0.8
    """Importance ratio below which ppo and cispo clip."""
    clip_high: Annotated[float, Ge(1)] = 1.2
    """Importance ratio above which ppo and cispo clip."""
    lr: Annotated[float, Gt(0)] = 1e-5
    """Learning rate, constant."""
    adam: tyro.conf.OmitArgPrefixes[Adam] = field(default_factory=Adam)
    max_staleness: NotNegative = 4
    """Optimizer steps, at most, between the policy that sampled a turn and the one it trains; 0 samples and trains in
    turn."""
    steps_ahead: Count = 1
    """Steps that sampling is ahead of training: the staleness where training is the slower side. Where sampling is, and
    a few long episodes hold up the rest, it goes on up to --max-staleness. More fill a larger server."""
    dynamic_sampling: tyro.conf.FlagCreatePairsOff[bool] = False
    """Play further tasks until a step has --groups groups with both outcomes (DAPO, Yu et al. 2025)."""
    max_groups: Count | None = None
    """Groups of a step, at most, with --dynamic-sampling. Default: four times --groups."""
    max_turns: Count = 75
    """Turns of an episode."""
    max_reply_tokens: Count = 512
    """Tokens of a reply; a longer one is cut off."""
    temperature: Annotated[float, Ge(0)] = 1.0
    """Sampling temperature. The ratio of PPO is between policies at 1.0, so other values make it off-policy."""
    save_every: Count = 10
    """Steps between checkpoints; there is always one at the end."""
    keep: Count = 5
    """Checkpoints to keep on the server, the newest ones."""
    retries: NotNegative = 2
    """How often an episode asks again for a turn that the server failed, before it counts as broken."""
    seed: int = 0
    """Sets the adapter's first weights, the order of the tasks and every sampling seed."""
    track: Tracker | None = None
    """Mirror the metrics in trackio (local) or wandb; each is an extra to install."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Resume the run that --run-dir holds, from its last checkpoint; --steps may be more than before."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the run that --run-dir holds."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the tasks, the ceiling and the most turns and tokens this could take, and stop."""

    def __post_init__(self) -> None:
        check_flags(self)
        if self.group_size < 2 and self.advantage != "reinforce":
            raise UserError("--group-size 1 compares an episode with itself and learns nothing: take 2 or more")
        if self.max_groups is not None and (not self.dynamic_sampling or self.max_groups < self.groups):
            raise UserError("--max-groups bounds --dynamic-sampling, and is at least --groups")
        require_tracker(self.track)


def main(config: Config) -> None:
    environment = find_environment(config.env)
    difficulty = config.difficulty or (None if config.depths else "medium")
    tasks = select_tasks(
        environment, "train", difficulty, config.depths, limit=config.limit, fits_budget=config.fits_budget
    )
    max_groups = (config.max_groups or 4 * config.groups) if config.dynamic_sampling else None
    if config.dry_run:
        factors = {"steps": config.steps, "groups": max_groups or config.groups, "episodes": config.group_size}
        print_play(environment, tasks, factors, config.max_turns, config.max_reply_tokens)
        # For what it refuses: nothing else here needs a tokenizer.
        ChatTemplate.before_connecting(config.backend, resolve_state(config.init) if config.init else None)
        return
    run = RunDir.create(
        config.run_dir,
        config,
        resume=config.resume,
        overwrite=config.overwrite,
        init=config.init,
        may_change=("steps", "save_every", "keep", "track", "steps_ahead"),
    )
    history = run.metrics()
    done = int(history[-1]["step"]) if history else 0
    if done >= config.steps:
        say(f"{config.run_dir} has {done} steps already: give more --steps")
        return
    plan = Plan(config.run_dir / "plan.jsonl", tasks, config.groups, config.seed)
    with (
        track(config.track, config.run_dir) as track_metrics,
        connect(config.backend, config.run_dir, rank=config.rank, init=run.start) as backend,
    ):
        run.record_server(backend.server)
        if config.loss == "cispo" and backend.kind == "skyrl-gpu":
            raise UserError("SkyRL's GPU backends refuse cispo's clip range from a client: take --loss ppo")
        trainer = backend.adapter_to_train(config.rank, config.seed, with_optimizer=run.saved is not None)
        scheduler: Scheduler[Group] = Scheduler(
            steps=config.steps,
            size=config.groups,
            max_staleness=config.max_staleness,
            steps_ahead=config.steps_ahead,
            counts=group_has_signal if config.dynamic_sampling else lambda group: True,
            limit=max_groups,
            steps_done=done,
            groups_done=int(history[-1]["plan/groups"]) if history else 0,
        )
        rollouts = Rollouts(
            plan,
            sync_policy(backend, trainer, version=sum("tokens/trained" in row for row in history)),
            PlayConfig(
                environment=environment,
                template=ChatTemplate.of(backend),
                max_turns=config.max_turns,
                max_reply_tokens=config.max_reply_tokens,
                temperature=config.temperature,
                context_length=backend.context_length,
                seed=config.seed,
                retries=config.retries,
            ),
            scheduler,
            Gate(backend.turns_in_flight, shared_weights=backend.shared_weights),
            group_size=config.group_size,
            liveness=backend.liveness,
        )
        with rollouts, finishing_steps() as asked_to_stop:
            for step in range(done + 1, config.steps + 1):
                started, sampling_before = time.monotonic(), rollouts.seconds_sampling
                groups = rollouts.next_step()
                received = time.monotonic()
                with stop_if_not_finite(run, step):
                    metrics = train_on(groups, rollouts, backend=backend, trainer=trainer, config=config)
                ended = time.monotonic()
                metrics |= {
                    "time/wait": received - started,
                    "time/train": ended - received,
                    "time/sample": rollouts.seconds_sampling - sampling_before,
                    "time/step": ended - started,
                    "plan/groups": rollouts.groups_taken,
                }
                run.log_episodes(f"step_{step:06d}", (episode.row() for group in groups for episode in group))
                run.log_metrics(step, metrics)
                track_metrics(step, metrics)
                say(summary_line(step, config.steps, metrics))
                history.append({"step": step, **metrics})
                for warning in check_last(history):
                    say(str(warning), style="yellow")
                stop = asked_to_stop() and step < config.steps
                if stop or step % config.save_every == 0 or step == config.steps:
                    commit(run, backend, trainer, step, keep=config.keep)
                if stop:
                    raise KeyboardInterrupt
    say(f"saved: evaluate it with evaluate.py --checkpoint {config.run_dir}")


def train_on(
    groups: Sequence[Group], rollouts: Rollouts, *, backend: Backend, trainer: tinker.TrainingClient, config: Config
) -> dict[str, float]:
    """One optimizer step on the episodes of `groups`, from then on sampled from; none if no group has a signal."""
    played_GE = [[episode for episode in group if episode.end != "broken"] for group in groups]
    rewards_GE = [[episode.reward for episode in group] for group in played_GE]
    metrics = episode_metrics([episode for group in groups for episode in group], rollouts.policy.version)
    metrics |= group_metrics(rewards_GE)
    episodes_N = [episode for group in played_GE for episode in group]
    advantages_N = [advantage for group in advantages(rewards_GE, config.advantage) for advantage in group]
    for episode, advantage in zip(episodes_N, advantages_N, strict=True):
        episode.advantage = advantage
    loss = PolicyLoss(config.loss, config.clip_low, config.clip_high)
    reduction = REDUCTION[backend.kind]
    batch = policy_batch([episode.conversation for episode in episodes_N], advantages_N, loss, reduction)
    if not batch.datums:
        return metrics
    with rollouts.updating():
        output, optimizer = update(backend, trainer, batch, config.adam.at(config.lr))
        if rollouts.policy.version == 0:
            check_reduction(batch, loss, output, reduction)
        metrics |= policy_metrics(batch, loss, output)
        metrics |= optimizer_metrics(optimizer)
        rollouts.policy = sync_policy(backend, trainer, version=rollouts.policy.version + 1)
    return metrics


def summary_line(step: int, steps: int, metrics: dict[str, float]) -> str:
    depths = (name for name in metrics if name.startswith("success/depth_"))
    by_depth = " ".join(f"{name.removeprefix('success/depth_')}:{metrics[name]:.2f}" for name in depths)
    trained = (
        f"kl {metrics['policy/kl_sampler_trainer']:+.4f}  entropy {metrics['policy/entropy']:.3f}"
        f"  staleness {metrics['staleness/mean']:.1f}"
        if "tokens/trained" in metrics
        else "no group with a signal, so no optimizer step"
    )
    return (
        f"step {step}/{steps}  reward {metrics['reward/mean']:.3f}  by depth {by_depth}"
        f"  mixed {metrics['group/mixed']:.0f}  turns {metrics['episode/turns']:.1f}  {trained}"
        f"  wait {metrics['time/wait']:.0f} s  train {metrics['time/train']:.0f} s"
    )


if __name__ == "__main__":
    with exit_on_user_error(), resumable():
        main(tyro.cli(Config))
