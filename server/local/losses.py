"""The four losses of a Tinker server, token by token, as SkyRL's GPU backends compute them (its ppo_utils.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from tinker_client.errors import UserError

LossName = Literal["cross_entropy", "importance_sampling", "ppo", "cispo"]

# Beyond it a ratio of 5e8 is clipped anyway, and its exponential would overflow into a gradient of inf * 0.
_LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Loss:
    """A loss by Tinker's name; with r the importance ratio (trainer's over sampler's probability), A the advantage:

    cross_entropy: -log p             importance_sampling: -r A
    ppo: -min(r A, clip(r) A)         cispo: -stop_gradient(clip(r)) A log p

    clip keeps r between clip_low and clip_high; PPO: Schulman et al. 2017, eq. 7; CISPO: MiniMax-M1, arXiv 2506.13585.
    """

    name: LossName
    clip_low: float = 0.8
    clip_high: float = 1.2

    @classmethod
    def of_request(cls, name: str, config: Mapping[str, float] | None) -> "Loss":
        """The loss of a request's `loss_fn` and `loss_fn_config`. Raises UserError for one that is not of the four."""
        if name not in get_args(LossName):
            raise UserError(f"the local engine has no loss {name}: use {', '.join(get_args(LossName))}")
        config = config or {}
        return cls(
            cast(LossName, name),
            config.get("clip_low_threshold", cls.clip_low),
            config.get("clip_high_threshold", cls.clip_high),
        )

    @property
    def is_policy_loss(self) -> bool:
        """Whether the sampler's logprobs and advantages enter it."""
        return self.name != "cross_entropy"

    def of_tokens(self, logprobs: Tensor, sampled: Tensor, advantages: Tensor) -> Tensor:
        """Each token's loss, before it is weighted; all of shape [tokens], as the result."""
        log_ratio = logprobs - sampled
        match self.name:
            case "cross_entropy":
                return -logprobs
            case "importance_sampling":
                return -log_ratio.exp() * advantages
            case "ppo":
                ratio = _bounded_exp(log_ratio)
                return -torch.minimum(ratio * advantages, self._clip(ratio) * advantages)
            case "cispo":
                return -self._clip(_bounded_exp(log_ratio)).detach() * advantages * logprobs

    def is_clipped(self, logprobs: Tensor, sampled: Tensor, advantages: Tensor) -> Tensor:
        """Whether clipping changes a token's gradient [tokens]: PPO's to zero, CISPO's to that of the threshold."""
        ratio = _bounded_exp(logprobs - sampled)
        if self.name == "cispo":
            return ratio != self._clip(ratio)
        return self._clip(ratio) * advantages < ratio * advantages

    def _clip(self, ratio: Tensor) -> Tensor:
        return ratio.clamp(self.clip_low, self.clip_high)


def _bounded_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()
