"""The base model, snapshots of adapters on it, and the forward pass that samples from a snapshot.

Training runs transformers' own modules. Sampling computes a few dozen tokens at a time, where the modules' many small
operations cost more than their arithmetic, so it has a forward pass of its own over merged weights: q, k and v in one
matrix, gate and up in another, the adapter added in. Tests compare it with transformers for every architecture.

Equal bits: a row of `MergedModel.hidden` depends on that row's token, position and attention only, not on the other
rows, as long as their number is a multiple of ROWS. Matrix products of one to three rows take other kernels than those
of four and more (measured with torch 2.15's MKL on AVX2, with one and two threads).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from tinker_client.errors import UserError

F = nn.functional

ROWS = 8
ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")  # SmolLM2 is a Llama

# What is appended to the cache and looked up in it, per layer: (layer, queries [rows, heads, head_dim],
# keys [rows, kv_heads, head_dim], values as the keys) -> attention's output [rows, heads * head_dim].
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def load_base(folder: str | Path) -> PreTrainedModel:
    """The model of a folder in transformers' format, in float32, ready for inference, without gradients.

    Raises UserError if the folder does not load, or holds a model that the sampler's forward pass does not compute.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        _refuse_unknown(config)
        transformers_logging.disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"no model can be loaded from {folder}: {reason}") from error
    return model.eval().requires_grad_(False)


def _refuse_unknown(config: Any) -> None:
    architecture = (config.architectures or ["unknown"])[0]
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if architecture not in ARCHITECTURES:
        reason = f"its architecture is {architecture}"
    elif config.hidden_act != "silu":
        reason = f"its activation is {config.hidden_act}, not silu"
    elif "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        reason = "it has layers of sliding attention"
    elif rope in ("dynamic", "longrope"):
        reason = f"its rotary embedding ({rope}) depends on the longest sequence of a batch"
    else:
        return
    raise UserError(f"the local engine runs dense {', '.join(ARCHITECTURES)} models, and not this one: {reason}")


class LoraPair(NamedTuple):
    """One linear layer's adapter: the layer's weight gets `scaling * b @ a`."""

    a: Tensor  # [rank, in_features]
    b: Tensor  # [out_features, rank]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The weights that one sampling client samples: the base with an adapter as it was at one moment.

    `adapter` maps a linear layer's path in the base model (`model.layers.3.self_attn.q_proj`) to copies of its LoRA
    matrices; an empty one means the base itself. Two snapshots are the same only if they are the same object, which is
    how the sampler knows whose keys and values it has cached.
    """

    adapter: Mapping[str, LoraPair]
    scaling: float


class _Linear(NamedTuple):
    weight: Tensor  # [out, in]
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class _Layer(NamedTuple):
    attention_norm: Tensor
    qkv: _Linear
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]: Qwen3 normalises every head
    out: _Linear
    mlp_norm: Tensor
    gate_up: _Linear
    down: _Linear


class MergedModel:
    """The base's weights with a snapshot's adapter merged in, and their forward pass.

    Shares the base's embeddings, norms and every linear layer that is neither fused nor adapted, so the base must not
    change. Raises ValueError if the adapter names a layer that the base has not.
    """

    def __init__(self, base: PreTrainedModel, snapshot: Snapshot) -> None:
        config = base.config
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._eps: float = config.rms_norm_eps
        self._embeddings: Tensor = base.get_input_embeddings().weight
        self._rotary = base.model.rotary_emb
        self._norm: Tensor = base.model.norm.weight
        unused = set(snapshot.adapter)

        def merged(path: str) -> _Linear:
            linear = base.get_submodule(path)
            pair = snapshot.adapter.get(path)
            if pair is None:
                return _Linear(linear.weight, linear.bias)
            unused.discard(path)
            return _Linear(torch.addmm(linear.weight, pair.b, pair.a, alpha=snapshot.scaling), linear.bias)

        with torch.inference_mode():
            self._layers = [
                self._layer(f"model.layers.{i}", layer, merged) for i, layer in enumerate(base.model.layers)
            ]
            self._head = merged("lm_head")
        if unused:
            raise ValueError(f"the base model has no linear layers {', '.join(sorted(unused))}")

    def _layer(self, path: str, module: Any, merged: Callable[[str], _Linear]) -> _Layer:
        attention, mlp = f"{path}.self_attn", f"{path}.mlp"
        qk_norm = None
        if hasattr(module.self_attn, "q_norm"):
            heads = [module.self_attn.q_norm.weight] * self.heads + [module.self_attn.k_norm.weight] * self.kv_heads
            qk_norm = torch.stack(heads)
        return _Layer(
            attention_norm=module.input_layernorm.weight,
            qkv=_fused(*(merged(f"{attention}.{name}") for name in ("q_proj", "k_proj", "v_proj"))),
            qk_norm=qk_norm,
            out=merged(f"{attention}.o_proj"),
            mlp_norm=module.post_attention_layernorm.weight,
            gate_up=_fused(merged(f"{mlp}.gate_proj"), merged(f"{mlp}.up_proj")),
            down=merged(f"{mlp}.down_proj"),
        )

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The last layer's normalised output [rows, hidden] for `tokens` [rows] at `positions` [rows] (int64).

        A row is one token of one conversation; `attend` knows which, and appends the rows' keys and values.
        """
        rows = len(tokens)
        rotated = self.heads + self.kv_heads
        cos, sin = self._rotation(positions)
        x = F.embedding(tokens, self._embeddings)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(self._rms_norm(x, layer.attention_norm)).view(rows, -1, self.head_dim)
            qk, values = qkv[:, :rotated], qkv[:, rotated:]
            if layer.qk_norm is not None:
                qk = F.rms_norm(qk, (self.head_dim,), eps=self._eps) * layer.qk_norm
            qk = torch.addcmul(qk * cos, qk.roll(self.head_dim // 2, dims=-1), sin)
            x = x + layer.out(attend(index, qk[:, : self.heads], qk[:, self.heads :], values))
            gate, up = layer.gate_up(self._rms_norm(x, layer.mlp_norm)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        return self._rms_norm(x, self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocabulary] of what `hidden` returned, or of some of its rows."""
        return self._head(hidden)

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._eps)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The rotary embedding as cosines and sines [rows, 1, head_dim] for `x * cos + roll(x) * sin`.

        transformers turns a head by `x * cos + rotate_half(x) * sin`; the sign that rotate_half gives the first half is
        in these sines.
        """
        cos, sin = self._rotary(self._embeddings, positions[None])
        first, second = sin[0].chunk(2, dim=-1)
        return cos[0, :, None], torch.cat([-first, second], dim=-1)[:, None]


def _fused(*linears: _Linear) -> _Linear:
    """Linear layers of one input as one; all of them have a bias or none."""
    biases = [linear.bias for linear in linears if linear.bias is not None]
    return _Linear(torch.cat([linear.weight for linear in linears]), torch.cat(biases) if biases else None)
