"""Conversations to Tinker datums. The one place that knows how a backend reduces a loss.

What we want, on every backend, is the mean over all action tokens of an optimizer step:

    L = 1/T  sum_i sum_t  m_it * l_it        m: action mask, T: action tokens of the whole step

What a backend computes from the N datums it is sent before one `optim_step`, with client weights w (0 or 1 here):

    token_sum       sum_i sum_t w_it * l_it                          Megatron, FSDP and hosted Tinker
    sequence_mean   1/N sum_i [ sum_t w_it * l_it / sum_t w_it ]     SkyRL's JAX backend (skyrl/backends/jax.py)

The losses are linear in the advantage, PPO's positively homogeneous (a positive factor never changes which branch of
its minimum is taken). So the advantages carry the correction: 1/T for a token sum, N * n_i / T for a mean of means,
where n_i is the number of action tokens of datum i.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import tinker

from tinker_client.backend import LossReduction
from tinker_client.chat import Conversation

FloatArray = npt.NDArray[np.float32]

CLIP_LOW, CLIP_HIGH = 0.8, 1.2


@dataclass(frozen=True)
class Batch:
    """The arguments of one `forward_backward`, and what is needed to read its answer.

    action_masks: per datum, bool of shape (len(target_tokens),).
    advantages: per datum, before any scaling; 1.0 for supervised batches.
    """

    datums: list[tinker.Datum]
    loss_fn: Literal["cross_entropy", "ppo", "cispo"]
    loss_fn_config: dict[str, float] | None
    action_masks: list[npt.NDArray[np.bool_]]
    advantages: list[float]

    def action_logprobs(self, output: tinker.ForwardBackwardOutput) -> list[FloatArray]:
        """The trainer's logprobs of each datum's action tokens, from the answer to a forward (and backward) pass."""
        return [
            result["logprobs"].to_numpy()[mask]
            for result, mask in zip(output.loss_fn_outputs, self.action_masks, strict=True)
        ]

    def sampled_logprobs(self) -> list[FloatArray]:
        """The sampler's logprobs of each datum's action tokens."""
        return [
            datum.loss_fn_inputs["logprobs"].to_numpy()[mask]
            for datum, mask in zip(self.datums, self.action_masks, strict=True)
        ]


def supervised_batch(conversations: Sequence[Conversation], reduction: LossReduction) -> Batch:
    """One optimizer step of supervised fine-tuning: the negative log-likelihood, mean over all action tokens.

    JAX's `cross_entropy` divides each datum's loss by the sum of its own weights, so no weights make it a token mean: a
    token of a short demonstration would count for more than one of a long demonstration. There we send `cispo` with
    both clip thresholds at 1: its gradient is advantage * grad logprob whatever the ratio is, and advantages scale it.
    """
    total = sum(conversation.action_tokens for conversation in conversations)
    shifted = [_shift(conversation) for conversation in conversations]
    if reduction == "token_sum":
        datums = [_datum(s, weights=s.mask.astype(np.float32) / np.float32(total)) for s in shifted]
        return Batch(datums, "cross_entropy", None, [s.mask for s in shifted], [1.0] * len(datums))
    datums = [
        _datum(
            s,
            weights=s.mask.astype(np.float32),
            logprobs=np.zeros(len(s.mask), np.float32),
            advantages=s.mask * _scale(int(s.mask.sum()), len(shifted), total, reduction),
        )
        for s in shifted
    ]
    thresholds = {"clip_low_threshold": 1.0, "clip_high_threshold": 1.0}
    return Batch(datums, "cispo", thresholds, [s.mask for s in shifted], [1.0] * len(datums))


def ppo_batch(conversations: Sequence[Conversation], advantages: Sequence[float], reduction: LossReduction) -> Batch:
    """One optimizer step of PPO's clipped objective, mean over all action tokens of `conversations`.

    conversations: all episodes of the step. advantages: one an episode, the same for each of its action tokens.
    Episodes with advantage 0 contribute nothing to the sum, so they are not sent, but their tokens count in the mean.
    """
    total = sum(conversation.action_tokens for conversation in conversations)
    sent = [
        (_shift(conversation), advantage)
        for conversation, advantage in zip(conversations, advantages, strict=True)
        if advantage != 0.0 and conversation.action_tokens
    ]
    datums = [
        _datum(
            s,
            weights=s.mask.astype(np.float32),
            logprobs=s.logprobs,
            advantages=s.mask * np.float32(advantage) * _scale(int(s.mask.sum()), len(sent), total, reduction),
        )
        for s, advantage in sent
    ]
    thresholds = {"clip_low_threshold": CLIP_LOW, "clip_high_threshold": CLIP_HIGH}
    return Batch(datums, "ppo", thresholds, [s.mask for s, _ in sent], [advantage for _, advantage in sent])


def _scale(action_tokens: int, datums: int, total: int, reduction: LossReduction) -> np.float32:
    """The factor on a datum's advantages that makes the backend's reduction the mean over `total` action tokens."""
    return np.float32(1 / total if reduction == "token_sum" else datums * action_tokens / total)


@dataclass(frozen=True)
class _Shifted:
    """A conversation as next-token prediction: entry t of each list or array of length L is about targets[t]."""

    inputs: list[int]
    targets: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    logprobs: FloatArray


def _shift(conversation: Conversation) -> _Shifted:
    mask = np.array(conversation.is_action)
    end = int(mask.nonzero()[0][-1]) + 1  # what follows the last action token teaches nothing and costs time
    return _Shifted(
        inputs=conversation.tokens[: end - 1],
        targets=np.array(conversation.tokens[1:end], np.int64),
        mask=mask[1:end],
        logprobs=np.array(conversation.logprobs[1:end], np.float32),
    )


def _datum(shifted: _Shifted, **loss_fn_inputs: FloatArray) -> tinker.Datum:
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(shifted.inputs),
        loss_fn_inputs={"target_tokens": shifted.targets, **loss_fn_inputs},
    )
