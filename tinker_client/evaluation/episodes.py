"""Evaluation directories as what statistics need: one small record an episode, cut at any budget."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textcraft import Task, load_tasks
from textcraft.facts import ideal_run
from textcraft.world import Split
from tinker_client.errors import UserError
from tinker_client.play.records import repeated
from tinker_client.run.jsonl import read_rows
from tinker_client.run.run_dir import read_config

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Played:
    """One episode. The turns of each kind are their numbers, from 1, so that a budget is a cut.

    solved: it succeeded, with its last turn. repeated: failed crafts that had failed before in this episode, as the
    same call: the same ingredients with the same counts for the same target.
    """

    task_id: str
    depth: int
    difficulty: str
    episode: int
    solved: bool
    turns: int
    failed_crafts: tuple[int, ...]
    repeated_failed_crafts: tuple[int, ...]
    invalid_turns: tuple[int, ...]
    cut_off_replies: tuple[int, ...]
    reply_tokens: tuple[int, ...]

    def solved_within(self, budget: int) -> bool:
        """Whether `budget` turns would have been enough. The prompt never tells the budget, so the play is the same."""
        return self.solved and self.turns <= budget


@dataclass(frozen=True)
class Evaluation:
    """What one model played.

    broken: the task of each episode that the server failed and that was not played again.
    max_turns: the budget that the episodes had. player: as `evaluate.py --player` takes it.
    source: what was evaluated, a run directory or a state path; None is the base model.
    state: the state path that `source` meant when it was evaluated, if that is on record.
    """

    name: str
    directories: tuple[Path, ...]
    episodes: tuple[Played, ...]
    broken: tuple[str, ...]
    max_turns: int
    player: str = "model"
    source: str | None = None
    state: str | None = None


def load_evaluations(arguments: Sequence[str], depths: Sequence[int] | None = None) -> list[Evaluation]:
    """The evaluations that `[NAME=]DIRECTORY ...` names; directories with the same name are one model's.

    A directory without a name has its folder's. `depths` keeps the tasks of these depths only.
    Raises UserError if a directory holds no episodes, or two of one model hold the same task or other models.
    """
    folders: dict[str, list[Path]] = {}
    names = [_split_name(argument) for argument in arguments]
    unnamed = [path.resolve().name for name, path in names if name is None]
    for name, path in names:
        short = path.resolve().name
        folders.setdefault(name or (short if unnamed.count(short) == 1 else str(path)), []).append(path)
    return [_load(name, paths, depths) for name, paths in folders.items()]


def latest_rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of a directory's episodes.jsonl, one an episode: where one broke and was played again, the later one."""
    return list({(row["task_id"], row["episode"]): row for row in read_rows(directory / "episodes.jsonl")}.values())


def played(row: Row) -> Played:
    """The record of one row of an episodes file, which is not broken."""
    turns = row["turns"]

    def numbers(matches: Callable[[Row], bool]) -> tuple[int, ...]:
        return tuple(number for number, turn in enumerate(turns, start=1) if matches(turn))

    return Played(
        task_id=row["task_id"],
        depth=row["depth"],
        difficulty=row["difficulty"],
        episode=row["episode"],
        solved=row["end"] == "success",
        turns=len(turns),
        failed_crafts=numbers(lambda turn: turn["kind"] == "failed_craft"),
        repeated_failed_crafts=repeated_failed_crafts(row),
        invalid_turns=numbers(lambda turn: turn["kind"] == "invalid"),
        cut_off_replies=numbers(lambda turn: turn["cut_off"]),
        reply_tokens=tuple(turn["reply_tokens"] for turn in turns),
    )


def repeated_failed_crafts(row: Row) -> tuple[int, ...]:
    """The numbers of the turns, from 1, whose craft failed after the same call had failed before in the episode."""
    failed = [(number, turn) for number, turn in enumerate(row["turns"], start=1) if turn["kind"] == "failed_craft"]
    again = repeated([turn["reply"] for _, turn in failed])
    return tuple(number for (number, _), is_repeated in zip(failed, again, strict=True) if is_repeated)


def benchmark_task(task_id: str) -> Task | None:
    """The task of this id, None if the benchmark does not have it."""
    return _tasks("val").get(task_id) or _tasks("train").get(task_id)


def fits(task_id: str, budget: int) -> bool | None:
    """Whether the ideal run of a task fits `budget` turns; None for a task that the benchmark does not have."""
    turns = _ideal_turns(task_id)
    return None if turns is None else turns <= budget


@functools.cache
def _ideal_turns(task_id: str) -> int | None:
    task = benchmark_task(task_id)
    return None if task is None else ideal_run(task).turns


@functools.cache
def _tasks(split: Split) -> dict[str, Task]:
    return {task.id: task for task in load_tasks(split)}


def _split_name(argument: str) -> tuple[str | None, Path]:
    name, equals, path = argument.partition("=")
    if equals and name and not Path(argument).exists():
        return name, Path(path)
    return None, Path(argument)


def _load(name: str, directories: Sequence[Path], depths: Sequence[int] | None) -> Evaluation:
    episodes: dict[tuple[str, int], Played] = {}
    broken, models, budgets = [], [], []
    for directory in directories:
        config = read_config(directory) or {}
        flags, state = config.get("flags", {}), (config.get("server") or {}).get("state_path")
        rows = [row for row in latest_rows(directory) if depths is None or row["depth"] in depths]
        if not rows:
            raise UserError(f"{directory} holds no episodes to report on: run evaluate.py --run-dir {directory} first")
        for row in rows:
            key = row["task_id"], row["episode"]
            if key in episodes:
                raise UserError(f"two directories of {name} hold task {key[0]}: give them different names")
            if row["end"] == "broken":
                broken.append(row["task_id"])
            else:
                episodes[key] = played(row)
        models.append((flags.get("player", "model"), flags.get("checkpoint"), state))
        budgets.append(flags.get("max_turns") or max(len(row["turns"]) for row in rows))
    if not episodes:
        raise UserError(f"every episode of {name} broke with the server: play them again with evaluate.py --resume")
    if len(set(models)) > 1:
        raise UserError(f"the directories of {name} are of different models: give them different names")
    return Evaluation(name, tuple(directories), tuple(episodes.values()), tuple(broken), min(budgets), *models[0])
