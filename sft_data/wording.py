"""How a demonstration words what it thinks. Data, so that wordings can be compared and ranked.

A field is a `str.format` template for one line of a reply, or for a part of one, as its comment says. An empty
template leaves its line out. The tool call that ends a reply is not worded here: its syntax belongs to the game.
"""

from dataclasses import dataclass
from typing import Literal

WordingName = Literal["post", "terse", "prose", "equations"]


@dataclass(frozen=True)
class Wording:
    """The words of one procedure.

    In all templates: `total` is how many of an item are needed, `yield_` how many one craft gives, `crafts` how many
    times its recipe is run.
    """

    # Opening of the first reply.
    goal: str  # {targets}, {lines}: plan lines allowed in a turn
    target: str  # {count}, {item}
    # A plan line: an item with craftable ingredients, and what it adds to each of them.
    plan: str  # of a recipe that yields one: {item}, {total}, {shares}
    plan_divided: str  # {item}, {total}, {yield_}, {crafts}, {shares}
    share: str  # {item}, {count}
    share_added: str  # to earlier shares of the same item: {item}, {count}, {total} so far
    share_separator: str
    # Crafting.
    plan_done: str
    layer: str  # its opening: {number}, {items}
    layer_left: str  # while it goes on: {number}, {items}
    separator: str  # between the items of a layer
    craft: str  # crafts were worked out in the item's plan line: {item}, {crafts}
    craft_counted: str  # worked out here, of a recipe that yields one: {item}, {total}
    craft_divided: str  # worked out here: {item}, {total}, {yield_}, {crafts}
    # After a failed craft: first what the error says, then why.
    failed: str  # {problem}
    short: str  # {item}, {need}, {have}
    wrong_amount: str  # {item}, {need}, {provided}
    not_divisible: str  # {item}, {count}, {yield_}
    not_looked_up: str  # {item}
    skipped: str  # {item}
    miscounted: str  # {item}, {sum}: the shares and their right total, {total}: the wrong one
    retry: str  # {item}


POST = Wording(
    goal=(
        "Goal: {targets}. Plan: look up recipes layer by layer, total each item top-down "
        "(at most {lines} lines per turn), then craft each item once bottom-up."
    ),
    target="{count}x {item}",
    plan="{item}: {total} -> {shares}",
    plan_divided="{item}: {total}, /{yield_} -> {crafts} crafts -> {shares}",
    share="{item}+{count}",
    share_added="{item}+{count}={total}",
    share_separator=" ",
    plan_done="Plan done. Crafting bottom-up.",
    layer="Layer {number}: {items}.",
    layer_left="Layer {number} left: {items}.",
    separator=", ",
    craft="{item}: {crafts} crafts.",
    craft_counted="{item}: {total} crafts.",
    craft_divided="{item}: {total}, /{yield_} -> {crafts} crafts.",
    failed="Craft failed: {problem}.",
    short="{item} need {need}, have {have}",
    wrong_amount="{item} need {need}, provided {provided}",
    not_divisible="{item} count {count} is not divisible by {yield_}",
    not_looked_up="{item} was not looked up.",
    skipped="{item} was skipped.",
    miscounted="{item} was miscounted: {sum}, not {total}.",
    retry="Retry {item}.",
)
"""The post's own words; those it does not show (all but the goal, plan, layer, craft, skip and retry) follow them."""

TERSE = Wording(
    goal="",
    target="{count} {item}",
    plan="{item} {total} {shares}",
    plan_divided="{item} {total} by {yield_} is {crafts} {shares}",
    share="{item}+{count}",
    share_added="{item}+{count}={total}",
    share_separator=" ",
    plan_done="",
    layer="todo {items}",
    layer_left="todo {items}",
    separator=" ",
    craft="{item} {crafts}",
    craft_counted="{item} {total}",
    craft_divided="{item} {total} by {yield_} is {crafts}",
    failed="failed {problem}",
    short="{item}: need {need}, have {have}",
    wrong_amount="{item} {need} not {provided}",
    not_divisible="{item} {count} not by {yield_}",
    not_looked_up="{item} unseen",
    skipped="{item} skipped",
    miscounted="{item} {sum} not {total}",
    retry="retry",
)
"""The same thinking in fewer tokens, for models so small that every token is a chance to err."""

PROSE = Wording(
    goal=(
        "I have to craft {targets}. First I look up the recipes layer by layer, then I add up how many I need of each "
        "item (at most {lines} lines per turn), and then I craft each item once, from the bottom up."
    ),
    target="{count} {item}",
    plan="I need {total} {item}, which takes {shares}.",
    plan_divided="I need {total} {item}. One craft gives {yield_}, so I craft it {crafts} times, which takes {shares}.",
    share="{count} {item}",
    share_added="{count} more {item} ({total} in all)",
    share_separator=" and ",
    plan_done="The plan is complete. Now I craft from the bottom up.",
    layer="In layer {number} I craft {items}.",
    layer_left="What is left of layer {number} is {items}.",
    separator=", ",
    craft="I craft {item} {crafts} times.",
    craft_counted="I craft {item} {total} times.",
    craft_divided="I need {total} {item}. One craft gives {yield_}, so I craft it {crafts} times.",
    failed="The craft failed: {problem}.",
    short="it needs {need} {item} and I have {have}",
    wrong_amount="it needs {need} {item} and I gave {provided}",
    not_divisible="{count} {item} cannot be made, since one craft gives {yield_}",
    not_looked_up="I have not looked up {item}.",
    skipped="I left out {item}.",
    miscounted="I counted {item} wrong: it is {sum}, not {total}.",
    retry="Now I craft {item} again.",
)
"""Whole sentences, as a model without the data might write them."""

EQUATIONS = Wording(
    goal="goal: {targets}; look up by layers, count top-down (at most {lines} lines per turn), craft bottom-up",
    target="{item} = {count}",
    plan="need[{item}] = {total}; {shares}",
    plan_divided="need[{item}] = {total}; yield = {yield_}; crafts[{item}] = {crafts}; {shares}",
    share="need[{item}] += {count}",
    share_added="need[{item}] += {count} == {total}",
    share_separator="; ",
    plan_done="plan done; craft bottom-up",
    layer="layer[{number}] = [{items}]",
    layer_left="left[{number}] = [{items}]",
    separator=", ",
    craft="crafts[{item}] = {crafts}",
    craft_counted="crafts[{item}] = {total}",
    craft_divided="need[{item}] = {total}; yield = {yield_}; crafts[{item}] = {crafts}",
    failed="failed: {problem}",
    short="need[{item}] == {need} > have[{item}] == {have}",
    wrong_amount="need[{item}] == {need} != {provided}",
    not_divisible="need[{item}] == {count} % {yield_} != 0",
    not_looked_up="recipe[{item}] is unknown",
    skipped="crafts[{item}] == 0",
    miscounted="need[{item}] = {sum} != {total}",
    retry="again: {item}",
)
"""Assignments, as in code."""

WORDINGS: dict[WordingName, Wording] = {"post": POST, "terse": TERSE, "prose": PROSE, "equations": EQUATIONS}
"""The candidates of `python -m sft_data rank`."""
