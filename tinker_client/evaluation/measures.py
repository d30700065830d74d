"""What a model's episodes on some tasks show within a budget, and how two models differ on them."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from tinker_client.evaluation.episodes import Evaluation, Played, fits
from tinker_client.evaluation.statistics import (
    Interval,
    Outcomes,
    mean_difference,
    paired_difference,
    pass_at_k,
    success_rate,
)


@dataclass(frozen=True)
class Measures:
    """One model on some tasks within `budget` turns. Means and medians are per episode, NaN without episodes.

    episodes: the ones that were played; `broken` ones (the server failed) are in no other number.
    success_of_all: the success rate if every broken one had failed.
    pass_at_k: see `statistics.pass_at_k`. pass_at_k_tasks: over how many tasks it is. pass_at_k_without: the tasks
    that it leaves out because episodes of them broke, so that fewer than k are left.
    ceiling: see `ceiling`.
    with_...: episodes that have at least one. recovered: those of them with a failed craft that still succeed.
    """

    budget: int
    tasks: int
    episodes: int
    broken: int
    success: Interval
    success_of_all: float
    k: int
    pass_at_k: Interval
    pass_at_k_tasks: int
    pass_at_k_without: tuple[str, ...]
    ceiling: float | None
    turns: float
    failed_crafts: float
    failed_crafts_median: float
    repeated_failed_crafts: float
    repeated_failed_crafts_median: float
    invalid_turns: float
    cut_off_replies: float
    with_cut_off_reply: int
    with_failed_craft: int
    recovered: int
    action_tokens: float

    def to_json(self) -> dict[str, Any]:
        """As summary.json holds it: NaN is null."""
        return {name: _finite(value) for name, value in asdict(self).items()}


def measure(evaluation: Evaluation, tasks: Collection[str], budget: int, k: int) -> Measures:
    """The measures of the evaluation's episodes on `tasks` (ids), as they would be with `budget` turns."""
    played = [episode for episode in evaluation.episodes if episode.task_id in tasks]
    by_task = outcomes_by_task(played, budget)
    outcomes = list(by_task.values())
    enough = {task for task, outcome in by_task.items() if outcome.episodes >= k}
    failed = [_within(episode.failed_crafts, budget) for episode in played]
    repeated = [_within(episode.repeated_failed_crafts, budget) for episode in played]
    cut_off = [_within(episode.cut_off_replies, budget) for episode in played]
    hit = [episode for episode, count in zip(played, failed, strict=True) if count]
    broken = [task for task in evaluation.broken if task in tasks]
    return Measures(
        budget=budget,
        tasks=len(outcomes),
        episodes=len(played),
        broken=len(broken),
        success=success_rate(outcomes),
        success_of_all=_mean([episode.solved_within(budget) for episode in played] + [False] * len(broken)),
        k=k,
        pass_at_k=pass_at_k(outcomes, k),
        pass_at_k_tasks=len(enough),
        pass_at_k_without=tuple(sorted(set(broken) - enough)),
        ceiling=ceiling({episode.task_id for episode in played}, budget),
        turns=_mean([min(episode.turns, budget) for episode in played]),
        failed_crafts=_mean(failed),
        failed_crafts_median=_median(failed),
        repeated_failed_crafts=_mean(repeated),
        repeated_failed_crafts_median=_median(repeated),
        invalid_turns=_mean([_within(episode.invalid_turns, budget) for episode in played]),
        cut_off_replies=_mean(cut_off),
        with_cut_off_reply=sum(count > 0 for count in cut_off),
        with_failed_craft=len(hit),
        recovered=sum(episode.solved_within(budget) for episode in hit),
        action_tokens=_mean([sum(episode.reply_tokens[:budget]) for episode in played]),
    )


@dataclass(frozen=True)
class Comparison:
    """How `second` differs from `first` on the tasks that both played, within a budget.

    difference: of the success rates. better, worse, equal: tasks on which `second` succeeds more often, less, as often.
    both_solve: tasks that both solve at least once. turns: on these, the mean over tasks of the turns of the episodes
    that succeed, for each of the two. turns_difference: the difference of the two.
    """

    first: str
    second: str
    tasks: int
    difference: Interval
    better: int
    worse: int
    equal: int
    both_solve: int
    turns: tuple[float, float]
    turns_difference: Interval


def compare(first: Evaluation, second: Evaluation, tasks: Collection[str], budget: int) -> Comparison:
    """The comparison of two evaluations on `tasks` (ids) within `budget` turns."""
    one, other = (
        outcomes_by_task([episode for episode in evaluation.episodes if episode.task_id in tasks], budget)
        for evaluation in (first, second)
    )
    common = sorted(one.keys() & other.keys())
    outcomes = [[by_task[task] for task in common] for by_task in (one, other)]
    rates = [[outcome.successes / outcome.episodes for outcome in of_model] for of_model in outcomes]
    signs = Counter(np.sign(np.subtract(rates[1], rates[0])).tolist())
    solving = [_turns_of_successes(evaluation, budget) for evaluation in (first, second)]
    both = [task for task in common if task in solving[0] and task in solving[1]]
    turns = [[by_task[task] for task in both] for by_task in solving]
    return Comparison(
        first=first.name,
        second=second.name,
        tasks=len(common),
        difference=paired_difference(outcomes[0], outcomes[1]),
        better=signs[1.0],
        worse=signs[-1.0],
        equal=signs[0.0],
        both_solve=len(both),
        turns=(_mean(turns[0]), _mean(turns[1])),
        turns_difference=mean_difference(turns[0], turns[1]),
    )


def outcomes_by_task(played: Sequence[Played], budget: int) -> dict[str, Outcomes]:
    """How often each task was played, and solved within `budget` turns."""
    solved: dict[str, list[bool]] = defaultdict(list)
    for episode in played:
        solved[episode.task_id].append(episode.solved_within(budget))
    return {task: Outcomes(len(successes), sum(successes)) for task, successes in solved.items()}


def ceiling(tasks: Collection[str], budget: int) -> float | None:
    """The share of the tasks whose ideal run fits `budget` turns; None if one is not of the benchmark.

    The ideal run (`textcraft.facts.ideal_run`) asks only for names that it has seen. It bounds no player who guesses
    names or knows recipes by heart, and so saves look-ups.
    """
    fitting = [fits(task, budget) for task in tasks]
    return None if None in fitting or not fitting else fmean(map(float, map(bool, fitting)))


def _turns_of_successes(evaluation: Evaluation, budget: int) -> dict[str, float]:
    turns: dict[str, list[int]] = defaultdict(list)
    for episode in evaluation.episodes:
        if episode.solved_within(budget):
            turns[episode.task_id].append(episode.turns)
    return {task: fmean(counts) for task, counts in turns.items()}


def _within(numbers: Sequence[int], budget: int) -> int:
    return sum(number <= budget for number in numbers)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def _median(values: Sequence[float]) -> float:
    return float(median(values)) if values else math.nan


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
