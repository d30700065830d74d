"""What a game offers to be played, trained on and evaluated by the scripts; TextCraft-Synth fills it.

`--env` takes a name of `ENVIRONMENTS`, or `module:object` for a game that lies elsewhere.
"""

import importlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import textcraft
from textcraft.facts import ideal_run
from textcraft.world import Difficulty, Split
from tinker_client.errors import UserError


class Task(Protocol):
    """One task of a game. depth: how hard it is, what success is broken down by; difficulty: the name of a range."""

    @property
    def id(self) -> str: ...
    @property
    def depth(self) -> int: ...
    @property
    def difficulty(self) -> str: ...


class Turn(Protocol):
    """What came of one reply, as `textcraft.Turn`."""

    @property
    def observation(self) -> str: ...
    @property
    def done(self) -> bool: ...
    @property
    def reward(self) -> float: ...
    @property
    def kind(self) -> str: ...


class Episode(Protocol):
    """One task being played, as `textcraft.Episode`.

    messages: the opening conversation. turns: taken so far. end: None while it runs, then "success" or another name.
    """

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def turns(self) -> int: ...
    @property
    def end(self) -> str | None: ...

    def step(self, reply: str) -> Turn:
        """Play one reply, whatever it holds."""


class Environment[T: Task](Protocol):
    """A game."""

    def load_tasks(
        self, split: Split, difficulty: Difficulty | None = None, depths: Collection[int] | None = None
    ) -> Sequence[T]:
        """The tasks of a split, those of one difficulty or of some depths where asked, always in the same order."""

    def episode(self, task: T, max_turns: int) -> Episode:
        """A new episode of a task, which ends after `max_turns` turns at the latest."""

    def ideal_turns(self, task: T) -> int:
        """The turns of an ideal run: with a smaller budget the task cannot be solved."""


class TextCraft:
    """TextCraft-Synth (`textcraft/`)."""

    def load_tasks(
        self, split: Split, difficulty: Difficulty | None = None, depths: Collection[int] | None = None
    ) -> list[textcraft.Task]:
        """The benchmark's tasks. Raises BenchmarkError if the installed ones are others."""
        return textcraft.load_tasks(split, difficulty, depths)

    def episode(self, task: textcraft.Task, max_turns: int) -> Episode:
        """An episode in the benchmark's recipe world."""
        return textcraft.Episode(task, max_turns=max_turns)

    def ideal_turns(self, task: textcraft.Task) -> int:
        """Breadth-first look-ups, one craft an item, one finish."""
        return ideal_run(task).turns


ENVIRONMENTS: dict[str, Environment[Any]] = {"textcraft": TextCraft()}


def find_environment(name: str) -> Environment[Any]:
    """The game that `--env` names. Raises UserError if there is none."""
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UserError(f"no --env {name}: there is {', '.join(ENVIRONMENTS)}, or module:object for one of your own")
    try:
        found: Environment[Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"--env {name} cannot be imported ({error}): give module:object as Python finds it") from error
    if missing := [part for part in ("load_tasks", "episode", "ideal_turns") if not hasattr(found, part)]:
        raise UserError(f"--env {name} is no game: it lacks {', '.join(missing)} (tinker_client/play/environment.py)")
    return found
