"""LoRA adapters on one base model: logprobs, gradients, optimizer steps, and copies of the weights.

Sequences are packed one after another without padding, and attention is computed sequence by sequence. The backbone is
transformers' with PEFT's LoRA. From its output the targets' logprobs are computed a block at a time, together with the
gradient that they hand back, so that no tensor of [tokens, vocabulary] is ever kept.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig
from peft.functional import delete_adapter, inject_adapter_in_model, set_adapter
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from server.local.losses import Loss
from server.local.model import LoraPair, Snapshot
from tinker_client.errors import UserError

F = nn.functional

PACKED_ATTENTION = "packed_causal"
# Logits computed together: 64 MiB of float32.
_LOGITS = 1 << 24


@dataclass(frozen=True)
class Adam:
    """The settings of one optimizer step; weight decay is decoupled, as AdamW's and as in optax."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float


@dataclass(frozen=True)
class Datum:
    """A sequence and what is wanted of it: entry t of each list is about targets[t], which follows inputs[: t + 1].

    weights: factors on the tokens' losses; a token of weight 0 has no part in the loss, whatever it is.
    sampled, advantages: the sampler's logprobs and the advantages; empty for cross entropy.
    """

    inputs: Sequence[int]
    targets: Sequence[int]
    weights: Sequence[float]
    sampled: Sequence[float] = ()
    advantages: Sequence[float] = ()


@dataclass(frozen=True)
class TokenResults:
    """What a pass finds for each target of a call's datums, one tensor [targets] a datum, float32."""

    logprobs: list[Tensor]
    losses: list[Tensor]
    """The weighted loss of each token; their sum is the loss of the call."""


class NonFiniteError(ArithmeticError):
    """A loss or gradient is not finite. The gradients of the step have been dropped, the weights are as they were."""


class _Adapter:
    def __init__(self, layers: dict[str, LoraPair], rank: int, alpha: float) -> None:
        self.layers = layers
        self.rank = rank
        self.alpha = alpha
        self.parameters = [tensor for pair in layers.values() for tensor in pair]
        self.optimizer = torch.optim.AdamW(self.parameters, fused=True)
        self.failure: str | None = None  # why the gradients of the step in progress are worth nothing
        self.snapshot: Snapshot | None = None  # of the weights as they are, once one was asked for


