"""Numbers about a training step, named as in metrics.jsonl. Logprobs are the client's own, over action tokens only."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import tinker

from tinker_client.play.records import EpisodeRecord, TurnRecord, repeated
from tinker_client.train.datums import Batch, FloatArray, PolicyLoss

GRADIENT_NORM = "skyrl.ai/grad_norm"  # what SkyRL's servers call it
ENDS = ("success", "wrong_finish", "out_of_turns", "out_of_context")


def action_nll(logprobs: Sequence[FloatArray]) -> float:
    """Negative log-likelihood per action token, in nats: the same on all backends, unlike the losses they report."""
    return -float(np.concatenate(logprobs).mean())


def episode_metrics(episodes: Sequence[EpisodeRecord], policy_version: int) -> dict[str, float]:
    """What the episodes of a step were like.

    Broken ones are counted in `episode/broken` and in `episode/without_logprobs`, which is how many replies were lost
    because their logprobs were, and nowhere else.

    policy_version: that of the policy which the step trains.
    """
    played = [episode for episode in episodes if episode.end != "broken"]
    metrics: dict[str, float] = {
        "episode/broken": len(episodes) - len(played),
        "episode/without_logprobs": sum(episode.without_logprobs for episode in episodes),
    }
    if not played:
        return metrics
    turns = [turn for episode in played for turn in episode.turns]
    sampled = np.concatenate([np.array(e.conversation.logprobs)[e.conversation.is_action] for e in played])
    staleness = [
        policy_version - min((turn.policy_version for turn in e.turns), default=policy_version) for e in played
    ]
    failed_crafts = [[turn for turn in e.turns if turn.kind == "failed_craft"] for e in played]
    per_episode = 1 / len(played)
    metrics |= {
        "reward/mean": sum(e.reward for e in played) * per_episode,
        "episode/turns": len(turns) * per_episode,
        "episode/failed_crafts": sum(map(len, failed_crafts)) * per_episode,
        "episode/repeated_failed_crafts": sum(map(_repeats, failed_crafts)) * per_episode,
        "episode/repeated_share": sum(_repeats(e.turns) for e in played) / max(len(turns), 1),
        "episode/invalid_turns": sum(turn.kind == "invalid" for turn in turns) * per_episode,
        "episode/cut_off_replies": sum(turn.cut_off for turn in turns) * per_episode,
        **{f"end/{end}": sum(e.end == end for e in played) * per_episode for end in ENDS},
        "tokens/action": len(sampled),
        # A one-sample estimate: the mean of -log p over tokens drawn from p, which is the entropy at temperature 1.
        "policy/entropy": -float(sampled.mean()) if len(sampled) else 0.0,
        "staleness/mean": sum(staleness) * per_episode,
        "staleness/max": max(staleness),
    }
    by_depth = sorted(played, key=lambda e: e.task.depth)
    for depth, same in groupby(by_depth, key=lambda e: e.task.depth):
        metrics[f"success/depth_{depth}"] = float(np.mean([e.end == "success" for e in same]))
    return metrics


def policy_metrics(batch: Batch, loss: PolicyLoss, output: tinker.ForwardBackwardOutput) -> dict[str, float]:
    """How far the policy in training is from the one that sampled, over the action tokens that were sent.

    kl_sampler_trainer is KL(sampler || trainer) estimated on the sampled tokens: the mean of log p_sampler -
    log p_trainer (k1, unbiased), and the k3 form, never negative and less noisy (Schulman 2020, "Approximating KL
    divergence").
    clip_fraction counts the tokens whose gradient the loss's clipping changes.
    """
    log_ratio = np.concatenate(batch.action_logprobs(output)) - np.concatenate(batch.sampled_logprobs())
    ratio = np.exp(log_ratio)
    clipped = loss.is_clipped(ratio, np.concatenate(batch.sent_advantages()))
    return {
        "policy/kl_sampler_trainer": -float(log_ratio.mean()),
        "policy/kl_sampler_trainer_k3": float((ratio - 1 - log_ratio).mean()),
        "policy/clip_fraction": float(clipped.mean()),
        "policy/ratio_min": float(ratio.min()),
        "policy/ratio_max": float(ratio.max()),
        "tokens/trained": len(log_ratio),
    }


def optimizer_metrics(output: tinker.OptimStepResponse) -> dict[str, float]:
    """What the server says about its optimizer step; SkyRL names the gradient norm, others may not."""
    grad_norm = (output.metrics or {}).get(GRADIENT_NORM)
    return {} if grad_norm is None else {"optim/grad_norm": grad_norm}


def _repeats(turns: Sequence[TurnRecord]) -> int:
    return sum(repeated([turn.reply for turn in turns]))
