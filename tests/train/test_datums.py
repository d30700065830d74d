"""Datums: whichever way a backend reduces a loss, the result is the mean over all action tokens of the step."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tinker_client.errors import UserError
from tinker_client.play.chat import Conversation
from tinker_client.train.datums import Batch, PolicyLoss, check_reduction, policy_batch, supervised_batch
from tinker_client.train.metrics import policy_metrics

REDUCTIONS = ["token_sum", "sequence_mean"]
LOSSES = [PolicyLoss("ppo"), PolicyLoss("importance_sampling"), PolicyLoss("cispo", 0.9, 1.1)]


def conversation(rng: np.random.Generator, replies: list[int]) -> Conversation:
    """A conversation with replies of these lengths, each after three tokens of context."""
    made = Conversation.__new__(Conversation)
    made.is_action = [action for n in replies for action in [False] * 3 + [True] * n] + [False] * 2
    made.tokens = rng.integers(0, 100, len(made.is_action)).tolist()
    made.logprobs = [-float(rng.exponential()) if action else 0.0 for action in made.is_action]
    return made


def token_losses(batch: Batch, trainer: list[np.ndarray]) -> list[np.ndarray]:
    """What a backend computes for each token: a loss of skyrl/tinker/loss_fns.py, times the weights, 1 by default."""
    losses = []
    for datum, logprobs in zip(batch.datums, trainer, strict=True):
        inputs = {name: np.array(tensor.data) for name, tensor in datum.loss_fn_inputs.items()}
        assert {len(values) for values in inputs.values()} == {len(datum.model_input.to_ints())}
        if batch.loss_fn == "cross_entropy":
            losses.append(-logprobs * inputs["weights"])
            continue
        assert "weights" not in inputs  # hosted Tinker documents none for these losses
        ratio = np.exp(logprobs - inputs["logprobs"])
        if batch.loss_fn == "importance_sampling":
            losses.append(-ratio * inputs["advantages"])
            continue
        low, high = batch.loss_fn_config["clip_low_threshold"], batch.loss_fn_config["clip_high_threshold"]
        clipped = np.clip(ratio, low, high)
        if batch.loss_fn == "ppo":
            losses.append(-np.minimum(ratio * inputs["advantages"], clipped * inputs["advantages"]))
        else:
            losses.append(-clipped * logprobs * inputs["advantages"])
    return losses


def reduce(batch: Batch, losses: list[np.ndarray], reduction: str) -> float:
    if reduction == "token_sum":
        return float(sum(loss.sum() for loss in losses))
    return float(np.mean([loss.mean() for loss in losses]))  # no weights: SkyRL fills in ones


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def conversations(rng) -> list[Conversation]:
    return [conversation(rng, replies) for replies in ([5], [1, 2, 9], [30, 4], [2])]


def trainer_logprobs(conversations: list[Conversation], rng: np.random.Generator) -> list[np.ndarray]:
    """New logprobs for every target of every conversation, near enough to the old ones for some ratios to clip."""
    return [np.array(c.logprobs[1:]) + rng.normal(0, 0.3, len(c.tokens) - 1) for c in conversations]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_supervised_loss_is_the_mean_over_all_trained_tokens(reduction, conversations, rng):
    trainer = trainer_logprobs(conversations, rng)
    batch = supervised_batch(conversations, reduction)
    cut = [t[: len(mask)] for t, mask in zip(trainer, batch.action_masks, strict=True)]
    of_actions = [t[np.array(c.is_action[1:])] for t, c in zip(trainer, conversations, strict=True)]
    want = -np.concatenate(of_actions).mean()
    assert reduce(batch, token_losses(batch, cut), reduction) == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_policy_loss_is_the_mean_over_all_action_tokens_the_unsent_ones_included(loss, reduction, conversations, rng):
    advantages = [0.75, 0.0, -0.25, 0.5]
    trainer = trainer_logprobs(conversations, rng)
    want, tokens = 0.0, 0
    for c, advantage, logprobs in zip(conversations, advantages, trainer, strict=True):
        mask = np.array(c.is_action[1:])
        ratio = np.exp(logprobs - np.array(c.logprobs[1:]))[mask]
        clipped = np.clip(ratio, loss.clip_low, loss.clip_high)
        match loss.name:
            case "ppo":
                want -= np.minimum(ratio * advantage, clipped * advantage).sum()
            case "importance_sampling":
                want -= (ratio * advantage).sum()
            case "cispo":
                want -= (clipped * advantage * logprobs[mask]).sum()
        tokens += mask.sum()

    batch = policy_batch(conversations, advantages, loss, reduction)
    assert len(batch.datums) == 3
    sent = [t for t, advantage in zip(trainer, advantages, strict=True) if advantage]
    cut = [t[: len(mask)] for t, mask in zip(sent, batch.action_masks, strict=True)]
    assert reduce(batch, token_losses(batch, cut), reduction) == pytest.approx(want / tokens, rel=1e-5)


def test_a_datum_predicts_each_next_token_and_ends_with_the_last_action(conversations):
    source = conversations[1]
    (datum,) = supervised_batch([source], "token_sum").datums
    inputs, targets = datum.model_input.to_ints(), list(datum.loss_fn_inputs["target_tokens"].data)
    assert [*inputs, targets[-1]] == source.tokens[:-2]
    assert targets == source.tokens[1:-2]
    mask = np.array(datum.loss_fn_inputs["weights"].data) > 0
    assert [token for token, on in zip(targets, mask, strict=True) if on] == [
        token for token, action in zip(source.tokens, source.is_action, strict=True) if action
    ]


def test_no_signal_sends_nothing(conversations):
    assert policy_batch(conversations, [0.0] * 4, LOSSES[0], "sequence_mean").datums == []


def answer(batch: Batch, trainer: list[np.ndarray], metrics: dict[str, float], **outputs: Any) -> Any:
    """A server's answer with the trainer's logprobs."""
    return SimpleNamespace(loss_fn_outputs=[{"logprobs": Tensor(t), **outputs} for t in trainer], metrics=metrics)


class Tensor:
    def __init__(self, values: np.ndarray) -> None:
        self.to_numpy: Callable[[], np.ndarray] = lambda: values


@pytest.mark.parametrize("name", ["pg_loss:sum", "loss:sum"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_reported_loss_must_be_the_sum_over_tokens(name, loss, conversations, rng):
    batch = policy_batch(conversations, [0.75, 0.0, -0.25, 0.5], loss, "token_sum")
    trainer = [
        datum.loss_fn_inputs["logprobs"].to_numpy() + rng.normal(0, 0.1, len(mask))
        for datum, mask in zip(batch.datums, batch.action_masks, strict=True)
    ]
    losses = token_losses(batch, trainer)
    reported = reduce(batch, losses, "token_sum")
    check_reduction(batch, loss, answer(batch, trainer, {name: reported}), "token_sum")
    for wrong in (reduce(batch, losses, "sequence_mean"), -reported, 0.0):
        with pytest.raises(UserError, match="reduces in a way"):
            check_reduction(batch, loss, answer(batch, trainer, {name: wrong}), "token_sum")
    with pytest.raises(UserError, match="--engine gpu"):
        check_reduction(batch, loss, answer(batch, trainer, {name: reported}), "sequence_mean")


def test_the_form_of_an_answer_tells_jax_and_an_unknown_server_passes(conversations):
    batch = policy_batch(conversations, [0.75, 0.0, -0.25, 0.5], LOSSES[0], "token_sum")
    trainer = [np.zeros(len(mask), np.float32) for mask in batch.action_masks]
    jax = answer(batch, trainer, {}, elementwise_loss=Tensor(np.zeros(1)))
    check_reduction(batch, LOSSES[0], jax, "sequence_mean")
    with pytest.raises(UserError, match="--engine jax"):
        check_reduction(batch, LOSSES[0], jax, "token_sum")
    for reduction in REDUCTIONS:
        check_reduction(batch, LOSSES[0], answer(batch, trainer, {}), reduction)


@pytest.mark.parametrize(("name", "clipped"), [("ppo", 2), ("cispo", 4), ("importance_sampling", 0)])
def test_policy_metrics_count_clipped_tokens_and_estimate_the_divergence(name, clipped, rng):
    made = [conversation(rng, [4]), conversation(rng, [4])]
    loss = PolicyLoss(name)
    batch = policy_batch(made, [1.0, -1.0], loss, "token_sum")
    shift = np.log([1.0, 1.3, 0.7, 1.1])  # of the ratio: PPO clips only 1.3 at advantage 1, and only 0.7 at -1
    trainer = [
        np.array(c.logprobs[1 : len(m) + 1])
        + np.r_[np.full(len(m) - 4, 9.0), shift]  # what is no action does not count
        for c, m in zip(made, batch.action_masks, strict=True)
    ]
    metrics = policy_metrics(batch, loss, answer(batch, trainer, {}))
    assert metrics["policy/clip_fraction"] == pytest.approx(clipped / 8)
    assert metrics["policy/kl_sampler_trainer"] == pytest.approx(-shift.mean(), abs=1e-6)
    assert metrics["policy/kl_sampler_trainer_k3"] == pytest.approx((np.exp(shift) - 1 - shift).mean(), abs=1e-6)
    assert metrics["policy/ratio_min"] == pytest.approx(0.7)
    assert metrics["policy/ratio_max"] == pytest.approx(1.3)
    assert metrics["tokens/trained"] == 8
