"""Rates and differences with 95 % intervals that know that episodes of one task are alike."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit  # the quantiles of scipy.stats, which takes a second to import

CONFIDENCE = 0.95
_UPPER = (1 + CONFIDENCE) / 2


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
    counts = np.array([task.episodes for task in tasks], float)
    solved = np.array([task.successes for task in tasks], float)
    return _mean_rate(solved / counts, counts, trials=counts.sum()) if len(tasks) else _NOTHING


def pass_at_k(tasks: Sequence[Outcomes], k: int) -> Interval:
    """The mean over tasks of the chance that at least one of k episodes succeeds. Raises ValueError if k is below 1.

    For a task with c successes in n episodes it is 1 - C(n-c, k) / C(n, k), which has no bias (Chen et al. 2021,
    "Evaluating Large Language Models Trained on Code", eq. 1). Tasks with fewer than k episodes are left out.
    """
    if k < 1:
        raise ValueError(f"pass@{k} needs at least one episode")
    enough = [task for task in tasks if task.episodes >= k]
    chances = [1 - math.comb(t.episodes - t.successes, k) / math.comb(t.episodes, k) for t in enough]
    trials = sum(task.episodes for task in enough) / k
    return _mean_rate(np.array(chances), np.ones(len(enough)), trials) if enough else _NOTHING


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """The mean of second - first over tasks, where both hold one success rate a task, in the same order.

    A t interval over the tasks' differences, to which one pseudo-task without difference and half a one in each
    direction are added: Agresti and Min (2005), "Simple improved confidence intervals for comparing matched
    proportions". So the interval is never empty.
    """
    differences = np.array(second) - np.array(first)
    if len(differences) == 0:
        return Interval(math.nan, -1.0, 1.0)
    values = np.append(differences, [1.0, -1.0, 0.0])
    weights = np.append(np.ones(len(differences)), [0.5, 0.5, 1.0])
    center = np.average(values, weights=weights)
    error = math.sqrt(np.average((values - center) ** 2, weights=weights) / weights.sum())
    reach = float(stdtrit(weights.sum() - 1, _UPPER)) * error
    return Interval(float(differences.mean()), max(float(center) - reach, -1.0), min(float(center) + reach, 1.0))


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


_NOTHING = Interval(math.nan, 0.0, 1.0)


def _mean_rate(rates: np.ndarray, weights: np.ndarray, trials: float) -> Interval:
    """The weighted mean of the tasks' rates; `trials` is how many independent trials they hold at most.

    Wilson's interval with an effective number of trials: `trials` over the design effect (the variance of the mean as
    it is between tasks, over what it would be were all trials independent), times the square of t(trials - 1) over
    t(tasks - 1) for not knowing that variance (Korn and Graubard 1998, "Confidence intervals for proportions with small
    expected number of positive counts estimated from survey data"; Franco, Little, Louis and Slud 2019, "Comparative
    study of confidence intervals for proportions in complex sample surveys", for Wilson's).

    With few successes, the variance between tasks comes out too small as often as not. So it is estimated with one
    pseudo-task more, half of it solved and half not, and the design effect is kept between 1 and the trials per task,
    which it also is where nothing or everything succeeds. benchmarks/coverage.py shows what this gives.
    """
    tasks = len(rates)
    mean = float(np.average(rates, weights=weights))
    values = np.append(rates, [1.0, 0.0])
    scales = np.append(weights / weights.mean(), [1.0, 1.0])
    counts = np.append(np.ones(tasks), [0.5, 0.5])
    center = np.average(values, weights=scales * counts)
    between = np.average((scales * (values - center)) ** 2, weights=counts)
    per_task = trials / tasks
    effect = np.clip(between / (center * (1 - center)) * per_task, 1.0, per_task)
    effective = trials / effect
    if tasks > 1:
        effective *= (stdtrit(trials - 1, _UPPER) / stdtrit(tasks - 1, _UPPER)) ** 2
    return Interval(mean, *_wilson(mean, float(effective)))


def _wilson(rate: float, n: float) -> tuple[float, float]:
    """Wilson's score interval (1927) for a rate seen in `n` trials, where `n` need not be whole."""
    z = float(ndtri(_UPPER))
    center = (rate + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max(center - reach, 0.0), min(center + reach, 1.0)
