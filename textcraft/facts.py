"""What the benchmark asks of a perfect player: how long an ideal run is, and how many tasks fit a budget at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, get_args

from rich import box
from rich.console import Console
from rich.table import Table

from textcraft.oracle import lookup_rounds, plan_crafts
from textcraft.world import Difficulty, Split, Task, load_tasks, load_world

BUDGETS = (75, 150)


@dataclass(frozen=True, slots=True)
class IdealRun:
    """The shortest run of one task that looks every recipe up and asks only for names that it has seen: breadth-first
    look-ups, one craft an item, one finish. Who guesses names, or knows recipes by heart, needs fewer turns.

    crafts: craft calls.
    turns: all calls, at one a turn.
    """

    task: Task
    crafts: int
    turns: int


def ideal_run(task: Task) -> IdealRun:
    """The ideal run of a task of the benchmark."""
    world = load_world()
    crafts = len(plan_crafts(world, task.targets, task.inventory))
    return IdealRun(task, crafts, len(lookup_rounds(world, task.targets)) + crafts + 1)


def summarise(runs: Sequence[IdealRun]) -> dict[str, Any]:
    """The figures of some tasks. `fit_B`: ideal runs within B turns. `ceiling_B`: their share, which no policy that
    looks every recipe up and asks only for names that it has seen can exceed. `beyond_B`: tasks that not even a policy
    that knows every recipe can finish in B.
    """
    crafts, turns = [run.crafts for run in runs], [run.turns for run in runs]
    figures: dict[str, Any] = {
        "tasks": len(runs),
        "crafts_median": median(crafts),
        "crafts_range": [min(crafts), max(crafts)],
        "ideal_turns_median": median(turns),
        "ideal_turns_range": [min(turns), max(turns)],
    }
    for budget in BUDGETS:
        fitting = [run.turns for run in runs if run.turns <= budget]
        figures[f"fit_{budget}"] = len(fitting)
        figures[f"ceiling_{budget}"] = len(fitting) / len(runs)
        figures[f"ideal_turns_median_fit_{budget}"] = median(fitting) if fitting else None
        figures[f"beyond_{budget}"] = sum(run.crafts + 1 > budget for run in runs)
    return figures


def facts() -> dict[str, Any]:
    """Split -> `all`, `by_difficulty` (easy, ...) and `by_depth` ("2", ...), each with the figures of `summarise`."""
    splits: tuple[Split, ...] = ("val", "train")
    return {split: _split_facts([ideal_run(task) for task in load_tasks(split)]) for split in splits}


def _split_facts(runs: Sequence[IdealRun]) -> dict[str, Any]:
    return {
        "all": summarise(runs),
        "by_difficulty": {
            difficulty: summarise([run for run in runs if run.task.difficulty == difficulty])
            for difficulty in get_args(Difficulty)
        },
        "by_depth": {
            str(depth): summarise([run for run in runs if run.task.depth == depth])
            for depth in sorted({run.task.depth for run in runs})
        },
    }


def print_facts(figures: dict[str, Any], console: Console) -> None:
    """One table a split, and a warning for training tasks that nobody can finish within a budget."""
    for split, groups in figures.items():
        table = Table(title=f"TextCraft-Synth, {split}", box=box.SIMPLE, padding=(0, 1), collapse_padding=True)
        for header in ("", "tasks", "crafts", "turns"):
            table.add_column(header, justify="right", no_wrap=True)
        for budget in BUDGETS:
            table.add_column(f"fit {budget}", justify="right", no_wrap=True)
        for difficulty, row in groups["by_difficulty"].items():
            table.add_row(*_cells(difficulty, row))
        table.add_section()
        for depth, row in groups["by_depth"].items():
            table.add_row(*_cells(f"depth {depth}", row))
        table.add_section()
        table.add_row(*_cells("all", groups["all"]))
        console.print(table)
    console.print(
        "Median and range over tasks of an ideal run: breadth-first look-ups, one craft an item, one finish, one "
        "call a turn. The share of tasks that fit is the ceiling on the success of who asks only for names they have "
        "seen."
    )
    train = figures["train"]["all"]
    for budget in BUDGETS:
        console.print(
            f"[yellow]warning:[/] {train['tasks'] - train[f'fit_{budget}']} of the {train['tasks']} train tasks "
            f"do not fit {budget} turns, {train[f'beyond_{budget}']} of them not even without a single look-up: leave "
            "them out of training."
        )


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    spans = [
        f"{row[f'{what}_median']:g} ({low}-{high})"
        for what in ("crafts", "ideal_turns")
        for low, high in [row[f"{what}_range"]]
    ]
    shares = [f"{row[f'fit_{budget}']} ({row[f'ceiling_{budget}']:.0%})" for budget in BUDGETS]
    return [name, str(row["tasks"]), *spans, *shares]
