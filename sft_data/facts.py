"""How many turns the demonstrations take themselves, next to the ideal run, and what that leaves of a budget."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, get_args

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from sft_data.demonstrator import demonstrate
from sft_data.procedure import ROUNDS
from textcraft.facts import BUDGETS, ideal_run
from textcraft.world import Difficulty, Split, Task, load_tasks


@dataclass(frozen=True, slots=True)
class Runs:
    """One task: turns of the ideal run, and of the perfect demonstration of each round."""

    task: Task
    ideal: int
    turns: dict[int, int]


def facts(splits: Sequence[Split], console: Console) -> dict[str, Any]:
    """Split -> `all`, `by_difficulty` (easy, ...) and `by_depth` ("2", ...), each with the figures of `summarise`.

    Plays every task of `splits` in both rounds, with progress on `console`.
    """
    return {split: _split_facts(_play(split, console)) for split in splits}


def summarise(runs: Sequence[Runs]) -> dict[str, Any]:
    """The figures of some tasks, of the ideal run and of each round's demonstrations: turns, and tasks that fit.

    `fit_B`: tasks done within B turns; `ceiling_B`: their share, which a player who follows the procedure to the
    letter cannot exceed.
    """
    return {
        "tasks": len(runs),
        "ideal": _figures([run.ideal for run in runs]),
        **{f"round_{number}": _figures([run.turns[number] for run in runs]) for number in ROUNDS},
    }


def print_facts(figures: dict[str, Any], console: Console) -> None:
    """One table a split."""
    budgets = [f"fit\n{budget}" for budget in BUDGETS]
    columns = [header for number in ROUNDS for header in (f"round {number}\nturns", *budgets)]
    for split, groups in figures.items():
        table = Table(title=f"Perfect demonstrations, {split}", box=box.SIMPLE, padding=(0, 1), collapse_padding=True)
        for header in ("", "\ntasks", *columns):
            table.add_column(header, justify="right", no_wrap=True)
        for difficulty, row in groups["by_difficulty"].items():
            table.add_row(*_cells(difficulty, row))
        table.add_section()
        for depth, row in groups["by_depth"].items():
            table.add_row(*_cells(f"depth {depth}", row))
        table.add_section()
        table.add_row(*_cells("all", groups["all"]))
        console.print(table)
    console.print(
        "Median and range of turns over tasks. fit: tasks whose demonstration ends within so many turns; their share "
        "is the ceiling on the success of a model that follows the procedure to the letter."
    )


def _play(split: Split, console: Console) -> list[Runs]:
    tasks = load_tasks(split)
    return [
        Runs(
            task,
            ideal_run(task).turns,
            {number: _turns(demonstrate(task, procedure)) for number, procedure in ROUNDS.items()},
        )
        for task in track(tasks, f"playing {split}", console=console, transient=True, disable=not console.is_terminal)
    ]


def _turns(messages: Sequence[dict[str, Any]]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def _split_facts(runs: Sequence[Runs]) -> dict[str, Any]:
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


def _figures(turns: Sequence[int]) -> dict[str, Any]:
    figures: dict[str, Any] = {"turns_median": median(turns), "turns_range": [min(turns), max(turns)]}
    for budget in BUDGETS:
        figures[f"fit_{budget}"] = sum(count <= budget for count in turns)
        figures[f"ceiling_{budget}"] = figures[f"fit_{budget}"] / len(turns)
    return figures


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    cells = [name, str(row["tasks"])]
    for number in ROUNDS:
        figures = row[f"round_{number}"]
        low, high = figures["turns_range"]
        cells.append(f"{figures['turns_median']:g} ({low}-{high})")
        cells += [str(figures[f"fit_{budget}"]) for budget in BUDGETS]
    return cells
