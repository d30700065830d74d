"""Which tasks a script plays, and in which order."""

import random
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, zip_longest

from textcraft import Task, load_tasks
from textcraft.facts import ideal_run
from textcraft.world import Difficulty, Split
from tinker_client.errors import UserError

# The sample that `--limit` takes is part of what a reported number means, so no flag changes it.
_SAMPLE_SEED = 0


def select_tasks(
    split: Split,
    difficulty: Difficulty | None = None,
    depths: Collection[int] | None = None,
    ids: Collection[str] | None = None,
    *,
    limit: int | None = None,
    fits_budget: int | None = None,
) -> list[Task]:
    """The tasks that pass every filter; at most `limit` of them, a fixed sample taken evenly over the depths.

    fits_budget: only tasks whose ideal run takes at most so many turns.

    Raises UserError if an id does not exist in the split or nothing is left.
    """
    tasks = load_tasks(split, difficulty, depths)
    if ids is not None:
        known = {task.id for task in load_tasks(split)}
        if unknown := sorted(set(ids) - known):
            raise UserError(f"no task {unknown[0]!r} in the {split} split: ids look like {min(known)!r}")
        tasks = [task for task in tasks if task.id in ids]
    if fits_budget is not None:
        tasks = [task for task in tasks if ideal_run(task).turns <= fits_budget]
    if limit is not None:
        tasks = list(_evenly_over_depths(tasks))[:limit]
    if not tasks:
        raise UserError(
            f"no {split} task is left after the filters (difficulty {difficulty}, depths {depths}, limit {limit}, "
            f"fits budget {fits_budget}): easy is depth 2-3, medium 4-6, hard 7-9, extreme 10-12"
        )
    return tasks


def task_order(tasks: Sequence[Task], seed: int) -> Iterator[Task]:
    """An endless order: every task once in a random order, then all again in another."""
    epoch = 0
    while True:
        yield from random.Random(f"{seed}/{epoch}").sample(tasks, len(tasks))
        epoch += 1


def _evenly_over_depths(tasks: Sequence[Task]) -> Iterator[Task]:
    """One task of each depth in turn, those of one depth in a fixed random order."""
    by_depth = [
        random.Random(_SAMPLE_SEED).sample(same, len(same))
        for depth in sorted({task.depth for task in tasks})
        if (same := [task for task in tasks if task.depth == depth])
    ]
    return (task for task in chain.from_iterable(zip_longest(*by_depth)) if task is not None)
