"""How often the report's 95 % intervals hold the true value: `python benchmarks/coverage.py` simulates evaluations.

Tasks are drawn with unequal chances of success (beta-distributed, so that two episodes of one task are alike with the
given correlation), then played. A second model solves its tasks more often by a given difference; what is hard for the
first one is hard for it too, or has nothing to do with it. A percentile bootstrap over tasks stands beside the success
rate's interval and a t interval over tasks beside the difference's, the same data for both.
"""

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from scipy.special import betaincinv, comb, stdtrit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tinker_client.evaluation.statistics import Floats, difference_bounds, rate_bounds

RATES = (0.05, 0.14, 0.5, 0.8)
CORRELATIONS = (0.0, 0.3, 0.6)  # between two episodes of one task
DIFFERENCES = (0.0, 0.1, 0.3)
K = 2  # of pass@k
BOOTSTRAPS = 400
QUANTILES = (np.arange(10_000) + 0.5) / 10_000  # of the tasks, from the hardest one on

# Episodes of each task, repeated over the tasks, of the first and of the second model.
ROLLOUTS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "1": ((1,), (1,)),
    "4": ((4,), (4,)),
    "1 to 4": ((4, 4, 3, 1), (4, 1, 4, 2)),
    "1 against 4": ((1,), (4,)),
    "40 of each tenth": ((40, *[1] * 9), (40, *[1] * 9)),
}


@dataclass(frozen=True)
class Config:
    evaluations: int = 2000
    """Simulated evaluations of each kind."""
    tasks: tuple[int, ...] = (12, 44, 150)
    """Tasks of an evaluation."""
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """One method in one setting: the share of its intervals that hold the true value, and their mean width."""

    coverage: float
    width: float


@functools.cache
def chances(rate: float, correlation: float) -> Floats:
    """The chances of success at `QUANTILES` of the tasks, with mean `rate`."""
    if correlation == 0.0:
        return np.full(len(QUANTILES), rate)
    strength = 1 / correlation - 1
    quantiles: Floats = betaincinv(rate * strength, (1 - rate) * strength, QUANTILES)
    return quantiles


def judge(low: Floats, high: Floats, truth: float) -> Found:
    held = (low - 1e-9 <= truth) & (truth <= high + 1e-9)
    return Found(float(held.mean()), float((high - low).mean()))


def rates(config: Config, tasks: int, kind: str) -> Iterator[dict[str, Found]]:
    """The success rate's interval, its bootstrap and that of pass@2, for each rate and correlation."""
    episodes = np.resize(ROLLOUTS[kind][0], tasks)
    for setting in product(RATES, CORRELATIONS):
        rng = np.random.default_rng([config.seed, tasks, *(round(100 * value) for value in setting)])
        pool = chances(*setting)
        solved = rng.binomial(episodes, rng.choice(pool, (config.evaluations, tasks)))
        _, low, high = rate_bounds(solved / episodes, episodes.astype(float), episodes.astype(float))
        found = {"success": judge(low, high, pool.mean())}
        draws = rng.multinomial(tasks, np.full(tasks, 1 / tasks), BOOTSTRAPS)
        low, high = np.percentile((solved @ draws.T) / (draws @ episodes), [2.5, 97.5], axis=1)
        found["bootstrap"] = judge(low, high, pool.mean())
        enough = episodes >= K
        if enough.any():
            passed = 1 - comb(episodes[enough] - solved[:, enough], K) / comb(episodes[enough], K)
            _, low, high = rate_bounds(passed, episodes[enough] / K, np.ones(passed.shape[1]))
            found[f"pass@{K}"] = judge(low, high, float((1 - (1 - pool) ** K).mean()))
        yield found


def differences(config: Config, tasks: int, kind: str, difference: float) -> Iterator[dict[str, Found]]:
    """The difference's interval and a t interval, for each rate, correlation and likeness of the two models' tasks."""
    first_episodes, second_episodes = (np.resize(pattern, tasks) for pattern in ROLLOUTS[kind])
    for rate, correlation, same in product(RATES, CORRELATIONS, (True, False)):
        if rate + difference > 1 or (correlation == 0 and not same):
            continue
        rng = np.random.default_rng([config.seed, tasks, round(100 * rate), round(100 * correlation), same])
        pools = chances(rate, correlation), chances(rate + difference, correlation)
        places = rng.integers(len(QUANTILES), size=(config.evaluations, tasks))
        others = places if same else rng.integers(len(QUANTILES), size=places.shape)
        first = rng.binomial(first_episodes, pools[0][places]) / first_episodes
        second = rng.binomial(second_episodes, pools[1][others]) / second_episodes
        truth = float(pools[1].mean() - pools[0].mean())
        means, low, high = difference_bounds(first, second, first_episodes, second_episodes)
        reach = stdtrit(tasks - 1, 0.975) * (second - first).std(axis=1, ddof=1) / tasks**0.5
        yield {"difference": judge(low, high, truth), "t": judge(means - reach, means + reach, truth)}


def cells(found: Iterable[Mapping[str, Found]], methods: Iterable[str]) -> list[str]:
    """For each method its lowest coverage over all settings and its mean width, empty if it was not tried."""
    settings = list(found)
    texts = []
    for method in methods:
        tried = [setting[method] for setting in settings if method in setting]
        lowest = min((of.coverage for of in tried), default=None)
        texts += ["", ""] if lowest is None else [f"{lowest:.3f}", f"{np.mean([of.width for of in tried]):.3f}"]
    return texts


def main(config: Config) -> None:
    of_rates = Table("episodes\na task", "tasks", title="Success rates")
    of_differences = Table("episodes\na task", "tasks", "true\ndifference", title="Differences of two models")
    shown = ("success", "bootstrap", f"pass@{K}"), ("difference", "t")
    for table, methods in zip((of_rates, of_differences), shown, strict=True):
        for method in methods:
            table.add_column(f"{method}\nlowest", justify="right")
            table.add_column("\nwidth", justify="right")
    for kind, tasks in product(ROLLOUTS, config.tasks):
        of_rates.add_row(kind, str(tasks), *cells(rates(config, tasks, kind), shown[0]))
        for difference in DIFFERENCES:
            found = differences(config, tasks, kind, difference)
            of_differences.add_row(kind, str(tasks), f"{difference}", *cells(found, shown[1]))
    console = Console()
    for table in (of_rates, of_differences):
        console.print(table)
    console.print(
        f"lowest: the share of {config.evaluations:,} evaluations whose interval holds the true value, in the worst of "
        f"the settings (success {', '.join(map(str, RATES))}; correlation of a task's episodes "
        f"{', '.join(map(str, CORRELATIONS))}; tasks that are hard for both models or for either by itself). "
        "width: the mean over the settings."
    )


if __name__ == "__main__":
    main(tyro.cli(Config))
