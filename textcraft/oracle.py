"""The expert, who knows every recipe: minimal plans, and the best next call from any state of an episode."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from textcraft.episode import Episode
from textcraft.tools import Call, Craft, Finish, GetInfo
from textcraft.world import World

_NOTHING: Mapping[str, int] = {}


def lookup_rounds(world: World, targets: Iterable[str]) -> list[list[str]]:
    """The breadth-first get_info calls that show every recipe below `targets`, one list of items a call.

    The first round is the craftable targets; each next one is the craftable ingredients that the round before showed
    for the first time, in order of appearance. No item is asked for twice, raw materials never.
    """
    rounds: list[list[str]] = []
    seen: set[str] = set()
    shown: Iterable[str] = targets
    while fresh := [item for item in dict.fromkeys(shown) if item in world.recipes and item not in seen]:
        rounds.append(fresh)
        seen.update(fresh)
        shown = _ingredients(world, fresh)
    return rounds


def plan_crafts(world: World, targets: Mapping[str, int], inventory: Mapping[str, int] = _NOTHING) -> dict[str, int]:
    """The fewest crafts (executions of a recipe) that make `targets` on top of `inventory`: item -> crafts.

    Items in `inventory` are used first, except that as many targets as it holds must be left at the end. Users come
    before their ingredients; items that need no craft are left out. An item has only one recipe and using what is
    there never costs a craft, so rounding up the total need of each item is minimal for all items at once.
    """
    final = {item: count + inventory.get(item, 0) for item, count in targets.items()}
    return _plan(world, final, inventory)[0]


@dataclass(frozen=True, slots=True)
class Advice:
    """What the expert says about an episode that still runs.

    call: the best next call.
    crafts: craft calls that are still to succeed, the fewest possible.
    turns: turns that this takes: look-ups, crafts and `finish()`.
    shortages: raw material -> how many are missing; empty unless materials were wasted beyond repair.
    lost: why no play that looks its recipes up can win any more, in one sentence, or None.
    """

    call: Call
    crafts: int
    turns: int
    shortages: dict[str, int]
    lost: str | None


def advise(episode: Episode) -> Advice:
    """The best next call of `episode`, whatever happened in it so far.

    Recipes that are still needed and were not looked up come first, breadth-first, asking only for names that the
    episode has shown; then one craft an item, bottom-up, each with its whole total, items of the same depth in the
    order they were looked up; then `finish()`. In a lost episode the advice is the same as far as the materials go.
    Raises RuntimeError if the episode has ended.
    """
    if episode.end is not None:
        raise RuntimeError(f"the episode has ended ({episode.end})")
    world, inventory, targets = episode.world, episode.inventory, episode.task.targets
    final = {item: count + episode.task.inventory.get(item, 0) for item, count in targets.items()}
    crafts, raw = _plan(world, final, inventory)
    lookups = _open_lookups(world, targets, crafts, episode.looked_up)
    turns = len(lookups) + len(crafts) + 1
    shortages = {item: count - inventory.get(item, 0) for item, count in raw.items() if count > inventory.get(item, 0)}
    lost = None
    if shortages:
        short = ", ".join(f"{item} need {raw[item]}, have {inventory.get(item, 0)}" for item in shortages)
        lost = f"Materials were wasted: {short}."
    elif turns > episode.max_turns - episode.turns:
        lost = f"Too few turns: {turns} needed, {episode.max_turns - episode.turns} left."
    call = GetInfo(tuple(lookups[0])) if lookups else _next_craft(episode, crafts) or Finish()
    return Advice(call, len(crafts), turns, shortages, lost)


def _plan(
    world: World, final: Mapping[str, int], inventory: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Item -> crafts so that `final` (item -> count) is there at the end, and what this takes of raw materials."""
    needs = dict(final)
    crafts: dict[str, int] = {}
    items = [item for items in lookup_rounds(world, final) for item in items]
    for item in sorted(items, key=lambda item: -world.depths[item]):  # every user comes before its ingredients
        recipe = world.recipes[item]
        missing = needs.get(item, 0) - inventory.get(item, 0)
        if missing > 0:
            crafts[item] = -(-missing // recipe.result_count)
            for ingredient, each in recipe.ingredients.items():
                needs[ingredient] = needs.get(ingredient, 0) + each * crafts[item]
    return crafts, {item: count for item, count in needs.items() if item not in world.recipes}


def _open_lookups(
    world: World, targets: Iterable[str], needed: Collection[str], looked_up: Iterable[str]
) -> list[list[str]]:
    """The get_info calls that are left to see every `needed` recipe, asking only for names that were shown before."""
    known = dict.fromkeys(looked_up)
    rounds: list[list[str]] = []
    shown = [*targets, *_ingredients(world, known)]
    while fresh := [item for item in dict.fromkeys(shown) if item in needed and item not in known]:
        rounds.append(fresh)
        known |= dict.fromkeys(fresh)
        shown = _ingredients(world, fresh)
    return rounds


def _ingredients(world: World, items: Iterable[str]) -> list[str]:
    """What the recipes of `items` show, in order of appearance."""
    return [ingredient for item in items if item in world.recipes for ingredient in world.recipes[item].ingredients]


def _next_craft(episode: Episode, crafts: Mapping[str, int]) -> Craft | None:
    """The first craft of the plan, bottom-up, that the inventory allows."""
    world = episode.world
    for item in sorted((item for item in episode.looked_up if item in crafts), key=world.depths.__getitem__):
        recipe = world.recipes[item]
        totals = {ingredient: each * crafts[item] for ingredient, each in recipe.ingredients.items()}
        if all(episode.inventory.get(ingredient, 0) >= total for ingredient, total in totals.items()):
            return Craft(totals, (item, recipe.result_count * crafts[item]))
    return None
