"""Rates and differences with 95 % intervals that know that episodes of one task are alike.

Functions of `Outcomes` give one interval. Those of arrays, `rate_bounds` and `difference_bounds`, give one for each of
many evaluations at once: their last axis is the tasks, the ones before it are whatever the caller likes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit  # the quantiles of scipy.stats, which takes a second to import

CONFIDENCE = 0.95
_UPPER = (1 + CONFIDENCE) / 2
_Z = float(ndtri(_UPPER))

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval. `value` is NaN if there was nothing to estimate it from."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcomes:
    """One task: how many episodes were played, and how many of them succeeded."""

    episodes: int
    successes: int


def success_rate(tasks: Sequence[Outcomes]) -> Interval:
    """The share of all episodes that succeeded. With one episode a task, the interval is Wilson's."""
    if not tasks:
        return _NOTHING
    rates, episodes = _rates(tasks)
    return _interval(rate_bounds(rates, trials=episodes, weights=episodes))


def pass_at_k(tasks: Sequence[Outcomes], k: int) -> Interval:
    """The mean over tasks of the chance that at least one of k episodes succeeds. Raises ValueError if k is below 1.

    For a task with c successes in n episodes it is 1 - C(n-c, k) / C(n, k), which has no bias (Chen et al. 2021,
    "Evaluating Large Language Models Trained on Code", eq. 1). Tasks with fewer than k episodes are left out.
    """
    if k < 1:
        raise ValueError(f"pass@{k} needs at least one episode")
    enough = [task for task in tasks if task.episodes >= k]
    if not enough:
        return _NOTHING
    chances = [1 - math.comb(t.episodes - t.successes, k) / math.comb(t.episodes, k) for t in enough]
    trials = np.array([task.episodes / k for task in enough])
    return _interval(rate_bounds(np.array(chances), trials, weights=np.ones(len(enough))))


def paired_difference(first: Sequence[Outcomes], second: Sequence[Outcomes]) -> Interval:
    """The mean over tasks of how much larger the success rate is in `second`; both hold the same tasks, in order."""
    if not first:
        return Interval(math.nan, -1.0, 1.0)
    (rates, episodes), (others, other_episodes) = _rates(first), _rates(second)
    return _interval(difference_bounds(rates, others, episodes, other_episodes))


def mean_difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """The mean of second - first over pairs, with the t interval of a paired test.

    The interval is infinite where the pairs do not show how far they vary: a single one, or all alike.
    """
    differences = np.array(second) - np.array(first)
    n = len(differences)
    if n < 2 or np.ptp(differences) == 0:
        return Interval(float(differences.mean()) if n else math.nan, -math.inf, math.inf)
    reach = float(stdtrit(n - 1, _UPPER) * differences.std(ddof=1) / math.sqrt(n))
    center = float(differences.mean())
    return Interval(center, center - reach, center + reach)


