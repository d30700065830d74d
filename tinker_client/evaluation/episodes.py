"""Evaluation directories as what statistics need: one small record an episode, cut at any budget."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
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
class Conditions:
    """What was played and how. What is not on record is None.

    player: as `evaluate.py --player` takes it. model: the base model's name on its server.
    source: what was evaluated, a run directory or a state path; None is the base model.
    state: the state path that `source` meant when it was evaluated.
    max_turns: the budget that the episodes had. max_reply_tokens: the cap on one reply. rollouts: episodes a task.
    """

    max_turns: int
    player: str = "model"
    model: str | None = None
    source: str | None = None
    state: str | None = None
    temperature: float | None = None
    max_reply_tokens: int | None = None
    thinking: bool | None = None
    rollouts: int | None = None


@dataclass(frozen=True)
class Directory:
    """One directory of an evaluation, and the commits of this project that played it, a + after one with changes."""

    path: Path
    commits: tuple[str, ...]


@dataclass(frozen=True)
class Evaluation:
    """What one model played, the same way in each of the directories.

    broken: the task of each episode that the server failed and that was not played again.
    """

    name: str
    directories: tuple[Directory, ...]
    episodes: tuple[Played, ...]
    broken: tuple[str, ...]
    conditions: Conditions

    @property
    def max_turns(self) -> int:
        """The budget that the episodes had."""
        return self.conditions.max_turns


def load_evaluations(arguments: Sequence[str], depths: Sequence[int] | None = None) -> list[Evaluation]:
    """The evaluations that `[NAME=]DIRECTORY ...` names; directories with the same name are one model's.

    A directory without a name has its folder's. `depths` keeps the tasks of these depths only.
    Raises UserError if a directory holds no episodes, or two of one model hold the same task or were played under other
    conditions.
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


def _load(name: str, paths: Sequence[Path], depths: Sequence[int] | None) -> Evaluation:
    episodes: dict[tuple[str, int], Played] = {}
    broken: list[str] = []
    directories: list[Directory] = []
    conditions: list[Conditions] = []
    for path in paths:
        rows = [row for row in latest_rows(path) if depths is None or row["depth"] in depths]
        if not rows:
            raise UserError(f"{path} holds no episodes to report on: run evaluate.py --run-dir {path} first")
        for row in rows:
            key = row["task_id"], row["episode"]
            if key in episodes:
                raise UserError(f"two directories of {name} hold task {key[0]}: give them different names")
            if row["end"] == "broken":
                broken.append(row["task_id"])
            else:
                episodes[key] = played(row)
        config = read_config(path) or {}
        directories.append(Directory(path, _commits(config)))
        conditions.append(_conditions(config, longest=max(len(row["turns"]) for row in rows)))
        _check_alike(name, paths, conditions)
    if not episodes:
        raise UserError(f"every episode of {name} broke with the server: play them again with evaluate.py --resume")
    return Evaluation(name, tuple(directories), tuple(episodes.values()), tuple(broken), conditions[0])


def _conditions(config: Row, longest: int) -> Conditions:
    """What an evaluation's config.json says; `longest`, its turns, stand in for a budget that is not on record."""
    flags, server = config.get("flags", {}), config.get("server") or {}
    backend = flags.get("backend", {})
    return Conditions(
        max_turns=flags.get("max_turns") or longest,
        player=flags.get("player", "model"),
        model=server.get("model") or backend.get("model"),
        source=flags.get("checkpoint"),
        state=server.get("state_path"),
        temperature=flags.get("temperature"),
        max_reply_tokens=flags.get("max_reply_tokens"),
        thinking=backend.get("thinking"),
        rollouts=flags.get("rollouts"),
    )


def _check_alike(name: str, paths: Sequence[Path], conditions: Sequence[Conditions]) -> None:
    """Raises UserError if the last directory was played under other conditions than the first."""
    for field in fields(Conditions):
        first, other = (getattr(of_directory, field.name) for of_directory in (conditions[0], conditions[-1]))
        if first != other:
            what = f"{field.name.replace('_', ' ')} {first} in {paths[0]}, {other} in {paths[len(conditions) - 1]}"
            raise UserError(f"two directories of {name} were not played alike ({what}): give them different names")


def _commits(config: Row) -> tuple[str, ...]:
    """The commits of an evaluation's sessions, the same one once; format 1 of a run directory has one session."""
    sessions = config.get("sessions", [config])
    named = [f"{s['git_commit'][:7]}{'+' * bool(s.get('git_changed'))}" for s in sessions if s.get("git_commit")]
    return tuple(dict.fromkeys(named))
