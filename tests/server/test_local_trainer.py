"""The trainer against a reference in float64 that neither packs nor adapts: torch differentiates W + B A itself."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from server.local.losses import Loss
from server.local.model import load_base
from server.local.trainer import Adam, Datum, NonFiniteError, Trainer
from tests.server.random_models import CONFIGS, VOCABULARY, save_random
from tinker_client.errors import UserError

LOSSES = [Loss("cross_entropy"), Loss("importance_sampling"), Loss("ppo"), Loss("cispo", 0.9, 1.1)]
ADAM = Adam(learning_rate=0.05, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0)


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(CONFIGS[request.param], tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(CONFIGS["qwen3"], tmp_path_factory.mktemp("qwen3"))


def moved(trainer: Trainer, name: str, rank: int = 4, seed: int = 0) -> None:
    """Create an adapter that is not at its starting point, where B and with it A's gradient are zero."""
    trainer.create(name, rank, 32.0, seed)
    generator = torch.Generator().manual_seed(seed)
    made = {path: torch.randn(t.shape, generator=generator) * 0.05 for path, t in trainer.weights(name).items()}
    trainer.load(name, made, None)


def some_data(trainer: Trainer, name: str, lengths: Sequence[int] = (5, 30, 1, 17)) -> list[Datum]:
    """Sequences from a policy some way off, so that some ratios are clipped; some tokens have no weight."""
    rng = np.random.default_rng(0)
    data = []
    for length in lengths:
        tokens = rng.integers(0, VOCABULARY, length + 1).tolist()
        weights = (rng.random(length) * (rng.random(length) < 0.7)).tolist()
        data.append(Datum(tokens[:-1], tokens[1:], weights, [0.0] * length, rng.normal(size=length).tolist()))
    found = trainer.logprobs(name, data)
    return [
        replace(datum, sampled=(logprobs.numpy() + rng.normal(0, 0.3, len(logprobs))).tolist())
        for datum, logprobs in zip(data, found, strict=True)
    ]


class Reference:
    """Logprobs and gradients of one adapter by torch alone."""

    def __init__(self, folder: Path, trainer: Trainer, name: str) -> None:
        self.base = load_base(folder).double()
        self.scaling = 32.0 / trainer.lora(name)[0]
        self.lora = {k: t.detach().double().requires_grad_() for k, t in trainer.weights(name).items()}

    def logprobs(self, datum: Datum) -> Tensor:
        merged = {
            f"{layer}.weight": self.base.get_submodule(layer).weight
            + self.scaling * self.lora[f"{layer}.lora_B.weight"] @ self.lora[f"{layer}.lora_A.weight"]
            for layer in {path.rpartition(".lora_")[0] for path in self.lora}
        }
        logits = functional_call(self.base, merged, (torch.tensor([list(datum.inputs)]),)).logits[0]
        return logits.log_softmax(-1)[range(len(datum.targets)), list(datum.targets)]

    def loss(self, datum: Datum, loss: Loss) -> Tensor:
        """Written down again, in the form of the papers."""
        new = self.logprobs(datum)
        weight, sampled, advantage = (
            torch.tensor(x, dtype=torch.float64) for x in (datum.weights, datum.sampled, datum.advantages)
        )
        ratio = (new - sampled).exp()
        clipped = ratio.clamp(loss.clip_low, loss.clip_high)
        objective = {
            "cross_entropy": new,
            "importance_sampling": ratio * advantage,
            "ppo": torch.minimum(ratio * advantage, clipped * advantage),
            "cispo": clipped.detach() * advantage * new,
        }[loss.name]
        return -(weight * objective).sum()

    def gradient(self, data: Sequence[Datum], loss: Loss) -> Tensor:
        total = torch.stack([self.loss(datum, loss) for datum in data]).sum()
        return flat(torch.autograd.grad(total, list(self.lora.values())))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0), *(tensor.detach().double().flatten() for tensor in tensors)])


def gradient(trainer: Trainer, name: str) -> Tensor:
    """What the next step would hand to Adam."""
    gradients = [parameter.grad for parameter in trainer.weights(name).values()]
    return flat([g for g in gradients if g is not None])


def relative_error(got: Tensor, want: Tensor) -> float:
    return ((got - want).norm() / want.norm()).item()


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_gradients_and_logprobs_are_those_of_the_reference(folder, loss):
    trainer = Trainer(load_base(folder), micro_batch_tokens=40)  # two micro-batches
    moved(trainer, "a")
    data = some_data(trainer, "a")
    results = trainer.accumulate("a", data, loss)

    reference = Reference(folder, trainer, "a")
    want = reference.gradient(data, loss)
    assert want.norm() > 0.1
    assert relative_error(gradient(trainer, "a"), want) < 1e-5
    for datum, logprobs, losses in zip(data, results.logprobs, results.losses, strict=True):
        assert torch.allclose(logprobs.double(), reference.logprobs(datum), atol=1e-5, rtol=0)
        assert math.isclose(losses.sum().item(), reference.loss(datum, loss).item(), rel_tol=1e-4, abs_tol=1e-5)
    if loss.name in ("ppo", "cispo"):
        unclipped = replace(loss, clip_low=0.0, clip_high=1e9)
        assert relative_error(gradient(trainer, "a"), reference.gradient(data, unclipped)) > 1e-2


