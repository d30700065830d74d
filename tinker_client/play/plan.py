"""Which task each group of a training run plays: decided by the seed, and written down before it is played."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from textcraft import Task
from tinker_client.errors import UserError
from tinker_client.play.tasks import task_order
from tinker_client.run.jsonl import append_rows, read_rows, write_rows


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
