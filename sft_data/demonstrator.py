"""The player of a demonstration: follows a procedure through a real episode and writes down what it thinks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sft_data.mistakes import NO_MISTAKES, Mistakes
from sft_data.procedure import Procedure
from textcraft.episode import Episode, Turn
from textcraft.oracle import lookup_rounds
from textcraft.tools import Call, Craft, Finish, GetInfo, ViewInventory, render
from textcraft.world import Task, World, load_world

Message = dict[str, Any]

UNLIMITED_TURNS = 1_000_000

_SHORT = re.compile(r"(\w+): need (\d+), have (\d+)")
_WRONG_AMOUNT = re.compile(r"Wrong amount of (\w+)\. Need (\d+), provided (\d+)")
_NOT_DIVISIBLE = re.compile(r"Target count (\d+) is not divisible by recipe result count (\d+)")


def demonstrate(
    task: Task, procedure: Procedure, mistakes: Mistakes = NO_MISTAKES, world: World | None = None
) -> list[Message]:
    """Play `task` to its successful end and return the whole conversation as chat messages.

    Every assistant message has a `weight`: 0 where it makes one of `mistakes` or lists a layer that leaves the same
    item out, else 1. The starting inventory must hold raw materials only, as in every task of the benchmark.
    """
    demonstrator = _Demonstrator(task, procedure, mistakes, load_world() if world is None else world)
    demonstrator.play()
    return demonstrator.messages


@dataclass(frozen=True)
class _Line:
    """A line of a reply. right: it is no part of a mistake; a line without text can say so of what is left unsaid."""

    text: str
    right: bool = True


class _Demonstrator:
    """What the player has seen, worked out and made so far, its mistakes included."""

    def __init__(self, task: Task, procedure: Procedure, mistakes: Mistakes, world: World) -> None:
        self.procedure, self.wording, self.world = procedure, procedure.wording, world
        self.episode = Episode(task, max_turns=UNLIMITED_TURNS, world=world)
        self.messages: list[Message] = list(self.episode.messages)

        self.shown: set[str] = set(task.targets)  # craftable items named so far
        self.looked_up: list[str] = []
        self.totals = dict(task.targets)  # item -> how many are needed, as far as shares were handed out
        self.shares = {item: [count] for item, count in task.targets.items()}  # what each total should be the sum of
        self.planned: dict[str, int] = {}  # item -> crafts whose shares were handed out to the ingredients
        self.made: dict[str, int] = {}  # item -> crafts done
        self.lines: list[_Line] = []  # plan lines that wait for a turn

        self.overlooked = set(mistakes.omitted_lookups)
        self.skipped = set(mistakes.omitted_crafts)
        self.short_shares, self.wrong_calls = mistakes.short_shares, mistakes.wrong_calls
        self.repairs = 0  # that are under way; no count is got wrong in them

    def play(self) -> None:
        targets = self.episode.task.targets
        goal = self.wording.goal.format(
            targets=", ".join(self.wording.target.format(item=item, count=count) for item, count in targets.items()),
            lines=self.procedure.lines_per_turn,
        )
        lines = [*self.plan([_Line(goal)], list(targets), list(targets)), _Line(self.wording.plan_done)]
        depths = sorted({self.world.depths[item] for item in self.looked_up})
        for number, depth in enumerate(depths, start=1):
            lines = self.craft_layer(number, depth, lines)
        self.say(lines, Finish())

    def say(self, lines: Sequence[_Line], call: Call, *, right: bool = True) -> Turn:
        """Make `call` after `lines`. right: the call itself is no mistake."""
        reply = "\n".join([*(line.text for line in lines if line.text), render(call)])
        turn = self.episode.step(reply)
        weight = int(right and all(line.right for line in lines))
        self.messages.append({"role": "assistant", "content": reply, "weight": weight})
        if not turn.done:
            self.messages.append({"role": "user", "content": turn.observation})
        return turn

    # Looking up and planning

    def plan(self, opening: list[_Line], asked: list[str], goals: list[str]) -> list[_Line]:
        """Look up `asked` and what is unknown below, plan `goals` and what is below; the lines still to be said."""
        waiting = self.users_below(goals)
        lines, complete = opening, True
        while asked:
            self.say([*lines, *self.next_lines()], GetInfo(tuple(asked)), right=complete)
            asked, complete = self.note_recipes(asked)
            lines = [] if asked or complete else [_Line("", right=False)]  # it stops looking up too early
            self.hand_out_ready(waiting)
        self.hand_out_ready(waiting)
        while len(self.lines) > self.procedure.lines_per_turn:
            self.say([*lines, *self.next_lines()], ViewInventory())
            lines = []
        return [*lines, *self.next_lines()]

    def users_below(self, goals: list[str]) -> dict[str, set[str]]:
        """Each item of the tree below `goals` with those that use it there, as far as the player will look."""
        recipes = {item: recipe for item, recipe in self.world.recipes.items() if item not in self.overlooked}
        users: dict[str, set[str]] = {
            item: set() for asked in lookup_rounds(World(recipes, self.world.depths), goals) for item in asked
        }
        for user in users:
            for ingredient in recipes[user].ingredients:
                if ingredient in users:
                    users[ingredient].add(user)
        return users

    def note_recipes(self, asked: list[str]) -> tuple[list[str], bool]:
        """Take in the recipes just shown; the next look-up list, and whether nothing that belongs in it is left out."""
        self.looked_up += asked
        fresh = [
            ingredient
            for ingredient in dict.fromkeys(i for item in asked for i in self.world.recipes[item].ingredients)
            if ingredient in self.world.recipes and ingredient not in self.shown
        ]
        self.shown.update(fresh)
        following = [item for item in fresh if item not in self.overlooked]
        if self.procedure.sorted_lookups:
            following.sort()
        return following, len(following) == len(fresh)

    def hand_out_ready(self, waiting: dict[str, set[str]]) -> None:
        """Hand out the shares of every item whose recipe is known and that waits for no user's share."""
        while ready := next((item for item in self.looked_up if item in waiting and not waiting[item]), None):
            del waiting[ready]
            self.hand_out(ready)
            for ingredient in self.world.recipes[ready].ingredients:
                if ingredient in waiting:
                    waiting[ingredient].remove(ready)

    def hand_out(self, item: str) -> None:
        """Pass on what `item` needs of its craftable ingredients, in a plan line; no line if there is nothing new."""
        recipe = self.world.recipes[item]
        planned = self.planned.get(item, 0)
        crafts = -(-self.totals[item] // recipe.result_count) - planned
        ingredients = {i: each * crafts for i, each in recipe.ingredients.items() if i in self.world.recipes}
        if crafts <= 0 or not ingredients:
            return
        self.planned[item] = planned + crafts
        shares = [self.share(item, ingredient, count) for ingredient, count in ingredients.items()]
        template = self.wording.plan if recipe.result_count == 1 else self.wording.plan_divided
        line = template.format(
            item=item,
            total=self.total_text(item, planned * recipe.result_count),
            yield_=recipe.result_count,
            crafts=crafts,
            shares=self.wording.share_separator.join(text for text, _ in shares),
        )
        self.lines.append(_Line(line, all(right for _, right in shares)))

    def share(self, user: str, ingredient: str, count: int) -> tuple[str, bool]:
        """Add `count` to the total of `ingredient`; its words, and whether they are right."""
        short = 0 if self.repairs else self.short_shares.get((user, ingredient), 0)
        if short >= count:  # another mistake made the share smaller
            short = 0
        self.shares.setdefault(ingredient, []).append(count)
        earlier = self.totals.get(ingredient, 0)
        self.totals[ingredient] = earlier + count - short
        if earlier and self.procedure.running_totals:
            text = self.wording.share_added.format(item=ingredient, count=count, total=self.totals[ingredient])
        else:
            text = self.wording.share.format(item=ingredient, count=count - short)
        return text, not short

    def total_text(self, item: str, settled: int) -> str:
        """How many of `item` are needed beyond the `settled` ones, worked out as the procedure does."""
        total = self.totals[item]
        if settled:
            return f"{total}-{settled}={total - settled}"
        return str(total) if self.procedure.running_totals else _sum_text(self.shares[item])

    def next_lines(self) -> list[_Line]:
        count = self.procedure.lines_per_turn
        lines, self.lines = self.lines[:count], self.lines[count:]
        return lines

    # Crafting

    def craft_layer(self, number: int, depth: int, lines: list[_Line]) -> list[_Line]:
        """Craft the items of one depth, the first of them in a reply that begins with `lines`.

        Returns the lines still to be said, which are all of them if the whole layer is left out.
        """
        left = [item for item in self.looked_up if self.world.depths[item] == depth and item not in self.skipped]
        left_out = {item for item in self.shown & (self.overlooked | self.skipped) if self.world.depths[item] == depth}
        if not left:
            return [*lines, _Line("", right=not left_out)]
        template = self.wording.layer
        while left:
            if template:
                layer = template.format(number=number, items=self.wording.separator.join(left))
                lines = [*lines, _Line(layer, right=not left_out)]
            self.craft(left.pop(0), lines)
            template = self.wording.layer_left if self.procedure.layer_every_turn else ""
            lines = []
        return lines

    def craft(self, item: str, lines: list[_Line]) -> None:
        """Craft all that is still needed of `item`, saying `lines` and how many that is."""
        recipe = self.world.recipes[item]
        made = self.made.get(item, 0)
        if item in self.planned:
            template = self.wording.craft
        else:
            template = self.wording.craft_counted if recipe.result_count == 1 else self.wording.craft_divided
        line = template.format(
            item=item,
            total=self.total_text(item, made * recipe.result_count),
            yield_=recipe.result_count,
            crafts=self.crafts_left(item),
        )
        self.attempt(item, [*lines, _Line(line)])

    def crafts_left(self, item: str) -> int:
        return -(-self.totals[item] // self.world.recipes[item].result_count) - self.made.get(item, 0)

    def attempt(self, item: str, lines: list[_Line]) -> None:
        """Say `lines` and make the call that crafts `item`; after a failed one, repair what it shows and retry."""
        recipe, crafts = self.world.recipes[item], self.crafts_left(item)
        call = Craft({i: each * crafts for i, each in recipe.ingredients.items()}, (item, recipe.result_count * crafts))
        slip = None if self.repairs else self.wrong_calls.get(item)
        turn = self.say(lines, slip or call, right=slip is None)
        if turn.kind == "craft":
            self.made[item] = self.made.get(item, 0) + crafts
        else:
            self.repair(item, turn.observation)

    # Recovery

    def repair(self, item: str, error: str) -> None:
        """Read the error of the failed craft of `item`, make what is missing, and retry."""
        self.repairs += 1
        missing = [short[0] for short in _SHORT.findall(error)]
        reading = " ".join([self.wording.failed.format(problem=self.problem(item, error)), *map(self.cause, missing)])
        self.overlooked.difference_update(missing)
        self.skipped.difference_update(missing)
        unknown = [ingredient for ingredient in missing if ingredient not in self.looked_up]
        lines = self.plan([_Line(reading)], unknown, missing)
        below = [i for i in self.looked_up if i in self.users_below(missing) and self.crafts_left(i) > 0]
        for ingredient in sorted(below, key=self.world.depths.__getitem__):
            self.craft(ingredient, lines)
            lines = []
        self.attempt(item, [*lines, _Line(self.wording.retry.format(item=item))])
        self.repairs -= 1

    def problem(self, item: str, error: str) -> str:
        if wrong := _WRONG_AMOUNT.search(error):
            return self.wording.wrong_amount.format(item=wrong[1], need=wrong[2], provided=wrong[3])
        if wrong := _NOT_DIVISIBLE.search(error):
            return self.wording.not_divisible.format(item=item, count=wrong[1], yield_=wrong[2])
        return ", ".join(
            self.wording.short.format(item=name, need=need, have=have) for name, need, have in _SHORT.findall(error)
        )

    def cause(self, missing: str) -> str:
        """Why there is too little of `missing`. A wrong total is corrected on the way."""
        if missing not in self.looked_up:
            return self.wording.not_looked_up.format(item=missing)
        if missing not in self.made:
            return self.wording.skipped.format(item=missing)
        total, self.totals[missing] = self.totals[missing], sum(self.shares[missing])
        return self.wording.miscounted.format(item=missing, sum=_sum_text(self.shares[missing]), total=total)


def _sum_text(shares: list[int]) -> str:
    return f"{'+'.join(map(str, shares))}={sum(shares)}" if len(shares) > 1 else str(shares[0])