def test_gradients_add_up_over_calls_until_the_step(qwen3):
    trainer = Trainer(load_base(qwen3), micro_batch_tokens=64)
    moved(trainer, "a")
    data = some_data(trainer, "a")
    trainer.accumulate("a", data, LOSSES[0])
    trainer.accumulate("a", data[1:], LOSSES[2])
    reference = Reference(qwen3, trainer, "a")
    want = reference.gradient(data, LOSSES[0]) + reference.gradient(data[1:], LOSSES[2])
    assert relative_error(gradient(trainer, "a"), want) < 1e-5
    assert math.isclose(trainer.step("a", ADAM), want.norm().item(), rel_tol=1e-4)

    trainer.accumulate("a", data[:1], LOSSES[0])
    after = Reference(qwen3, trainer, "a")
    assert relative_error(gradient(trainer, "a"), after.gradient(data[:1], LOSSES[0])) < 1e-5


def test_a_sequence_computes_the_same_in_any_company(qwen3):
    together, alone = (Trainer(load_base(qwen3), budget) for budget in (1000, 1))
    for trainer in (together, alone):
        moved(trainer, "a")
    data = some_data(together, "a")
    for a, b in zip(together.logprobs("a", data), alone.logprobs("a", data), strict=True):
        assert torch.allclose(a, b, atol=1e-5, rtol=0)


def test_adapters_do_not_touch_each_other(qwen3):
    trainer = Trainer(load_base(qwen3), 64)
    moved(trainer, "a", rank=4, seed=1)
    moved(trainer, "b", rank=2, seed=2)
    data = some_data(trainer, "a")
    before = {name: flat(list(trainer.weights(name).values())) for name in "ab"}
    alone = trainer.logprobs("b", data)

    trainer.accumulate("a", data, LOSSES[0])
    assert gradient(trainer, "a").norm() > 0
    assert len(gradient(trainer, "b")) == 0
    trainer.step("b", ADAM)
    trainer.step("a", ADAM)
    assert torch.equal(flat(list(trainer.weights("b").values())), before["b"])
    assert not torch.equal(flat(list(trainer.weights("a").values())), before["a"])
    assert all(torch.equal(x, y) for x, y in zip(trainer.logprobs("b", data), alone, strict=True))

    trainer.accumulate("a", data, LOSSES[0])
    trainer.delete("a")
    assert "a" not in trainer
    assert all(torch.equal(x, y) for x, y in zip(trainer.logprobs("b", data), alone, strict=True))
    trainer.create("a", 4, 32.0, seed=1)
    assert len(gradient(trainer, "a")) == 0
    assert trainer.step("a", ADAM) == 0.0


def test_a_fresh_adapter_is_the_base_and_its_seed_decides_about_it(qwen3):
    trainer = Trainer(load_base(qwen3), 64)
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        trainer.create(name, 4, 32.0, seed)
    a, b, c = (trainer.weights(name) for name in "abc")
    assert all(torch.equal(a[path], b[path]) for path in a)
    first = next(iter(a))
    assert not torch.equal(a[first], c[first])
    data = some_data(trainer, "a")
    base = load_base(qwen3)
    with torch.no_grad():
        logits = base(torch.tensor([list(data[1].inputs)])).logits[0].log_softmax(-1)
    want = logits[range(30), list(data[1].targets)]
    assert torch.allclose(trainer.logprobs("a", data)[1], want, atol=1e-5, rtol=0)
    bound = 1 / math.sqrt(a[first].shape[1])  # of Kaiming's rule as torch's and PEFT's linear layers use it
    assert 0.9 * bound < a[first].abs().max() <= bound


def test_two_runs_give_the_same_bits(qwen3):
    def run() -> Tensor:
        trainer = Trainer(load_base(qwen3), 64)
        trainer.create("a", 4, 32.0, seed=3)
        data = some_data(trainer, "a")
        for loss in LOSSES:
            trainer.accumulate("a", data, loss)
            trainer.step("a", ADAM)
        return flat(list(trainer.weights("a").values()))

    assert torch.equal(run(), run())


