"""Which tasks a script plays and in which order, and the plan of a training run."""

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path

from textcraft.world import Difficulty, Split
from tinker_client.errors import UserError
from tinker_client.play.environment import Environment, Task
from tinker_client.run.jsonl import append_rows, read_rows, write_rows

# The sample that `--limit` takes is part of what a reported number means, so no flag changes it.
_SAMPLE_SEED = 0


def select_tasks[T: Task](
    environment: Environment[T],
    split: Split,
    difficulty: Difficulty | None = None,
    depths: Collection[int] | None = None,
    ids: Collection[str] | None = None,
    *,
    limit: int | None = None,
    fits_budget: int | None = None,
) -> list[T]:
    """The tasks that pass every filter; at most `limit` of them, a fixed sample taken evenly over the depths.

    fits_budget: only tasks whose ideal run takes at most so many turns.

    Raises UserError if an id does not exist in the split or nothing is left.
    """
    tasks = list(environment.load_tasks(split, difficulty, depths))
    if ids is not None:
        known = {task.id for task in environment.load_tasks(split)}
        if unknown := sorted(set(ids) - known):
            raise UserError(f"no task {unknown[0]!r} in the {split} split: ids look like {min(known)!r}")
        tasks = [task for task in tasks if task.id in ids]
    if fits_budget is not None:
        tasks = [task for task in tasks if environment.ideal_turns(task) <= fits_budget]
    if limit is not None:
        tasks = list(_evenly_over_depths(tasks))[:limit]
    if not tasks:
        raise UserError(
            f"no {split} task is left after the filters (difficulty {difficulty}, depths {depths}, limit {limit}, "
            f"fits budget {fits_budget}): easy is depth 2-3, medium 4-6, hard 7-9, extreme 10-12"
        )
    return tasks


def task_order[T: Task](tasks: Sequence[T], seed: int) -> Iterator[T]:
    """An endless order: every task once in a random order, then all again in another."""
    epoch = 0
    while True:
        yield from random.Random(f"{seed}/{epoch}").sample(tasks, len(tasks))
        epoch += 1


def _evenly_over_depths[T: Task](tasks: Sequence[T]) -> Iterator[T]:
    """One task of each depth in turn, those of one depth in a fixed random order."""
    by_depth = [
        random.Random(_SAMPLE_SEED).sample(same, len(same))
        for depth in sorted({task.depth for task in tasks})
        if (same := [task for task in tasks if task.depth == depth])
    ]
    return (task for task in chain.from_iterable(zip_longest(*by_depth)) if task is not None)


@dataclass(frozen=True)
class PlannedGroup:
    """A group before it is played.

    step, group: the step it is planned for and its index there, from which its sampling seeds derive. With dynamic
    sampling a step may take further groups, and so train on this one earlier than planned.
    """

    step: int
    group: int
    task: Task


class Plan:
    """The groups of a run in the order of play, `size` a step, without an end.

    What has been asked for lies in the file `path`, one row a group, and is taken from there if the file exists: a run
    that goes on plays on in the same order.
    tasks: each is played once, in a random order, before any is played again.
    Raises UserError if the file names a task that is not among them.
    """

    def __init__(self, path: Path, tasks: Sequence[Task], size: int, seed: int) -> None:
        self._path = path
        self._size = size
        by_id = {task.id: task for task in tasks}
        rows = read_rows(path)
        if surplus := len(rows) % size:  # of a step whose writing was killed
            rows = rows[:-surplus]
            write_rows(path, rows)
        if unknown := [row.get("task_id") for row in rows if row.get("task_id") not in by_id]:
            raise UserError(f"{path} plans {unknown[0]}, which --difficulty or --depths leave out: give them as before")
        self._groups = [PlannedGroup(row["step"], row["group"], by_id[row["task_id"]]) for row in rows]
        self._order = islice(task_order(tasks, seed), len(rows), None)

    def __getitem__(self, number: int) -> PlannedGroup:
        """The group of this number, counted from 0 over the whole run."""
        while number >= len(self._groups):
            step = len(self._groups) // self._size + 1
            new = [PlannedGroup(step, group, task) for group, task in enumerate(islice(self._order, self._size))]
            append_rows(self._path, ({"step": p.step, "group": p.group, "task_id": p.task.id} for p in new))
            self._groups += new
        return self._groups[number]
