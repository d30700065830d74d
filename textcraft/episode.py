"""One task being played: a reply goes in, an observation comes out."""

import json
from dataclasses import dataclass
from typing import Literal

from textcraft import tools
from textcraft.prompt import SYSTEM_PROMPT, opening_message
from textcraft.world import Task, World, load_world

Kind = Literal["info", "craft", "failed_craft", "inventory", "finish", "invalid"]
End = Literal["success", "wrong_finish", "out_of_turns"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of one reply.

    observation: the game's answer, always encodable as UTF-8.
    done: the episode has ended, by `finish()` or because the budget is spent.
    reward: 1.0 for the `finish()` of an episode that made every target, else 0.0.
    """

    observation: str
    done: bool
    reward: float
    kind: Kind


class Episode:
    """One task, played for at most `max_turns` turns; a reply is a turn, whether it holds a valid call or not.

    messages: the opening conversation, a system and a user message.
    end: None while the episode runs.
    turns: taken so far.
    inventory: item -> count as it is now, without items that ran out. A live view, not to be changed.
    looked_up: the items asked for with get_info so far, in order (values are None: an ordered set).
    """

    def __init__(self, task: Task, max_turns: int = 75, world: World | None = None) -> None:
        if max_turns < 1:
            raise ValueError(f"max_turns is {max_turns}, an episode needs at least one turn")
        self.task = task
        self.max_turns = max_turns
        self.world = load_world() if world is None else world
        self.messages: list[dict[str, str]] = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": opening_message(task)},
        ]
        self.inventory: dict[str, int] = dict(task.inventory)
        self.looked_up: dict[str, None] = {}
        self.turns = 0
        self.end: End | None = None

    def step(self, reply: str) -> Turn:
        """Play one reply. Raises RuntimeError if the episode has ended."""
        if self.end is not None:
            raise RuntimeError(f"the episode has ended ({self.end})")
        self.turns += 1
        kind, observation = self._answer(tools.parse(reply))
        if kind == "finish":
            self.end = "wrong_finish" if self.missing() else "success"
        elif self.turns == self.max_turns:
            self.end = "out_of_turns"
        if not observation.isascii():
            # A string literal can name half of a surrogate pair, which neither files nor tokenizers can take.
            observation = observation.encode("utf-8", "replace").decode("utf-8")
        return Turn(observation, self.end is not None, float(self.end == "success"), kind)

    def missing(self) -> dict[str, int]:
        """How many of each target are still to be made on top of the starting inventory; empty when all are there."""
        made = {item: self.inventory.get(item, 0) - self.task.inventory.get(item, 0) for item in self.task.targets}
        return {item: count - made[item] for item, count in self.task.targets.items() if made[item] < count}

    def _answer(self, call: tools.Call | tools.Invalid) -> tuple[Kind, str]:
        match call:
            case tools.GetInfo(items):
                self.looked_up.update(dict.fromkeys(items))
                return "info", tools.look_up(self.world, items)
            case tools.Craft():
                crafted, observation = tools.craft(self.world, self.inventory, call)
                return ("craft" if crafted else "failed_craft"), observation
            case tools.ViewInventory():
                return "inventory", json.dumps(self.inventory)
            case tools.Finish():
                missing = ", ".join(f"{count}x {item}" for item, count in self.missing().items())
                return "finish", f"Finished. Missing: {missing}." if missing else "Finished. All targets crafted."
            case tools.Invalid(reason):
                return "invalid", f"Invalid turn: {reason}"
