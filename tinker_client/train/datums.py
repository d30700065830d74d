"""Conversations to Tinker datums. The one place that knows how a backend reduces a loss.

What we want, on every backend, is the mean over all action tokens of an optimizer step:

    L = 1/T  sum_i sum_t  m_it * l_it        m: action mask, T: action tokens of the whole step

What a backend computes from the N datums it is sent before one `optim_step`, with w the client's `weights`:

    token_sum       sum_i sum_t w_it * l_it                          ours, Megatron, FSDP and hosted Tinker
    sequence_mean   1/N sum_i [ sum_t w_it * l_it / sum_t w_it ]     SkyRL's JAX backend (skyrl/backends/jax.py)

Where advantages enter the loss we send no `weights`, which hosted Tinker does not document there; SkyRL then takes
w = 1, on the targets that are no actions too. Those get the advantage 0: then the loss and its gradient are 0 whatever
the ratio is, so this form is exact on every backend. (Server-side averages, such as SkyRL's own clip ratio in its log,
then count all targets. Ours are computed here, over action tokens.)

The losses are linear in the advantage, PPO's positively homogeneous (a positive factor never changes which branch of
its minimum is taken). So the advantages carry the correction: 1/T for a token sum, N * L_i / T for a mean of means,
where L_i is the number of targets of datum i. N and T are those of the whole step, however many calls it is sent in.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import tinker

from tinker_client.connection.backend import ServerKind
from tinker_client.errors import UserError
from tinker_client.play.chat import Conversation

FloatArray = npt.NDArray[np.float32]
PolicyLossName = Literal["ppo", "importance_sampling", "cispo"]
LossReduction = Literal["token_sum", "sequence_mean"]
REDUCTION: dict[ServerKind, LossReduction] = {
    "local": "token_sum",
    "skyrl-gpu": "token_sum",
    "skyrl-jax": "sequence_mean",
    "hosted": "token_sum",
}


@dataclass(frozen=True)
class PolicyLoss:
    """A loss of Tinker's, with r the importance ratio (trainer's over sampler's probability) and A the advantage.

    ppo: -min(r A, clip(r) A)   importance_sampling: -r A   cispo: -stop_gradient(clip(r)) A log p_trainer
    clip keeps r between clip_low and clip_high.
    """

    name: PolicyLossName = "ppo"
    clip_low: float = 0.8
    clip_high: float = 1.2

    @property
    def config(self) -> dict[str, float] | None:
        """The `loss_fn_config` of a call."""
        if self.name == "importance_sampling":
            return None
        return {"clip_low_threshold": self.clip_low, "clip_high_threshold": self.clip_high}

    def is_clipped(self, ratio: FloatArray, advantage: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether clipping changes the gradient of a token: PPO's to zero, CISPO's to that of the threshold."""
        if self.name == "importance_sampling":
            return np.zeros(ratio.shape, np.bool_)
        too_low, too_high = ratio < self.clip_low, ratio > self.clip_high
        return np.where(advantage > 0, too_high, too_low) if self.name == "ppo" else too_low | too_high

    def objective(self, log_ratio: FloatArray, logprobs: FloatArray, advantage: FloatArray) -> FloatArray:
        """What each token adds to the sum that is maximised: minus its loss."""
        ratio = np.exp(log_ratio)
        clipped = np.clip(ratio, self.clip_low, self.clip_high)
        match self.name:
            case "ppo":
                return np.minimum(ratio * advantage, clipped * advantage)
            case "cispo":
                return clipped * advantage * logprobs
            case "importance_sampling":
                return ratio * advantage


