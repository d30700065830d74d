"""Demonstrations that make mistakes of chosen kinds and repair them."""

import random
from collections.abc import Callable, Sequence

from sft_data.demonstrator import Message, demonstrate
from sft_data.mistakes import KINDS, NO_MISTAKES, Kind, Mistakes, find_mistakes
from sft_data.procedure import Procedure
from textcraft.oracle import lookup_rounds, plan_crafts
from textcraft.tools import Craft
from textcraft.world import Task, World

_TRIES = 20


def demonstrate_recovery(
    task: Task, procedure: Procedure, kinds: Sequence[Kind], rng: random.Random, world: World
) -> list[Message] | None:
    """A demonstration with one mistake of each of `kinds` at places drawn from `rng`; None if the task has no room.

    Playing it again must bring out these mistakes and no others: places that hide one another are drawn anew.
    """
    for _ in range(_TRIES):
        mistakes = NO_MISTAKES
        for kind in kinds:
            places = _PLACES[kind](task, world, rng)
            if not places:
                return None
            mistakes |= rng.choice(places)
        messages = demonstrate(task, procedure, mistakes, world)
        replies = [message["content"] for message in messages if message["role"] == "assistant"]
        if sorted(find_mistakes(task, replies, world)) == sorted(kinds):
            return messages
    return None


def _omitted_lookups(task: Task, world: World, _: random.Random) -> list[Mistakes]:
    rounds = lookup_rounds(world, task.targets)
    return [Mistakes(omitted_lookups=frozenset([item])) for asked in rounds if len(asked) > 1 for item in asked]


def _omitted_crafts(task: Task, world: World, _: random.Random) -> list[Mistakes]:
    layers: dict[int, list[str]] = {}
    for item in plan_crafts(world, task.targets):
        layers.setdefault(world.depths[item], []).append(item)
    return [Mistakes(omitted_crafts=frozenset([item])) for layer in layers.values() if len(layer) > 1 for item in layer]


def _wrong_counts(task: Task, world: World, rng: random.Random) -> list[Mistakes]:
    """Totals or craft calls, at even odds where the task has room for both."""
    crafts = plan_crafts(world, task.targets)
    totals = dict(task.targets)
    for user, count in crafts.items():
        for ingredient, each in world.recipes[user].ingredients.items():
            totals[ingredient] = totals.get(ingredient, 0) + each * count
    choices = [_short_shares(crafts, totals, world), _wrong_calls(crafts, totals, world)]
    return rng.choice([places for places in choices if places])


def _short_shares(crafts: dict[str, int], totals: dict[str, int], world: World) -> list[Mistakes]:
    """Shares so much too low that a craft of the ingredient is lost, and no more; a share stays above 0."""
    places = []
    for user, count in crafts.items():
        for ingredient, each in world.recipes[user].ingredients.items():
            if ingredient in crafts:
                short = totals[ingredient] - world.recipes[ingredient].result_count * (crafts[ingredient] - 1)
                if short < each * count:
                    places.append(Mistakes(short_shares={(user, ingredient): short}))
    return places


def _wrong_calls(crafts: dict[str, int], totals: dict[str, int], world: World) -> list[Mistakes]:
    """Calls with one ingredient for one craft too many or too few, or with the items needed instead of those made."""
    places = []
    for item, count in crafts.items():
        recipe = world.recipes[item]
        ingredients = {ingredient: each * count for ingredient, each in recipe.ingredients.items()}
        target = (item, recipe.result_count * count)
        for ingredient, each in recipe.ingredients.items():
            for wrong in {count - 1, count + 1} - {0}:
                places.append(Craft({**ingredients, ingredient: each * wrong}, target))
        if totals[item] % recipe.result_count:
            places.append(Craft(ingredients, (item, totals[item])))
    return [Mistakes(wrong_calls={call.target[0]: call}) for call in places]


_PLACES: dict[Kind, Callable[[Task, World, random.Random], list[Mistakes]]] = dict(
    zip(KINDS, (_omitted_lookups, _wrong_counts, _omitted_crafts), strict=True)
)
