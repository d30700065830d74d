"""Drawing tokens: the distribution that is drawn from, and the random numbers it is drawn with."""

import numpy as np
import pytest
import torch

from server.local.sampling import Draw, draw, uniform

LOGITS = torch.tensor([2.0, -torch.inf, 0.5, 1.0, -1.0, 0.5, -3.0])


def frequencies(number: int, **settings: float) -> torch.Tensor:
    draws = [
        Draw(**{"seed": seed, "index": 3, "temperature": 1.0, "top_p": 1.0, "top_k": -1, **settings})
        for seed in range(number)
    ]
    tokens, _ = draw(LOGITS.expand(number, -1), draws)
    return torch.bincount(torch.tensor(tokens), minlength=len(LOGITS)) / number


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, LOGITS),
        ({"temperature": 0.5}, LOGITS / 0.5),
        ({"temperature": 3.0}, LOGITS / 3),
        # Of equal logits the earlier token is kept.
        ({"top_k": 3}, torch.where(torch.tensor([1, 0, 1, 1, 0, 0, 0]) > 0, LOGITS, -torch.inf)),
        ({"top_k": 100}, LOGITS),
        # 0.56 alone is not enough, 0.56 + 0.21 is.
        ({"top_p": 0.7}, torch.where(torch.tensor([1, 0, 0, 1, 0, 0, 0]) > 0, LOGITS, -torch.inf)),
        # Of the three that top-k leaves, the first has 0.63.
        ({"top_k": 3, "top_p": 0.6}, torch.where(torch.tensor([1, 0, 0, 0, 0, 0, 0]) > 0, LOGITS, -torch.inf)),
    ],
)
def test_tokens_come_as_often_as_they_are_likely(settings: dict[str, float], expected: torch.Tensor) -> None:
    number = 40_000
    probabilities = expected.softmax(dim=-1)
    seen = frequencies(number, **settings)
    assert seen[probabilities == 0].sum() == 0
    bound = 4.5 * (probabilities * (1 - probabilities) / number).sqrt() + 1e-9
    assert ((seen - probabilities).abs() <= bound).all()


def test_logprobs_are_those_of_the_unchanged_distribution() -> None:
    draws = [Draw(seed, 0, 0.3, 0.8, 4) for seed in range(50)]
    tokens, logprobs = draw(LOGITS.expand(50, -1), draws)
    assert torch.equal(torch.tensor(logprobs), LOGITS.log_softmax(dim=-1)[tokens])


def test_uniform_numbers_are_uniform_and_independent() -> None:
    """Over neighbouring seeds (the samples of one prompt) and neighbouring positions (the tokens of one reply)."""
    seeds, indices = np.meshgrid(np.arange(300), np.arange(300))
    numbers = uniform(seeds.ravel().tolist(), indices.ravel().tolist())
    assert len(np.unique(numbers)) == 90_000
    assert 0 <= numbers.min() < numbers.max() < 1
    grid = numbers.reshape(300, 300)
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert ((counts - 4500) ** 2 / 4500).sum() < 50  # chi square, 19 degrees of freedom: 1 in 10,000
    for shifted in (grid[1:], grid[:, 1:].T, grid[1:, 1:]):
        other = grid[: len(shifted)] if shifted.shape[1] == 300 else grid[: shifted.shape[0], : shifted.shape[1]]
        assert abs(np.corrcoef(shifted.ravel(), other.ravel())[0, 1]) < 0.015


def test_any_whole_number_is_a_seed() -> None:
    numbers = uniform([0, 1, -1, 2**31, 2**63, 2**64 - 2], [0] * 6)
    assert len(set(numbers.tolist())) == 6
