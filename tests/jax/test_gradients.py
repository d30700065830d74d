"""The gradient of a step is that of the token mean: on SkyRL's JAX backend, in this process, and for a token sum."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from skyrl.backends.jax import JaxBackendConfig, JaxBackendImpl
from skyrl.tinker import types
from skyrl.tinker.engine import prepare_model_pass_batch
from transformers import Qwen3Config
from transformers import Qwen3ForCausalLM as TorchQwen3

from tests.train.test_datums import conversation
from tinker_client.connection.models import TINY_MODEL
from tinker_client.errors import UserError
from tinker_client.play.chat import Conversation
from tinker_client.train.datums import Batch, PolicyLoss, check_reduction, policy_batch, supervised_batch

VOCABULARY = 640  # of the tiny model's tokenizer
MODEL = "model"
LOSSES = [PolicyLoss("ppo"), PolicyLoss("importance_sampling"), PolicyLoss("cispo", 0.9, 1.1)]
ADVANTAGES = [0.75, -0.25, 0.0, 0.5]


class Jax:
    """The backend on a tiny dense Qwen3 with random weights, with one adapter of random weights too."""

    def __init__(self, directory: Path) -> None:
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=16, tie_word_embeddings=True, initializer_range=0.2,
        )  # fmt: skip
        TorchQwen3(config).save_pretrained(directory)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TINY_MODEL / name, directory)
        settings = JaxBackendConfig(max_lora_adapters=2, max_lora_rank=4, train_micro_batch_size=1, loss_chunk_size=0)
        self.backend = JaxBackendImpl(str(directory), settings, process_id=0)
        self.backend.create_model(MODEL, types.LoraConfig(rank=4, alpha=32.0, seed=0))
        self.index = self.backend.models[MODEL].adapter_index
        self._gradient_of_weighted = jax.jit(jax.grad(self._weighted))
        # A fresh adapter has B = 0, and with it no gradient for A: take one step to leave that point.
        made = conversation(np.random.default_rng(5), [9])
        self.forward_backward(supervised_batch([made], "sequence_mean"))
        self.optim_step(0.1)

    def forward_backward(self, batch: Batch, part: slice = slice(None)) -> list[dict]:
        """`loss_fn_outputs` of a call with some of the batch's datums, read as the API reads them."""
        data = []
        for datum in batch.datums[part]:
            inputs = {name: types.TensorData(data=t.to_numpy().tolist()) for name, t in datum.loss_fn_inputs.items()}
            for name in ("logprobs", "advantages"):
                inputs.setdefault(name, types.TensorData(data=[]))
            inputs.setdefault("weights", types.TensorData(data=[1.0] * len(inputs["target_tokens"].data)))
            chunks = [types.EncodedTextChunk(tokens=datum.model_input.to_ints())]
            model_input = types.ModelInput(chunks=chunks)
            data.append(types.Datum(loss_fn_inputs=types.LossFnInputs(**inputs), model_input=model_input))
        request = types.ForwardBackwardInput(data=data, loss_fn=batch.loss_fn, loss_fn_config=batch.loss_fn_config)
        return self.backend.forward_backward(prepare_model_pass_batch({"0": (MODEL, request)}))["0"].loss_fn_outputs

    def optim_step(self, lr: float) -> dict[str, float]:
        adam = types.AdamParams(learning_rate=lr, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0)
        return self.backend.optim_step(MODEL, types.OptimStepInput(adam_params=adam)).metrics

    def gradient(self) -> np.ndarray:
        """What optim_step would hand to Adam, as one vector; forgets it."""
        mean = self.backend.accumulated_grads.get_mean(jnp.int32(self.index))
        self.backend.accumulated_grads = self.backend.accumulated_grads.reset_adapter(jnp.int32(self.index))
        return flat(mean)

    def pull_back(self, conversations: list[Conversation], cotangents: list[np.ndarray]) -> np.ndarray:
        """sum_i sum_t cotangent_it * d logprob_it / d adapter: the gradient of a loss whose derivative is given."""
        rows = len(conversations)
        tokens, real, weights = np.zeros((rows, 33), np.int32), np.zeros((rows, 32)), np.zeros((rows, 32), np.float32)
        for row, (c, cotangent) in enumerate(zip(conversations, cotangents, strict=True)):
            tokens[row, : len(c.tokens)] = c.tokens
            real[row, : len(c.tokens) - 1] = 1
            weights[row, : len(cotangent)] = cotangent
        with jax.set_mesh(self.backend.mesh):
            gradient = self._gradient_of_weighted(self.backend.lora_params, tokens, real, weights)
        return flat(gradient)

    def _weighted(self, lora_params: nnx.State, tokens: jax.Array, real: jax.Array, weights: jax.Array) -> jax.Array:
        model = nnx.merge(self.backend.graphdef, lora_params, self.backend.non_lora_params)
        index = jnp.full(len(tokens), self.index, jnp.int32)
        output = model(tokens[:, :-1], attention_mask=real, adapter_indices=index, is_training=True)
        return (model.compute_logprobs(output.last_hidden_state, tokens[:, 1:], index) * weights).sum()


