"""Drawing tokens: temperature, top-k, top-p, and random numbers that depend on a request's seed and position only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

GREEDY = 1e-5  # temperatures below this take the likeliest token, as vLLM's do


@dataclass(frozen=True)
class Draw:
    """How one row's token is drawn: `index` counts the tokens of the reply."""

    seed: int
    index: int
    temperature: float
    top_p: float  # in (0, 1]
    top_k: int  # all tokens if below 1

    @property
    def filtered(self) -> bool:
        """Whether some tokens may not be drawn."""
        return self.top_k > 0 or self.top_p < 1


def draw(logits: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """One token for each row of `logits` [rows, vocabulary], and its log-probability at temperature 1, unfiltered.

    A row's result does not depend on the other rows: everything goes along rows, whatever their number.
    """
    logprobs = logits.log_softmax(dim=-1)
    temperature = torch.tensor([max(row.temperature, GREEDY) for row in draws])
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature[:, None]
    if filtered := [number for number, row in enumerate(draws) if row.filtered]:
        scaled[filtered] = _filter(scaled[filtered], [draws[number] for number in filtered])
    cumulative = scaled.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    points = torch.from_numpy(uniform([row.seed for row in draws], [row.index for row in draws]))
    # The first token whose cumulative probability is above the point, so never one of probability 0.
    tokens = torch.searchsorted(cumulative, points[:, None] * cumulative[:, -1:], right=True)[:, 0]
    greedy = torch.tensor([row.temperature < GREEDY for row in draws])
    tokens = torch.where(greedy, logits.argmax(dim=-1), tokens.clamp(max=logits.shape[-1] - 1))
    return tokens.tolist(), logprobs.gather(1, tokens[:, None])[:, 0].tolist()


def _filter(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """`logits` with -inf for tokens that top-k and then, of what is left, top-p exclude."""
    vocabulary = logits.shape[-1]
    top_k = torch.tensor([row.top_k if row.top_k > 0 else vocabulary for row in draws])
    top_p = torch.tensor([row.top_p for row in draws], dtype=torch.float64)
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(torch.arange(vocabulary) >= top_k[:, None], -torch.inf)
    probabilities = ordered.softmax(dim=-1).double()
    likelier = probabilities.cumsum(dim=-1) - probabilities
    ordered = ordered.masked_fill(likelier >= top_p[:, None], -torch.inf)
    return torch.empty_like(logits).scatter_(1, order, ordered)


def uniform(seeds: Sequence[int], indices: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """For each (seed, index) a number in [0, 1), independent of the others, computed without a generator's state.

    SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) at the place
    `index` of the sequence that starts at the mixed seed; the upper 52 bits are the number.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    start = _mix(np.array([seed % 2**64 for seed in seeds], dtype=np.uint64) + golden)
    bits = _mix(start + (np.array(indices, dtype=np.uint64) + np.uint64(1)) * golden)
    return (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _mix(z: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
