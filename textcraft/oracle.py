"""The expert, who knows every recipe: minimal plans from any inventory, and the order in which to look recipes up."""

from collections.abc import Iterable, Mapping

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
        shown = [ingredient for item in fresh for ingredient in world.recipes[item].ingredients]
    return rounds


def plan_crafts(world: World, targets: Mapping[str, int], inventory: Mapping[str, int] = _NOTHING) -> dict[str, int]:
    """The fewest crafts (executions of a recipe) that make `targets` on top of `inventory`: item -> crafts.

    Items in `inventory` are used first, except that as many targets as it holds must be left at the end. Users come
    before their ingredients; items that need no craft are left out. Every item has one recipe and using an item
    at hand never costs more than making it, so rounding up user by user is minimal for every item at once.
    """
    final = {item: count + inventory.get(item, 0) for item, count in targets.items()}
    return _plan(world, final, inventory)[0]


def _plan(
    world: World, final: Mapping[str, int], inventory: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Item -> crafts so that `final` (item -> count) is there at the end, and raw material -> total that this takes."""
    needs = dict(final)
    crafts: dict[str, int] = {}
    items = [item for items in lookup_rounds(world, final) for item in items]
    for item in sorted(items, key=lambda item: -world.depths[item]):  # users before ingredients
        recipe = world.recipes[item]
        missing = needs.get(item, 0) - inventory.get(item, 0)
        if missing > 0:
            crafts[item] = -(-missing // recipe.result_count)
            for ingredient, each in recipe.ingredients.items():
                needs[ingredient] = needs.get(ingredient, 0) + each * crafts[item]
    return crafts, {item: count for item, count in needs.items() if item not in world.recipes}
