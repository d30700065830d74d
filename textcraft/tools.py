"""The tool-call grammar: what a reply may say, how a call is written, and what the game answers to it.

A reply is text from a model. It is read as data, see textcraft/literals.py; nothing in it is ever evaluated.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from textcraft.literals import LiteralError, read_call
from textcraft.world import World

MAX_ITEMS = 2_000  # of one get_info call, which bounds the observation; the benchmark has 1,452 items
_OPEN, _CLOSE = "<tool>", "</tool>"


@dataclass(frozen=True, slots=True)
class GetInfo:
    """Look up `items`, answered one line each in this order."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Craft:
    """Use up `ingredients` (item -> count) to get `target` (item, count).

    As a model wrote it: keys and values can be any literal, and `craft` words what is wrong with them.
    """

    ingredients: dict[Any, Any]
    target: tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class ViewInventory:
    """Ask what there is."""


@dataclass(frozen=True, slots=True)
class Finish:
    """End the task. A message that came with it is dropped."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """The reply holds no call that the game can run; `reason` is one sentence for the player."""

    reason: str


Call = GetInfo | Craft | ViewInventory | Finish

# The names that the package's own tools give their arguments.
_PARAMETERS = {"get_info": ("items",), "craft": ("ingredients", "target"), "view_inventory": (), "finish": ("message",)}


def parse(reply: str) -> Call | Invalid:
    """The one call of a reply, whatever text stands around it.

    The reply must hold `<tool>` and `</tool>` once each. Arguments are Python literals, by position or by the name
    that the package's tools use (items; ingredients, target; message). A craft call is one whose arguments are a dict
    and a pair (a tuple or a list of two), of whatever is in them. Never raises for any text.
    """
    opened, closed = reply.count(_OPEN), reply.count(_CLOSE)
    if opened > 1:
        return Invalid(f"the reply holds {opened} tool calls, it must hold exactly one.")
    if opened == 0:
        return Invalid("the reply holds no tool call, it must hold exactly one <tool>...</tool>.")
    start, end = reply.index(_OPEN) + len(_OPEN), reply.find(_CLOSE)
    if closed != 1 or end < start:
        return Invalid("the tool call must be closed by exactly one </tool>.")
    try:
        name, positional, keyword = read_call(reply[start:end])
        return _call(name, positional, keyword)
    except LiteralError as error:
        return Invalid(f"{error}.")


def _call(name: str, positional: list[Any], keyword: dict[str, Any]) -> Call:
    parameters = _PARAMETERS.get(name)
    if parameters is None:
        raise LiteralError(f"there is no tool {name[:40]!r}, the tools are {', '.join(_PARAMETERS)}")
    arguments = dict(zip(parameters, positional, strict=False))
    if len(positional) > len(parameters) or not keyword.keys() <= set(parameters[len(positional) :]):
        raise LiteralError(f"the arguments of {name} are ({', '.join(parameters)})")
    arguments |= keyword
    if name == "finish":
        return Finish()
    if len(arguments) < len(parameters):
        raise LiteralError(f"{name} needs the arguments ({', '.join(parameters)})")
    if name == "get_info":
        return GetInfo(_item_names(arguments["items"]))
    if name == "craft":
        return _craft_call(arguments["ingredients"], arguments["target"])
    return ViewInventory()


def _item_names(items: Any) -> tuple[str, ...]:
    if not isinstance(items, list | tuple) or not items or not all(isinstance(item, str) for item in items):
        raise LiteralError('get_info takes a list of item names, such as get_info(["item"])')
    if len(items) > MAX_ITEMS:
        raise LiteralError(f"get_info takes at most {MAX_ITEMS} items")
    return tuple(items)


def _craft_call(ingredients: Any, target: Any) -> Craft:
    if not isinstance(ingredients, dict):
        raise LiteralError(f"ingredients must be a dict, got {type(ingredients).__name__}")
    if not isinstance(target, list | tuple) or len(target) != 2:
        raise LiteralError("target must be a tuple of (item_name, count)")
    return Craft(ingredients, (target[0], target[1]))


def render(call: Call) -> str:
    """The call as a reply writes it, tags included; `parse` reads it back."""
    match call:
        case GetInfo(items):
            text = f"get_info([{', '.join(map(_literal, items))}])"
        case Craft(ingredients, (item, count)):
            pairs = ", ".join(f"{_literal(key)}: {_literal(value)}" for key, value in ingredients.items())
            text = f"craft({{{pairs}}}, ({_literal(item)}, {_literal(count)}))"
        case ViewInventory():
            text = "view_inventory()"
        case Finish():
            text = "finish()"
    return f"{_OPEN}{text}{_CLOSE}"


def _literal(value: Any) -> str:
    # JSON's string escapes are all Python's too, as long as characters beyond ASCII stay as they are.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def look_up(world: World, items: Iterable[str]) -> str:
    """The answer to get_info: one line an item, in the order asked."""
    return "\n".join(_recipe_line(world, item) for item in items)


def _recipe_line(world: World, item: str) -> str:
    recipe = world.recipes.get(item)
    if recipe is not None:
        return f"{item}: {json.dumps({'ingredients': recipe.ingredients, 'result_count': recipe.result_count})}"
    return f"{item}: raw material, no recipe" if world.is_raw(item) else f"{item}: unknown item"


def craft(world: World, inventory: dict[str, int], call: Craft) -> tuple[bool, str]:
    """Run `call` on `inventory`, which changes only on success; whether it did, and the answer.

    Rules, their order and their words are those of the package's TextCraftSynthEnvironment, where a bool is an int
    as everywhere in Python.
    """
    problem = _bad_target(*call.target) or _bad_ingredients(call.ingredients)
    if problem:
        return False, f"Error: {problem}"
    item, count = call.target
    recipe = world.recipes.get(item)
    if recipe is None:
        return False, f"Error: No recipe found for {item}"
    crafts, rest = divmod(count, recipe.result_count)
    if rest:
        problem = f"Target count {count} is not divisible by recipe result count {recipe.result_count}"
    else:
        totals = {ingredient: each * crafts for ingredient, each in recipe.ingredients.items()}
        problem = _mismatch(totals, call.ingredients) or _shortage(totals, inventory)
    if problem:
        return False, f"Error: All 1 recipe(s) failed for {item}. Errors:\nRecipe 1: {problem}"
    for ingredient, total in totals.items():
        inventory[ingredient] -= total
        if not inventory[ingredient]:
            del inventory[ingredient]
    crafted = recipe.result_count * crafts
    inventory[item] = inventory.get(item, 0) + crafted
    return True, f"Successfully crafted {crafted} {item}(s)"


def _bad_target(item: Any, count: Any) -> str | None:
    if not isinstance(item, str):
        return f"target item must be a string, got {type(item).__name__}"
    if not isinstance(count, int):
        return f"target count must be an int, got {type(count).__name__}"
    return f"target count must be positive, got {count}" if count <= 0 else None


def _bad_ingredients(ingredients: dict[Any, Any]) -> str | None:
    for ingredient, count in ingredients.items():
        if not isinstance(ingredient, str):
            return f"ingredient name must be a string, got {type(ingredient).__name__}"
        if not isinstance(count, int):
            return f"ingredient count for {ingredient} must be an int, got {type(count).__name__}"
        if count <= 0:
            return f"ingredient count for {ingredient} must be positive, got {count}"
    return None


def _mismatch(totals: dict[str, int], ingredients: dict[str, int]) -> str | None:
    for ingredient, total in totals.items():
        if ingredient not in ingredients:
            return f"Missing required ingredient {ingredient}"
        if ingredients[ingredient] != total:
            return f"Wrong amount of {ingredient}. Need {total}, provided {ingredients[ingredient]}"
    extra = [ingredient for ingredient in ingredients if ingredient not in totals]
    return f"Extra ingredients not required: {', '.join(extra)}" if extra else None


def _shortage(totals: dict[str, int], inventory: dict[str, int]) -> str | None:
    short = [
        f"{ingredient}: need {total}, have {inventory.get(ingredient, 0)}"
        for ingredient, total in totals.items()
        if inventory.get(ingredient, 0) < total
    ]
    return f"Insufficient ingredients in inventory: {', '.join(short)}" if short else None