def flat(state: nnx.State) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(state)])


def loss_derivative(
    loss: PolicyLoss, logprobs: np.ndarray, sampled: np.ndarray, advantages: np.ndarray, scale: float = 1.0
) -> np.ndarray:
    """d/d logprob of scale times the sum of the loss over tokens, by torch; written down again from the papers."""
    new = torch.tensor(np.asarray(logprobs, np.float64), requires_grad=True)
    advantage = torch.tensor(np.asarray(advantages, np.float64))
    ratio = torch.exp(new - torch.tensor(np.asarray(sampled, np.float64)))
    clipped = ratio.clamp(loss.clip_low, loss.clip_high)
    if loss.name == "ppo":
        objective = torch.minimum(ratio * advantage, clipped * advantage)
    elif loss.name == "cispo":
        objective = clipped.detach() * advantage * new
    else:
        objective = ratio * advantage
    (-scale * objective.sum()).backward()
    return new.grad.numpy()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Jax:
    return Jax(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="module")
def conversations(server: Jax) -> list[Conversation]:
    """Episodes of unequal lengths, sampled from a policy some way off, so that some ratios are clipped."""
    rng = np.random.default_rng(0)
    made = [conversation(rng, replies) for replies in ([5], [1, 2, 7], [12, 4], [2])]
    outputs = server.forward_backward(supervised_batch(made, "sequence_mean"))
    server.gradient()
    for c, output in zip(made, outputs, strict=True):
        for t, logprob in enumerate(output["logprobs"]["data"], start=1):
            c.logprobs[t] = logprob + rng.normal(0, 0.3) if c.is_action[t] else 0.0
    return made


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_gradient_on_every_backend_is_that_of_the_mean_over_all_action_tokens(server, conversations, loss):
    batch = policy_batch(conversations, ADVANTAGES, loss, "sequence_mean")
    outputs = server.forward_backward(batch)
    got = server.gradient()

    sent = [c for c, advantage in zip(conversations, ADVANTAGES, strict=True) if advantage]
    trainer = [np.array(output["logprobs"]["data"]) for output in outputs]
    total = sum(c.action_tokens for c in conversations)
    by_hand, clipped = [], 0
    for c, logprobs, advantage in zip(sent, trainer, filter(None, ADVANTAGES), strict=True):
        mask = np.array(c.is_action[1 : len(logprobs) + 1])
        sampled = np.array(c.logprobs[1 : len(logprobs) + 1])
        by_hand.append(loss_derivative(loss, logprobs, sampled, advantage * mask, 1 / total) * mask)
        clipped += loss.is_clipped(np.exp(logprobs - sampled)[mask], np.full(mask.sum(), advantage)).sum()
    want = server.pull_back(sent, by_hand)
    assert np.linalg.norm(want) > 0.01
    assert (clipped > 0) == (loss.name != "importance_sampling")
    assert relative_error(got, want) < 1e-3

    # The batch in several calls, of which the SDK makes as many as it likes.
    for part in (slice(0, 1), slice(1, 3)):
        server.forward_backward(batch, part)
    assert relative_error(server.gradient(), want) < 1e-3

    # What a backend that sums over tokens computes from its own form of the same batch.
    summed = [
        loss_derivative(loss, logprobs, inputs["logprobs"].to_numpy(), inputs["advantages"].to_numpy())
        for logprobs, inputs in zip(
            trainer,
            (datum.loss_fn_inputs for datum in policy_batch(conversations, ADVANTAGES, loss, "token_sum").datums),
            strict=True,
        )
    ]
    assert relative_error(server.pull_back(sent, summed), want) < 1e-3


def test_supervised_fine_tuning_has_the_gradient_of_the_mean_over_all_reply_tokens_too(server, conversations):
    server.forward_backward(supervised_batch(conversations, "sequence_mean"))
    total = sum(c.action_tokens for c in conversations)
    want = server.pull_back(conversations, [-np.array(c.is_action[1:], float) / total for c in conversations])
    assert relative_error(server.gradient(), want) < 1e-3


def test_what_jax_answers_contradicts_a_token_sum(server, conversations):
    batch = policy_batch(conversations, ADVANTAGES, LOSSES[0], "token_sum")
    output = SimpleNamespace(loss_fn_outputs=server.forward_backward(batch), metrics={})
    server.gradient()
    check_reduction(batch, LOSSES[0], output, "sequence_mean")
    with pytest.raises(UserError, match="--engine jax"):
        check_reduction(batch, LOSSES[0], output, "token_sum")


def test_jax_reduces_by_the_mean_of_the_datums_means(server, conversations):
    """Its gradient norm does not change when every datum is sent twice; that of a sum would double."""
    batch = policy_batch(conversations, ADVANTAGES, LOSSES[0], "sequence_mean")
    server.forward_backward(batch)
    once = server.gradient()
    for _ in range(2):
        server.forward_backward(batch)
    assert relative_error(server.gradient(), once) < 1e-5
