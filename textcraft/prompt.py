"""What the model reads before its first turn: the system prompt with the tool documentation, and the task."""

import json

from textcraft.world import Task

SYSTEM_PROMPT = """\
You are playing TextCraft, a crafting game. Craft the target from the materials in your inventory.
Recipes are hidden until you look them up. Raw materials have no recipe.

Each reply must contain exactly one tool call:
<tool>get_info(["item", ...])</tool> shows the recipe of each item: the ingredients of one craft \
and result_count, the number of items that one craft yields.
<tool>craft({"ingredient": count, ...}, ("item", count))</tool> crafts count items. \
count must be a multiple of result_count, and the ingredients must be the exact totals for all crafts together.
<tool>view_inventory()</tool> shows what you have.
<tool>finish()</tool> ends the task. Call it once the target is crafted."""


def opening_message(task: Task) -> str:
    """The first user message: what to craft and what there is to craft it from."""
    targets = ", ".join(f"{count}x {item}" for item, count in task.targets.items())
    return f"Target: craft {targets}.\nInitial inventory: {json.dumps(task.inventory)}"