def rate_bounds(rates: Floats, trials: Floats, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """The weighted means of tasks' rates, and the bounds of their intervals.

    rates: shape (..., tasks). trials: how many independent trials each task's rate would be worth if its episodes were
    no more alike than those of different tasks, shape (tasks,). weights: of the tasks in the mean, shape (tasks,).
    Returns means, lower and upper bounds, each of shape (...).

    Wilson's score interval (1927) for an effective number of trials: p(1-p) over the variance of the mean, times the
    square of t(trials - 1) over t(tasks - 1) for not knowing that variance (Korn and Graubard 1998, "Confidence
    intervals for proportions with small expected number of positive counts estimated from survey data"; Franco, Little,
    Louis and Slud 2019, "Comparative study of confidence intervals for proportions in complex sample surveys", for
    Wilson's). A task's rate has the variance p(1-p) (r + (1-r) / trials), where r is the correlation of two of its
    trials, so that an unequal number of episodes counts as what it is: at r = 1 the mean is worth
    (sum of weights)^2 / (sum of squared weights) trials, Kish's number, and the design effect of the success rate goes
    up to sum n^2 / sum n. A variance estimated from the tasks' distances to the mean could not know this: a task with
    most of the episodes is the mean.

    r is the correlation that explains how far the tasks' rates lie apart, each task counted by what it tells of r,
    which is nothing for a task of one trial. With few successes it comes out too small as often as not. So it is
    estimated with one pseudo-task more, half of it solved and half not, and kept between 0 and 1, which it also is
    where nothing or everything succeeds. benchmarks/coverage.py shows what this gives.
    """
    tasks, total = rates.shape[-1], trials.sum()
    means = rates @ weights / weights.sum()
    center = (rates.sum(axis=-1) + 0.5) / (tasks + 1)
    one_trial = center * (1 - center)
    pseudo_square = ((1 - center) ** 2 + center**2) / 2
    per_task = trials.mean()
    telling, pseudo_telling = 1 - 1 / trials, 1 - 1 / per_task
    known = telling @ telling + pseudo_telling**2
    squares = (rates - center[..., None]) ** 2 / one_trial[..., None]
    excess = (squares - 1 / trials) @ telling + (pseudo_square / one_trial - 1 / per_task) * pseudo_telling
    alike = np.clip(excess / known, 0.0, 1.0) if known > 0 else np.zeros_like(center)
    effective = weights.sum() ** 2 / (alike * (weights @ weights) + (1 - alike) * (weights**2 / trials).sum())
    if tasks > 1:
        effective = effective * (stdtrit(total - 1, _UPPER) / stdtrit(tasks - 1, _UPPER)) ** 2
    return (
        means,
        np.maximum(1 - _score_upper(1 - means, effective), 0.0),
        np.minimum(_score_upper(means, effective), 1.0),
    )


def difference_bounds(
    first: Floats, second: Floats, first_episodes: Floats, second_episodes: Floats
) -> tuple[Floats, Floats, Floats]:
    """The mean over tasks of second - first, and the bounds of its interval.

    first, second: success rates, shape (..., tasks). first_episodes, second_episodes: of each task, shape (tasks,).
    Returns means, lower and upper bounds, each of shape (...).

    The unit is the task: its difference lies in [-1, 1], and how far the differences vary is seen between tasks,
    whatever the reason. With one episode a task, this is the interval of Agresti and Min (2005), "Simple improved
    confidence intervals for comparing matched proportions", with a t quantile: two pseudo-pairs are added, one without
    difference and half a one in each direction, so that the interval is never empty. With more episodes, a pair of
    single episodes would vary more than a task's difference does. The ratio of the two variances says how many pairs a
    task is worth, as in Rao and Scott (1992), "A simple method for the analysis of clustered binary data", and by so
    much the two pseudo-pairs weigh less. The ratio is estimated with one pseudo-task more, where it is 1, and kept
    between 1 and the episodes of a task (their harmonic mean, of the model that has fewer).

    Where few pairs differ, the data show too little of how far they vary. But values in {-1, 0, 1} with the mean d vary
    by |d| (1 - |d|) at least; so the interval also holds every d that Wilson's score test with this variance would not
    reject. benchmarks/coverage.py shows what this gives.
    """
    differences = second - first
    tasks = differences.shape[-1]
    means = differences.mean(axis=-1)
    of_pairs = (second * (1 - first) + first * (1 - second)).sum(axis=-1) - tasks * means**2
    of_tasks = ((differences - means[..., None]) ** 2).sum(axis=-1)
    most = min(tasks / (1 / episodes).sum() for episodes in (first_episodes, second_episodes))
    worth = np.clip((of_pairs + 1) / (of_tasks + 1), 1.0, most)
    pairs = tasks * worth + 2
    center = worth * differences.sum(axis=-1) / pairs
    pseudo_squares = ((1 - center) ** 2 + (1 + center) ** 2) / 2 + center**2
    squares = worth**2 * ((differences - center[..., None]) ** 2).sum(axis=-1) + pseudo_squares
    reach = stdtrit(tasks + 1, _UPPER) * np.sqrt(squares) / pairs
    upper = np.fmax(center + reach, _score_upper(center, pairs))
    lower = -np.fmax(reach - center, _score_upper(-center, pairs))
    return means, np.maximum(lower, -1.0), np.minimum(upper, 1.0)


_NOTHING = Interval(math.nan, 0.0, 1.0)


def _score_upper(rate: Floats, n: Floats) -> Floats:
    """The upper bound of Wilson's score interval for rates seen in `n` trials, where `n` need not be whole.

    The largest p >= 0 with (p - rate)^2 <= z^2 p (1 - p) / n; NaN where there is none, as `rate` may be negative.
    """
    k = _Z**2 / n
    root = k * (k + 4 * rate * (1 - rate))
    return np.where(root >= 0, (2 * rate + k + np.sqrt(np.maximum(root, 0))) / (2 * (1 + k)), np.nan)


def _rates(tasks: Sequence[Outcomes]) -> tuple[Floats, Floats]:
    """The tasks' success rates and episodes."""
    episodes = np.array([task.episodes for task in tasks], float)
    return np.array([task.successes for task in tasks]) / episodes, episodes


def _interval(bounds: tuple[Floats, Floats, Floats]) -> Interval:
    return Interval(*(float(bound) for bound in bounds))
