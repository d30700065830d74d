"""Mistakes that a demonstration is told to make, and which mistakes a finished one really holds."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from textcraft.episode import Episode
from textcraft.tools import Craft, parse
from textcraft.world import Task, World

Kind = Literal["omitted_lookup", "wrong_count", "omitted_craft"]
KINDS: tuple[Kind, ...] = ("omitted_lookup", "wrong_count", "omitted_craft")


@dataclass(frozen=True)
class Mistakes:
    """What to do wrong. Each mistake is made once, then repaired when the game's error shows it.

    Nothing is counted wrongly in a repair, and a share stays above 0: a mistake that would take either is not made.
    """

    omitted_lookups: frozenset[str] = frozenset()
    """Items left out of the look-up list that they belong in."""
    omitted_crafts: frozenset[str] = frozenset()
    """Items left out of their layer."""
    short_shares: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(user, ingredient) -> by how much the user's plan line totals the ingredient too low."""
    wrong_calls: Mapping[str, Craft] = field(default_factory=dict)
    """Item -> a craft call that fails, made before the right one."""

    def __or__(self, other: "Mistakes") -> "Mistakes":
        return Mistakes(
            self.omitted_lookups | other.omitted_lookups,
            self.omitted_crafts | other.omitted_crafts,
            {**self.short_shares, **other.short_shares},
            {**self.wrong_calls, **other.wrong_calls},
        )


NO_MISTAKES = Mistakes()


def find_mistakes(task: Task, replies: Iterable[str], world: World) -> list[Kind]:
    """Play `replies` again and name what each failed craft shows: the kinds of mistake, in the order they come out.

    An ingredient that is short was never looked up, or was looked up and never crafted, or was crafted too few times.
    """
    episode = Episode(task, max_turns=1_000_000, world=world)
    crafted: set[str] = set()
    kinds: list[Kind] = []
    for reply in replies:
        turn = episode.step(reply)
        call = parse(reply)
        if turn.kind == "craft" and isinstance(call, Craft):
            crafted.add(call.target[0])
        elif turn.kind == "failed_craft":
            short = re.findall(r"(\w+): need \d+, have \d+", turn.observation)
            kinds += [_kind_of_shortage(item, episode, crafted) for item in short] or ["wrong_count"]
    return kinds


def _kind_of_shortage(item: str, episode: Episode, crafted: set[str]) -> Kind:
    if item not in episode.looked_up:
        return "omitted_lookup"
    return "wrong_count" if item in crafted else "omitted_craft"