class Trainer:
    """Any number of adapters, by name, on `base`, whose linear layers get PEFT's LoRA modules.

    The base's weights stay as they are. micro_batch_tokens: sequences are computed together up to so many tokens; a
    longer one is computed alone. What is computed together is fixed by the call alone, so results do not depend on
    when calls arrive. Not for several threads at once.
    """

    def __init__(self, base: PreTrainedModel, micro_batch_tokens: int) -> None:
        AttentionInterface.register(PACKED_ATTENTION, _packed_attention)
        base.set_attn_implementation(PACKED_ATTENTION)
        self._base = base
        self._head: nn.Module = base.get_output_embeddings()
        self._budget = micro_batch_tokens
        self._layers = [
            name for name, module in base.named_modules() if isinstance(module, nn.Linear) and module is not self._head
        ]
        self._adapters: dict[str, _Adapter] = {}
        self._active = ""

    @property
    def layers(self) -> list[str]:
        """The paths of the linear layers that adapters change."""
        return list(self._layers)

    def __contains__(self, name: str) -> bool:
        return name in self._adapters

    def create(self, name: str, rank: int, alpha: float, seed: int) -> None:
        """A fresh adapter: A by Kaiming's uniform rule from the seed, as PEFT does, and B zero. Raises UserError."""
        if name in self._adapters:
            raise UserError(f"there is a model {name} already")
        if rank < 1:
            raise UserError(f"LoRA needs a rank of at least 1, not {rank}")
        targets = sorted({path.rpartition(".")[2] for path in self._layers})
        # PEFT only divides alpha by the rank.
        config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets)
        with torch.random.fork_rng(), _several_adapters():
            torch.manual_seed(seed)
            inject_adapter_in_model(config, self._base, name)
        modules = {path: self._base.get_submodule(path) for path in self._layers}
        layers = {path: LoraPair(m.lora_A[name].weight, m.lora_B[name].weight) for path, m in modules.items()}
        self._adapters[name] = _Adapter(layers, rank, alpha)
        self._active = ""

    def delete(self, name: str) -> None:
        """Forget an adapter, its gradients and its optimizer."""
        del self._adapters[name]
        with _several_adapters():
            delete_adapter(self._base, name, prefix="lora_")
        del self._base.peft_config[name]
        self._active = ""

    def logprobs(self, name: str, data: Sequence[Datum]) -> list[Tensor]:
        """The logprobs of the targets, one tensor [targets] a datum."""
        loss = Loss("cross_entropy")
        self._check(data, loss)
        with torch.no_grad():
            return self._pass(name, data, loss).logprobs

    def accumulate(self, name: str, data: Sequence[Datum], loss: Loss) -> TokenResults:
        """Add the gradient of the sum of the tokens' weighted losses to what earlier calls left for the next step.

        Raises UserError for a datum that cannot be computed, and then adds nothing. Raises NonFiniteError if the loss
        or its gradient is not finite. Then, as after any other failure halfway, the next `step` raises NonFiniteError
        too and drops the gradients of all calls before it.
        """
        self._check(data, loss)
        try:
            return self._pass(name, data, loss)
        except Exception as error:
            self._adapters[name].failure = str(error)
            raise

    def step(self, name: str, adam: Adam) -> float:
        """One step of Adam with the accumulated gradients, which are then forgotten; returns their L2 norm.

        Without any gradient since the last step the weights stay as they are, and the norm is 0.
        Raises NonFiniteError, see `accumulate`; then too, weights and optimizer are as they were.
        """
        adapter = self._adapters[name]
        try:
            if adapter.failure is not None:
                raise NonFiniteError(f"{adapter.failure}; the step was not taken")
            gradients = [p.grad for p in adapter.parameters if p.grad is not None]
            norm = nn.utils.get_total_norm(gradients).item()
            if not math.isfinite(norm):
                raise NonFiniteError("the gradient is not finite: no weights were changed and it was dropped")
            if gradients:
                _apply(adapter.optimizer, adam)
                adapter.snapshot = None
            return norm
        finally:
            adapter.failure = None
            adapter.optimizer.zero_grad()

    def snapshot(self, name: str) -> Snapshot:
        """A copy of the adapter as it is now; the same object until the weights change."""
        adapter = self._adapters[name]
        if adapter.snapshot is None:
            copies = {path: LoraPair(*(t.detach().clone() for t in pair)) for path, pair in adapter.layers.items()}
            adapter.snapshot = Snapshot(copies, adapter.alpha / adapter.rank)
        return adapter.snapshot

    def lora(self, name: str) -> tuple[int, float]:
        """Rank and alpha of an adapter."""
        return self._adapters[name].rank, self._adapters[name].alpha

    def weights(self, name: str) -> dict[str, Tensor]:
        """The adapter's own tensors, `<layer>.lora_A.weight` [rank, in] and `<layer>.lora_B.weight` [out, rank]."""
        return dict(self._named(name))

    def optimizer_state(self, name: str) -> dict[str, Tensor]:
        """Adam's moments and step count, by `<moment>.<tensor's name>`; empty before the first step."""
        states = self._adapters[name].optimizer.state
        return {f"{key}.{path}": value for path, p in self._named(name) for key, value in states.get(p, {}).items()}

    def load(self, name: str, weights: Mapping[str, Tensor], optimizer_state: Mapping[str, Tensor] | None) -> None:
        """Take over what `weights` and `optimizer_state` gave; without the latter, Adam starts anew.

        Accumulated gradients are dropped. The tensors have to be those of an adapter of this rank on this model.
        """
        adapter = self._adapters[name]
        adapter.optimizer.zero_grad()
        adapter.optimizer.state.clear()
        adapter.failure = adapter.snapshot = None
        with torch.no_grad():
            for path, parameter in self._named(name):
                parameter.copy_(weights[path])
        for key, value in (optimizer_state or {}).items():
            moment, _, path = key.partition(".")
            adapter.optimizer.state[self.weights(name)[path]][moment] = value.clone()

    def _named(self, name: str) -> Iterator[tuple[str, Tensor]]:
        for path, pair in self._adapters[name].layers.items():
            yield f"{path}.lora_A.weight", pair.a
            yield f"{path}.lora_B.weight", pair.b

    def _pass(self, name: str, data: Sequence[Datum], loss: Loss) -> TokenResults:
        if self._active != name:
            set_adapter(self._base, name)
            self._active = name
        lengths = [len(datum.inputs) for datum in data]
        logprobs, losses = [torch.empty(0)] * len(data), [torch.empty(0)] * len(data)
        for part in _micro_batches(lengths, self._budget):
            packed = _Packed([data[i] for i in part])
            hidden = self._hidden(packed)
            found, gradient = self._head_pass(hidden.detach(), packed, loss)
            if gradient is not None:
                torch.autograd.backward(hidden, gradient)
            for i, of_datum, loss_of_datum in zip(part, *(torch.split(t, packed.lengths) for t in found), strict=True):
                logprobs[i], losses[i] = of_datum, loss_of_datum
        return TokenResults(logprobs, losses)

    def _hidden(self, packed: "_Packed") -> Tensor:
        """The backbone's output [tokens, hidden]."""
        positions = torch.cat([torch.arange(n) for n in packed.lengths])
        output = self._base.base_model(
            input_ids=packed.inputs[None], position_ids=positions[None], use_cache=False, lengths=packed.lengths
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def _head_pass(self, hidden: Tensor, packed: "_Packed", loss: Loss) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """Logprobs and weighted losses of the targets [tokens], and the gradient of the loss's sum [tokens, hidden].

        Targets that add nothing to the loss are told apart: they need no gradient, which is half of the work.
        The gradient is None where no target adds anything or torch records none.
        """
        factors = packed.weights * packed.advantages if loss.is_policy_loss else packed.weights
        training = torch.is_grad_enabled()
        counted = (factors != 0) if training else torch.zeros(len(factors), dtype=torch.bool)
        logprobs, losses = torch.zeros(len(hidden)), torch.zeros(len(hidden))
        gradient = torch.zeros_like(hidden) if counted.any() else None
        block = max(1, _LOGITS // self._base.config.vocab_size)
        for rows in _blocks(counted, block):
            states = hidden[rows].requires_grad_()
            found = self._target_logprobs(states, packed.targets[rows])
            weighted = loss.of_tokens(found, packed.sampled[rows], packed.advantages[rows]) * packed.weights[rows]
            torch.autograd.backward(weighted.sum())
            logprobs[rows], losses[rows] = found.detach(), weighted.detach()
            assert gradient is not None and states.grad is not None
            gradient[rows] = states.grad
        with torch.no_grad():
            for rows in _blocks(~counted, block):
                logprobs[rows] = self._target_logprobs(hidden[rows], packed.targets[rows])
        if gradient is not None and not (losses.isfinite().all() and gradient.isfinite().all()):
            raise NonFiniteError(
                "the loss is not finite: no weights were changed, and the step's gradients are dropped"
            )
        return (logprobs, losses), gradient

    def _target_logprobs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return -F.cross_entropy(self._head(hidden), targets, reduction="none")

    def _check(self, data: Sequence[Datum], loss: Loss) -> None:
        for datum in data:
            _check_datum(datum, loss, self._base.config.vocab_size, self._base.config.max_position_embeddings)


def _check_datum(datum: Datum, loss: Loss, vocabulary: int, context: int) -> None:
    wanted = {"target_tokens": datum.targets, "weights": datum.weights}
    if loss.is_policy_loss:
        wanted |= {"logprobs": datum.sampled, "advantages": datum.advantages}
    for field, values in wanted.items():
        if len(values) != len(datum.inputs):
            raise UserError(f"a datum has {len(datum.inputs)} input tokens, but {field} of length {len(values)}")
    if not 0 < len(datum.inputs) <= context:
        raise UserError(f"a datum has {len(datum.inputs)} tokens: the model reads 1 to {context}")
    for tokens in (datum.inputs, datum.targets):
        if min(tokens) < 0 or max(tokens) >= vocabulary:
            raise UserError(f"a datum has a token outside the vocabulary of {vocabulary}")


class _Packed:
    """Datums one after another: every tensor is [tokens]."""

    def __init__(self, data: Sequence[Datum]) -> None:
        def concatenated(field: Callable[[Datum], Sequence[float]], dtype: torch.dtype) -> Tensor:
            return torch.tensor([value for datum in data for value in field(datum)], dtype=dtype)

        self.lengths = [len(datum.inputs) for datum in data]
        self.inputs = concatenated(lambda datum: datum.inputs, torch.int64)
        self.targets = concatenated(lambda datum: datum.targets, torch.int64)
        self.weights = concatenated(lambda datum: datum.weights, torch.float32)
        nothing = [0.0]
        self.sampled = concatenated(lambda d: d.sampled or nothing * len(d.inputs), torch.float32)
        self.advantages = concatenated(lambda d: d.advantages or nothing * len(d.inputs), torch.float32)


def _micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of sequences to compute together, in the order given, up to `budget` tokens or one sequence."""
    batches: list[list[int]] = []
    room = 0
    for i, length in enumerate(lengths):
        if not batches or length > room:
            batches.append([])
            room = budget
        batches[-1].append(i)
        room -= length
    return batches


def _blocks(selected: Tensor, size: int) -> list[Tensor]:
    """The indices of the true entries, up to `size` of them at a time."""
    rows = selected.nonzero()[:, 0]
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _attention_mask: None,
    *,
    scaling: float,
    lengths: list[int],
    **_unused: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each of the packed sequences; query, key and value are [1, heads, tokens, head_dim]."""
    parts = zip(*(torch.split(tensor, lengths, dim=2) for tensor in (query, key, value)), strict=True)
    outputs = [
        F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True) for q, k, v in parts
    ]
    return torch.cat(outputs, 2).transpose(1, 2), None


@contextmanager
def _several_adapters() -> Iterator[None]:
    """PEFT warns of a second adapter, and where deleting one makes another the active one. Here both are meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _apply(optimizer: torch.optim.AdamW, adam: Adam) -> None:
    (group,) = optimizer.param_groups
    group.update(lr=adam.learning_rate, betas=(adam.beta1, adam.beta2), eps=adam.eps, weight_decay=adam.weight_decay)
    optimizer.step()
