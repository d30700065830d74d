"""How often the report's 95 % intervals hold the true value: `python benchmarks/coverage.py` simulates evaluations.

Tasks are drawn with unequal chances of success (beta-distributed, so that two episodes of one task are alike with the
given correlation), then played. A bootstrap over tasks (percentile) stands beside our interval, the same data for both.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tinker_client.evaluation.statistics import Interval, Outcomes, paired_difference, pass_at_k, success_rate

RATES = (0.05, 0.14, 0.5)
BOOTSTRAPS = 1000


@dataclass(frozen=True)
class Config:
    evaluations: int = 1000
    """Simulated evaluations of each kind."""
    tasks: tuple[int, ...] = (44, 15)
    """Tasks of an evaluation."""
    rollouts: int = 4
    """Episodes of each task."""
    correlations: tuple[float, ...] = (0.0, 0.3, 0.6)
    """Between two episodes of one task."""
    seed: int = 0


def chances(rng: np.random.Generator, rate: float, correlation: float, size: int) -> np.ndarray:
    """The tasks' chances of success, shape (size,), with mean `rate`."""
    if correlation == 0.0:
        return np.full(size, rate)
    strength = 1 / correlation - 1
    return rng.beta(rate * strength, (1 - rate) * strength, size)


def covers(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def bootstrap(rng: np.random.Generator, successes: np.ndarray, rollouts: int) -> Interval:
    """The percentile bootstrap over tasks."""
    draws = rng.integers(len(successes), size=(BOOTSTRAPS, len(successes)))
    means = successes[draws].mean(axis=1) / rollouts
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(successes.mean() / rollouts), float(low), float(high))


def coverage(config: Config, tasks: int, rate: float, correlation: float) -> Iterator[tuple[float, ...]]:
    """For each evaluation: whether success, its bootstrap, pass@k and the difference to a twin are covered, and the
    width of our success interval and of the bootstrap's."""
    rng = np.random.default_rng([config.seed, tasks, int(rate * 100), int(correlation * 100)])
    k = config.rollouts
    pool = chances(rng, rate, correlation, 1_000_000)
    true_pass = float(np.mean(1 - (1 - pool) ** k))
    for _ in range(config.evaluations):
        of_tasks = chances(rng, rate, correlation, tasks)
        successes = rng.binomial(k, of_tasks)
        outcomes = [Outcomes(k, int(count)) for count in successes]
        ours, theirs = success_rate(outcomes), bootstrap(rng, successes, k)
        twin = rng.binomial(k, of_tasks)
        yield (
            covers(ours, rate),
            covers(theirs, rate),
            covers(pass_at_k(outcomes, k), true_pass),
            covers(paired_difference(successes / k, twin / k), 0.0),
            ours.high - ours.low,
            theirs.high - theirs.low,
        )


def main(config: Config) -> None:
    columns = ("success", "boot-\nstrap", f"pass@{config.rollouts}", "differ-\nence", "width", "width\nboot.")
    table = Table("tasks", "true\nrate", "corre-\nlation", *columns)
    lowest = 1.0
    for tasks in config.tasks:
        for rate in RATES:
            for correlation in config.correlations:
                found = np.mean([*coverage(config, tasks, rate, correlation)], axis=0)
                table.add_row(str(tasks), f"{rate}", f"{correlation}", *(f"{value:.3f}" for value in found))
                lowest = min(lowest, float(found[0])) if tasks == config.tasks[0] else lowest
    console = Console()
    console.print(table)
    console.print(
        f"Share of {config.evaluations} evaluations with {config.rollouts} episodes a task whose interval holds the "
        f"true value, and mean widths. Lowest of success with {config.tasks[0]} tasks: {lowest:.3f} (aim: 0.92)."
    )


if __name__ == "__main__":
    main(tyro.cli(Config))
