"""Numbers about a training step, named as in metrics.jsonl. Logprobs are the client's own, over action tokens only."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import tinker

from tinker_client.datums import CLIP_HIGH, CLIP_LOW, Batch, FloatArray
from tinker_client.rollout import EpisodeRecord, TurnRecord


def action_nll(logprobs: Sequence[FloatArray]) -> float:
    """Negative log-likelihood per action token, in nats: the same on all backends, unlike the losses they report."""
    return -float(np.concatenate(logprobs).mean())


def episode_metrics(episodes: Sequence[EpisodeRecord], policy_version: int) -> dict[str, float]:
    """What the episodes of a step were like. Broken ones are counted in `episode/broken` and nowhere else.

    policy_version: that of the policy which the step trains.
    """
    played = [episode for episode in episodes if episode.end != "broken"]
    metrics: dict[str, float] = {"episode/broken": len(episodes) - len(played)}
    if not played:
        return metrics
    turns = [turn for episode in played for turn in episode.turns]
    sampled = np.concatenate([np.array(e.conversation.logprobs)[e.conversation.is_action] for e in played])
    per_episode = 1 / len(played)
    metrics |= {
        "reward/mean": sum(e.reward for e in played) * per_episode,
        "episode/turns": len(turns) * per_episode,
        "episode/failed_crafts": sum(turn.kind == "failed_craft" for turn in turns) * per_episode,
        "episode/invalid_turns": sum(turn.kind == "invalid" for turn in turns) * per_episode,
        "episode/cut_off_replies": sum(turn.cut_off for turn in turns) * per_episode,
        "episode/out_of_context": sum(e.end == "out_of_context" for e in played) * per_episode,
        "tokens/action": len(sampled),
        # A one-sample estimate: the mean of -log p over tokens drawn from p, which is the entropy at temperature 1.
        "policy/entropy": -float(sampled.mean()) if len(sampled) else 0.0,
        "staleness/mean": sum(policy_version - _oldest_version(e.turns, policy_version) for e in played) * per_episode,
    }
    by_depth = sorted(played, key=lambda e: e.task.depth)
    for depth, same in groupby(by_depth, key=lambda e: e.task.depth):
        metrics[f"success/depth_{depth}"] = float(np.mean([e.end == "success" for e in same]))
    return metrics


def policy_metrics(batch: Batch, output: tinker.ForwardBackwardOutput) -> dict[str, float]:
    """How far the policy in training is from the one that sampled, over the tokens that were sent.

    kl_sampler_trainer is KL(sampler || trainer) estimated on the sampled tokens: the mean of log p_sampler -
    log p_trainer (k1, unbiased), and the k3 form, never negative and less noisy (Schulman 2020, "Approximating KL
    divergence").
    clip_fraction counts the tokens whose gradient PPO's clipping sets to zero.
    """
    trainer = batch.action_logprobs(output)
    log_ratio = np.concatenate(trainer) - np.concatenate(batch.sampled_logprobs())
    advantage = np.repeat(batch.advantages, [len(logprobs) for logprobs in trainer])
    ratio = np.exp(log_ratio)
    clipped = np.where(advantage > 0, ratio > CLIP_HIGH, ratio < CLIP_LOW)
    return {
        "policy/kl_sampler_trainer": -float(log_ratio.mean()),
        "policy/kl_sampler_trainer_k3": float((ratio - 1 - log_ratio).mean()),
        "policy/clip_fraction": float(clipped.mean()),
        "tokens/trained": len(log_ratio),
    }


def optimizer_metrics(output: tinker.OptimStepResponse) -> dict[str, float]:
    """What the server says about its optimizer step; SkyRL names the gradient norm, others may not."""
    grad_norm = (output.metrics or {}).get("skyrl.ai/grad_norm")
    return {} if grad_norm is None else {"optim/grad_norm": grad_norm}


def _oldest_version(turns: Sequence[TurnRecord], default: int) -> int:
    return min((turn.policy_version for turn in turns), default=default)