def test_the_step_is_adams_with_the_settings_of_each_request(qwen3):
    trainer = Trainer(load_base(qwen3), 64)
    moved(trainer, "a")
    data = some_data(trainer, "a")
    weights = flat(list(trainer.weights("a").values()))
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    steps = [ADAM, replace(ADAM, learning_rate=0.01, weight_decay=0.1), replace(ADAM, beta2=0.99, eps=1e-3)]
    for count, adam in enumerate(steps, start=1):
        trainer.accumulate("a", data, LOSSES[0])
        g = gradient(trainer, "a")
        first = adam.beta1 * first + (1 - adam.beta1) * g
        second = adam.beta2 * second + (1 - adam.beta2) * g**2
        scaled = second / (1 - adam.beta2**count)
        update = first / (1 - adam.beta1**count) / (scaled.sqrt() + adam.eps)
        weights = weights - adam.learning_rate * (update + adam.weight_decay * weights)
        trainer.step("a", adam)
        assert relative_error(flat(list(trainer.weights("a").values())), weights) < 1e-5


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_loss_that_is_not_finite_changes_no_weights(qwen3, bad):
    trainer = Trainer(load_base(qwen3), 64)
    moved(trainer, "a")
    data = some_data(trainer, "a")
    trainer.accumulate("a", data, LOSSES[0])
    trainer.step("a", ADAM)
    weights = flat(list(trainer.weights("a").values()))
    optimizer = {path: tensor.clone() for path, tensor in trainer.optimizer_state("a").items()}

    counted = next(i for i, weight in enumerate(data[1].weights) if weight)
    sampled = list(data[1].sampled)
    sampled[counted] = bad
    trainer.accumulate("a", data, LOSSES[1])  # is dropped with the rest of the step
    with pytest.raises(NonFiniteError, match="not finite"):
        trainer.accumulate("a", [data[0], replace(data[1], sampled=sampled)], LOSSES[1])
    with pytest.raises(NonFiniteError, match="step was not taken"):
        trainer.step("a", ADAM)
    assert torch.equal(flat(list(trainer.weights("a").values())), weights)
    assert all(torch.equal(optimizer[path], tensor) for path, tensor in trainer.optimizer_state("a").items())
    assert trainer.step("a", ADAM) == 0.0  # nothing is left of it

    trainer.accumulate("a", data, LOSSES[0])
    assert trainer.step("a", ADAM) > 0


def test_tokens_without_weight_may_hold_anything(qwen3):
    trainer = Trainer(load_base(qwen3), 64)
    moved(trainer, "a")
    datum = some_data(trainer, "a")[1]
    trainer.accumulate("a", [datum], LOSSES[2])
    want = gradient(trainer, "a")
    trainer.step("a", replace(ADAM, learning_rate=0.0))
    sampled = [x if weight else math.nan for x, weight in zip(datum.sampled, datum.weights, strict=True)]
    trainer.accumulate("a", [replace(datum, sampled=sampled)], LOSSES[2])
    assert torch.equal(gradient(trainer, "a"), want)


def test_a_snapshot_keeps_its_weights(qwen3):
    trainer = Trainer(load_base(qwen3), 64)
    moved(trainer, "a")
    data = some_data(trainer, "a")
    snapshot = trainer.snapshot("a")
    layer = trainer.layers[0]
    before = snapshot.adapter[layer].b.clone()
    assert trainer.snapshot("a") is snapshot
    trainer.accumulate("a", data, LOSSES[0])
    trainer.step("a", ADAM)
    assert torch.equal(snapshot.adapter[layer].b, before)
    assert torch.equal(trainer.snapshot("a").adapter[layer].b, trainer.weights("a")[f"{layer}.lora_B.weight"])
    assert snapshot.scaling == 8.0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Datum([], [], []), "0 tokens"),
        (Datum([1] * 1025, [1] * 1025, [1.0] * 1025, [0.0] * 1025, [0.0] * 1025), "1 to 1024"),
        (Datum([VOCABULARY], [1], [1.0], [0.0], [1.0]), "outside the vocabulary"),
        (Datum([1], [-1], [1.0], [0.0], [1.0]), "outside the vocabulary"),
        (Datum([1, 2], [2], [1.0, 1.0], [0.0] * 2, [1.0] * 2), "target_tokens of length 1"),
        (Datum([1, 2], [2, 3], [1.0], [0.0] * 2, [1.0] * 2), "weights of length 1"),
        (Datum([1, 2], [2, 3], [1.0] * 2), "logprobs of length 0"),
    ],
)
def test_a_datum_that_cannot_be_computed_is_refused(qwen3, wrong, words):
    trainer = Trainer(load_base(qwen3), 64)
    moved(trainer, "a")
    with pytest.raises(UserError, match=words):
        trainer.accumulate("a", [*some_data(trainer, "a"), wrong], LOSSES[2])
    assert len(gradient(trainer, "a")) == 0


def test_what_cannot_be_created_is_refused(qwen3):
    trainer = Trainer(load_base(qwen3), 64)
    with pytest.raises(UserError, match="rank of at least 1"):
        trainer.create("a", 0, 32.0, seed=0)
    trainer.create("a", 1, 32.0, seed=0)
    with pytest.raises(UserError, match="already"):
        trainer.create("a", 1, 32.0, seed=0)
    with pytest.raises(UserError, match="no loss dro: use cross_entropy"):
        Loss.of_request("dro", None)
