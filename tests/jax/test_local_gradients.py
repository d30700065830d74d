"""The local trainer against SkyRL's JAX backend, both in this process, on the tiny model with the same adapter."""

import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.torch import load_file
from skyrl.backends.jax import JaxBackendConfig, JaxBackendImpl
from skyrl.tinker import types
from skyrl.tinker.engine import prepare_model_pass_batch
from skyrl.tx.utils.models import save_lora_checkpoint
from torch import Tensor

from server.local.losses import Loss
from server.local.model import load_base
from server.local.trainer import Datum, Trainer

TINY_MODEL = Path(__file__).resolve().parents[2] / "server" / "tiny_model"
VOCABULARY = 640
MODEL = "model"
LORA = types.LoraConfig(rank=4, alpha=32.0, seed=0)
LOSSES = [Loss("cross_entropy"), Loss("importance_sampling"), Loss("ppo"), Loss("cispo", 0.9, 1.1)]
# JAX's linear layers of one input are one layer with one matrix A, which a saved adapter holds once for each of them.
SHARED_A = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


class Jax:
    """The backend with one adapter, that has left its starting point, where B is zero."""

    def __init__(self, folder: Path) -> None:
        self._archive = folder / "adapter.tar.gz"
        settings = JaxBackendConfig(max_lora_adapters=2, max_lora_rank=4, train_micro_batch_size=1, loss_chunk_size=0)
        self.backend = JaxBackendImpl(str(TINY_MODEL), settings, process_id=0)
        self.backend.create_model(MODEL, LORA)
        self._index = self.backend.models[MODEL].adapter_index
        tokens = list(range(3, 40))
        self.forward_backward(Datum(tokens[:-1], tokens[1:], [1.0] * 36), LOSSES[0])
        adam = types.AdamParams(learning_rate=0.02, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0)
        self.backend.optim_step(MODEL, types.OptimStepInput(adam_params=adam))

    def forward_backward(self, datum: Datum, loss: Loss) -> np.ndarray:
        """The logprobs of the datum's targets."""
        fields = {
            "target_tokens": datum.targets,
            "weights": datum.weights,
            "logprobs": datum.sampled,
            "advantages": datum.advantages,
        }
        inputs = types.LossFnInputs(**{name: types.TensorData(data=list(values)) for name, values in fields.items()})
        chunks = [types.EncodedTextChunk(tokens=list(datum.inputs))]
        data = [types.Datum(loss_fn_inputs=inputs, model_input=types.ModelInput(chunks=chunks))]
        config = {"clip_low_threshold": loss.clip_low, "clip_high_threshold": loss.clip_high}
        request = types.ForwardBackwardInput(data=data, loss_fn=loss.name, loss_fn_config=config)
        output = self.backend.forward_backward(prepare_model_pass_batch({"0": (MODEL, request)}))["0"]
        return np.array(output.loss_fn_outputs[0]["logprobs"]["data"])

    def weights(self) -> dict[str, Tensor]:
        """By PEFT's names without their prefix."""
        return self._saved(self.backend.model)

    def gradient_of_token_sum(self, data: Sequence[Datum], loss: Loss) -> dict[str, Tensor]:
        """JAX divides a datum's loss by the sum of its weights, so each is sent alone and multiplied by that."""
        total: dict[str, Tensor] = {}
        for datum in data:
            self.forward_backward(datum, loss)
            mean = self.backend.accumulated_grads.get_mean(jnp.int32(self._index))
            self.backend.accumulated_grads = self.backend.accumulated_grads.reset_adapter(jnp.int32(self._index))
            model = nnx.merge(self.backend.graphdef, mean, self.backend.non_lora_params)
            for name, gradient in self._saved(model).items():
                total[name] = total.get(name, torch.zeros(())) + gradient * sum(datum.weights)
        return total

    def _saved(self, model: nnx.Module) -> dict[str, Tensor]:
        save_lora_checkpoint(model, "tiny", LORA, self._index, self._archive, 0)
        with tarfile.open(self._archive) as tar:
            tar.extractall(self._archive.parent, filter="data")
        tensors = load_file(self._archive.parent / "adapter_model.safetensors")
        return {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def jax(tmp_path_factory: pytest.TempPathFactory) -> Jax:
    return Jax(tmp_path_factory.mktemp("jax"))


@pytest.fixture(scope="module")
def trainer(jax: Jax) -> Trainer:
    trainer = Trainer(load_base(TINY_MODEL), 200)
    trainer.create(MODEL, LORA.rank, LORA.alpha, LORA.seed)
    trainer.load(MODEL, jax.weights(), None)
    return trainer


@pytest.fixture(scope="module")
def data(trainer: Trainer) -> list[Datum]:
    """Sequences from a policy some way off, so that some ratios are clipped."""
    rng = np.random.default_rng(0)
    made = []
    for length in (31, 100, 64):
        tokens = rng.integers(3, VOCABULARY, length + 1).tolist()
        weights = (rng.random(length) * (rng.random(length) < 0.7)).tolist()
        made.append(Datum(tokens[:-1], tokens[1:], weights, [0.0] * length, rng.normal(size=length).tolist()))
    found = trainer.logprobs(MODEL, made)
    noise = [rng.normal(0, 0.3, len(logprobs)) for logprobs in found]
    return [
        Datum(d.inputs, d.targets, d.weights, (logprobs.numpy() + n).tolist(), d.advantages)
        for d, logprobs, n in zip(made, found, noise, strict=True)
    ]


def in_jaxs_form(gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A matrix A that JAX shares has the sum of the gradients of ours."""
    result = dict(gradient)
    for name in gradient:
        if not name.endswith("lora_A.weight"):
            continue
        for group in SHARED_A:
            for member in group:
                if f".{member}." in name:
                    result[name] = sum(
                        (gradient[name.replace(f".{member}.", f".{other}.")] for other in group), torch.zeros(())
                    )
    return result


def flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_gradients_and_logprobs_are_jaxs(jax, trainer, data, loss):
    results = trainer.accumulate(MODEL, data, loss)
    ours = {name: parameter.grad for name, parameter in trainer.weights(MODEL).items()}
    want = flat(jax.gradient_of_token_sum(data, loss))
    got = flat(in_jaxs_form(ours))
    trainer.load(MODEL, jax.weights(), None)  # forgets the gradients
    assert want.norm() > 1
    assert ((got - want).norm() / want.norm()).item() < 1e-4

    for datum, logprobs in zip(data, results.logprobs, strict=True):
        assert logprobs.numpy() == pytest.approx(jax.forward_backward(datum, loss), abs=1e-4)
    jax.backend.accumulated_grads = jax.backend.accumulated_grads.reset_adapter(jnp.int32(jax._index))
