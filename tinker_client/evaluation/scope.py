"""What a report is about: models, budgets, and the sets of tasks that are reported together."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from textcraft.facts import BUDGETS
from tinker_client.errors import UserError
from tinker_client.evaluation.episodes import Evaluation, benchmark_task, fits
from tinker_client.evaluation.published import difficulty_key


@dataclass(frozen=True)
class TaskSet:
    """Tasks (ids) that are reported together, and their depths in ascending order.

    key: what post.json calls them, None if the post has no such set.
    """

    key: str | None
    label: str
    depths: tuple[int, ...]
    tasks: frozenset[str]


@dataclass(frozen=True)
class Scope:
    """What is reported: which models, within which budgets, on which sets of tasks, with which k of pass@k."""

    evaluations: tuple[Evaluation, ...]
    budgets: tuple[int, ...]
    k: int
    sets: tuple[TaskSet, ...]
    depths: tuple[TaskSet, ...]

    def budgets_of(self, evaluation: Evaluation) -> list[int]:
        """The budgets that the evaluation can answer for."""
        return [budget for budget in self.budgets if budget <= evaluation.max_turns]


def scope(evaluations: Sequence[Evaluation], budgets: Sequence[int] | None = None, k: int | None = None) -> Scope:
    """What there is to report about the evaluations.

    budgets: by default the one that each evaluation was played with, and 75 and 150 as far as the longest goes, so
    that every evaluation is in the tables. k: by default the episodes a task.
    Raises UserError for a budget that no evaluation has played.
    """
    longest = max(evaluation.max_turns for evaluation in evaluations)
    if budgets is None:
        played = (evaluation.max_turns for evaluation in evaluations)
        budgets = (*played, *(budget for budget in BUDGETS if budget <= longest))
    budgets = sorted(set(budgets))
    if budgets[-1] > longest:
        raise UserError(f"no evaluation was played with {max(budgets)} turns: the longest one has {longest}")
    if k is None:
        k = max((episode.episode + 1 for e in evaluations for episode in e.episodes), default=1)
    return Scope(tuple(evaluations), tuple(budgets), k, tuple(_sets(evaluations)), tuple(_depths(evaluations)))


def _sets(evaluations: Sequence[Evaluation]) -> Iterator[TaskSet]:
    """The tasks of each difficulty; of the hard ones, those that fit 75 turns first, on which the post reports."""
    for difficulty, tasks in _grouped(evaluations, lambda task: task[1]).items():
        fitting = {task: depth for task, depth in tasks.items() if fits(task, BUDGETS[0])}
        if difficulty == "hard" and fitting and len(fitting) < len(tasks):
            yield _set(difficulty, fitting, fit_75=True)
        yield _set(difficulty, tasks, fit_75=len(fitting) == len(tasks))


def _set(difficulty: str, tasks: Mapping[str, int], *, fit_75: bool) -> TaskSet:
    depths = sorted(set(tasks.values()))
    span = f"depth {depths[0]}" + (f"-{depths[-1]}" if len(depths) > 1 else "")
    fit = " that fit 75 turns" if fit_75 and difficulty == "hard" else ""
    key = difficulty_key(difficulty, depths, len(tasks), fit_75=fit_75) if _of_val(tasks) else None
    return TaskSet(key, f"{difficulty}{fit}, {span} ({len(tasks)})", tuple(depths), frozenset(tasks))


def _depths(evaluations: Sequence[Evaluation]) -> Iterator[TaskSet]:
    for depth, tasks in _grouped(evaluations, lambda task: task[0]).items():
        key = f"depth_{depth}" if _of_val(tasks) else None
        yield TaskSet(key, f"depth {depth} ({len(tasks)})", (depth,), frozenset(tasks))


def _of_val(tasks: Iterable[str]) -> bool:
    """Whether all are of the split that the post evaluates on."""
    found = map(benchmark_task, tasks)
    return all(task is not None and task.split == "val" for task in found)


def _grouped(evaluations: Sequence[Evaluation], key: Callable[[tuple[int, str]], Any]) -> dict[Any, dict[str, int]]:
    """The tasks that any evaluation played, by what `key` says of their (depth, difficulty), from the shallowest on."""
    groups: dict[Any, dict[str, int]] = {}
    found = {p.task_id: (p.depth, p.difficulty) for evaluation in evaluations for p in evaluation.episodes}
    for task, kind in sorted(found.items(), key=lambda item: item[1]):
        groups.setdefault(key(kind), {})[task] = kind[0]
    return groups