@dataclass(frozen=True)
class Batch:
    """The arguments of `forward_backward`, and what is needed to read its answer.

    action_masks: per datum, bool of shape (len(target_tokens),).
    """

    datums: list[tinker.Datum]
    loss_fn: Literal["cross_entropy", "ppo", "importance_sampling", "cispo"]
    loss_fn_config: dict[str, float] | None
    action_masks: list[npt.NDArray[np.bool_]]

    def action_logprobs(self, output: tinker.ForwardBackwardOutput) -> list[FloatArray]:
        """The trainer's logprobs of each datum's action tokens, from the answer to a forward (and backward) pass."""
        return [
            result["logprobs"].to_numpy()[mask]
            for result, mask in zip(output.loss_fn_outputs, self.action_masks, strict=True)
        ]

    def sampled_logprobs(self) -> list[FloatArray]:
        """The sampler's logprobs of each datum's action tokens."""
        return self._of_actions("logprobs")

    def sent_advantages(self) -> list[FloatArray]:
        """The advantages of each datum's action tokens as the server gets them, scaled for its reduction."""
        return self._of_actions("advantages")

    def _of_actions(self, name: str) -> list[FloatArray]:
        return [
            datum.loss_fn_inputs[name].to_numpy()[mask]
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
    masks = [s.mask for s in shifted]
    if reduction == "token_sum":
        datums = [_datum(s, weights=s.mask.astype(np.float32) / np.float32(total)) for s in shifted]
        return Batch(datums, "cross_entropy", None, masks)
    datums = [
        _datum(
            s,
            logprobs=np.zeros(len(s.mask), np.float32),
            advantages=s.mask * _scale(len(s.mask), len(shifted), total, reduction),
        )
        for s in shifted
    ]
    return Batch(datums, "cispo", PolicyLoss("cispo", 1.0, 1.0).config, masks)


def policy_batch(
    conversations: Sequence[Conversation], advantages: Sequence[float], loss: PolicyLoss, reduction: LossReduction
) -> Batch:
    """One optimizer step of a policy loss, mean over all action tokens of `conversations`.

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
            logprobs=s.logprobs,
            advantages=s.mask * np.float32(advantage) * _scale(len(s.mask), len(sent), total, reduction),
        )
        for s, advantage in sent
    ]
    return Batch(datums, loss.name, loss.config, [s.mask for s, _ in sent])


def check_reduction(
    batch: Batch, loss: PolicyLoss, output: tinker.ForwardBackwardOutput, reduction: LossReduction
) -> None:
    """Compare the answer to a policy loss with what `reduction` promises; raises UserError where they contradict.

    Beyond what `check_form` does: SkyRL's GPU backends and hosted Tinker report the reduced loss itself, which is
    compared with the token sum computed here from the returned logprobs. The comparison is coarse, a factor of 3,
    because a call that the SDK cuts in n pieces can report n times the loss (SkyRL gives every piece the loss of all of
    them); a mean of means is further off than that, by a factor of the length of an episode. Where the terms cancel to
    almost nothing there is nothing to compare. The gradient norm tells nothing without one to compare with.
    """
    check_form(output, reduction)
    reported = reported_loss(output)
    if reported is None:
        return
    trainer, advantage = np.concatenate(batch.action_logprobs(output)), np.concatenate(batch.sent_advantages())
    terms = loss.objective(trainer - np.concatenate(batch.sampled_logprobs()), trainer, advantage)
    expected = -float(terms.sum(dtype=np.float64))
    # The SDK's limits on a piece are 1,024 datums and 5 MB; counted generously.
    pieces = math.ceil(len(batch.datums) / 1024) + sum(40 * len(mask) for mask in batch.action_masks) // 5_000_000
    comparable = abs(expected) > 0.05 * float(np.abs(terms).sum(dtype=np.float64))
    if comparable and not 1 / 3 < reported / expected < 3 * pieces:
        raise UserError(
            f"the server reports a loss of {reported:.4g} where the sum over tokens is {expected:.4g}: it reduces in "
            "a way that is not known here"
        )


def check_form(output: tinker.ForwardBackwardOutput, reduction: LossReduction) -> None:
    """Raises UserError if the answer to any loss has the form of a server that reduces otherwise than `reduction`.

    What answers tell (SkyRL 0.4.0, Tinker's documentation): JAX reports no metrics and each token's loss
    (`elementwise_loss`), but nothing that it has reduced. So it is known by this form alone; that it divides by N and
    L_i was read in its source and is tested against its gradients. SkyRL's GPU backends report `pg_loss:sum` and hosted
    Tinker `loss:sum`. Neither form: another server, and nothing is known.
    """
    if not output.metrics and "elementwise_loss" in output.loss_fn_outputs[0] and reduction != "sequence_mean":
        raise UserError("the server answers like SkyRL's JAX backend: give --engine jax")
    if reported_loss(output) is not None and reduction != "token_sum":
        raise UserError("the server reports a sum over tokens, as SkyRL's JAX backend does not: give --engine gpu")


def reported_loss(output: tinker.ForwardBackwardOutput) -> float | None:
    """The reduced policy loss, where a server reports it."""
    metrics = output.metrics or {}
    return next((metrics[name] for name in ("pg_loss:sum", "loss:sum") if name in metrics), None)


def _scale(targets: int, datums: int, total: int, reduction: LossReduction) -> np.float32:
    """The factor on a datum's advantages that makes the backend's reduction the mean over `total` action tokens."""
    return np.float32(1 / total if reduction == "token_sum" else datums * targets / total)


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
