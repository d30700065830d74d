"""Groups, the episodes of one task, and what each of their episodes is worth: rewards in, advantages out."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tinker_client.play.records import EpisodeRecord

Advantage = Literal["dr_grpo", "grpo", "reinforce"]
Rewards = Sequence[Sequence[float]]  # of the episodes of each group


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether a group's rewards differ. Those of a group that is solved or failed as a whole say nothing about it."""
    return len(set(rewards)) > 1


def group_has_signal(group: Sequence[EpisodeRecord]) -> bool:
    """`has_signal` of played episodes; those that broke with the server do not count."""
    return has_signal([episode.reward for episode in group if episode.end != "broken"])


def advantages(groups: Rewards, kind: Advantage) -> list[list[float]]:
    """The advantage of each episode of a step; the same shape as `groups`.

    dr_grpo: the reward minus the group's mean (Dr. GRPO, Liu et al. 2025). grpo: the same divided by the group's
    standard deviation (Shao et al. 2024; of the population, without an epsilon). Both are 0 in groups without signal.
    reinforce: the reward minus the mean reward of the whole step, so that a group that is solved as a whole counts too.
    """
    everything = [reward for rewards in groups for reward in rewards]
    if kind == "reinforce":
        mean = np.mean(everything) if has_signal(everything) else 0.0
        return [[float(reward - mean) if has_signal(everything) else 0.0 for reward in rewards] for rewards in groups]
    return [_within(np.array(rewards), kind) if has_signal(rewards) else [0.0] * len(rewards) for rewards in groups]


def _within(rewards: np.ndarray, kind: Advantage) -> list[float]:
    centered = rewards - rewards.mean()
    return list(map(float, centered / rewards.std() if kind == "grpo" else centered))


def group_metrics(groups: Rewards) -> dict[str, float]:
    """How many groups are solved by all of their episodes, by none (reward 0), or else mixed, and how far they spread.

    `group/reward_std` is the mean of the groups' standard deviations: what there is to learn from.
    """
    played = [rewards for rewards in groups if rewards]
    mixed = sum(has_signal(rewards) for rewards in played)
    failed = sum(not any(rewards) for rewards in played)
    return {
        "group/mixed": mixed,
        "group/all_failed": failed,
        "group/all_solved": len(played) - mixed - failed,
        "group/reward_std": float(np.mean([np.std(rewards) for rewards in played])) if played else 0.0,
    }
