"""What the tiny base model reads: an exploring player's transcripts, and drills of single skills.

The model has to know the game's language and not the procedure that fine-tuning teaches. So nothing here knows an
oracle or a demonstration: the player looks things up, guesses, reads errors, tries again and mostly fails, and the
drills ask for one small skill at a time (copy, select, count, scale) in their own words. Every chat draws its recipes
from another world than the benchmark's and renames all items at random, so that no recipe can be learnt by heart.
"""

import json
import random
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from textcraft.episode import Episode
from textcraft.prompt import SYSTEM_PROMPT
from textcraft.tools import Craft, Finish, GetInfo, ViewInventory, render
from textcraft.world import BENCHMARK_SEED, Recipe, Task, World, load_world

WORLD_SEEDS = range(1000, 1040)
DRILL_SYSTEM_PROMPT = "Answer each question about names, numbers and recipes."
DOMAINS = "mcoat"
MAX_TIER = 5

Message = tuple[str, str]  # role, text
Chat = list[Message]


def chats(rng: random.Random, copy_share: float = 0.05) -> Iterable[Chat]:
    """An endless stream of training chats: `copy_share` of them copy any text, two of five others are transcripts."""
    while True:
        if rng.random() < copy_share:
            yield copy_chat(rng)
        else:
            yield transcript(rng) if rng.random() < 0.4 else drill_chat(rng)


# ---------------------------------------------------------------------------------------------------- fresh worlds


def fresh_task(rng: random.Random, tiers: range = range(1, MAX_TIER + 1)) -> tuple[Task, World]:
    """A task whose names nobody has seen: a crafting tree of another world under new names.

    The inventory is made like the benchmark's: what the tree needs, up to half as much again, and a few other raws.
    """
    seed = rng.choice(WORLD_SEEDS)
    if seed == BENCHMARK_SEED:
        raise ValueError("the base model must not see the benchmark's world")
    world = load_world(seed)
    tier = rng.choice(tiers)
    target = rng.choice([item for item in world.recipes if world.depths[item] == tier and item[0] != "x"])
    tree = _below(world, target)
    others = rng.sample([item for item in world.depths if item not in tree and world.depths[item] <= MAX_TIER], 8)
    names = _new_names([*tree, *others], world, rng)
    kept = [*tree, *(item for item in others if world.is_raw(item))]
    renamed = World(
        recipes={
            names[item]: Recipe(
                {names[part]: count for part, count in world.recipes[item].ingredients.items()},
                world.recipes[item].result_count,
            )
            for item in tree
            if item in world.recipes
        },
        depths={names[item]: world.depths[item] for item in kept},
    )
    count = rng.randint(1, 5)
    inventory = {
        item: amount + rng.randint(0, max(1, amount // 2))
        for item, amount in _raw_needs(renamed, names[target], count).items()
    }
    distractors = [item for item in renamed.depths if renamed.is_raw(item) and item not in inventory]
    for item in rng.sample(distractors, min(len(distractors), rng.randint(1, 3))):
        inventory[item] = rng.randint(1, 5)
    task = Task("fresh", "train", {names[target]: count}, inventory, tier, "easy")
    return task, renamed


def _below(world: World, target: str) -> list[str]:
    tree = [target]
    for item in tree:
        if item in world.recipes:
            tree.extend(part for part in world.recipes[item].ingredients if part not in tree)
    return tree


def _raw_needs(world: World, item: str, count: int) -> dict[str, int]:
    if world.is_raw(item):
        return {item: count}
    recipe = world.recipes[item]
    crafts = -(-count // recipe.result_count)
    needs: dict[str, int] = {}
    for part, amount in recipe.ingredients.items():
        for raw, need in _raw_needs(world, part, amount * crafts).items():
            needs[raw] = needs.get(raw, 0) + need
    return needs


def _new_names(items: list[str], world: World, rng: random.Random) -> dict[str, str]:
    """New names of the benchmark's shape, one domain letter for each old one, the tier kept."""
    letters = dict(zip(DOMAINS, rng.sample(DOMAINS, len(DOMAINS)), strict=True))
    names: dict[str, str] = {}
    taken: set[str] = set()
    for item in items:
        old_letter = item.removeprefix("raw_")[0]
        letter = letters.get(old_letter, old_letter)
        while item not in names:
            name = _draw_name(letter, world.depths[item], rng)
            if name not in taken:
                taken.add(name)
                names[item] = name
    return names


def _draw_name(letter: str, tier: int, rng: random.Random) -> str:
    prefix = f"{letter}{rng.randrange(10)}"
    if tier == 0:
        return f"{prefix}_ore" if letter in "mc" else f"raw_{prefix}"
    return f"{prefix}_i{tier}" + (f"_{rng.randint(10, 24)}" if rng.random() < 0.6 else "")


# -------------------------------------------------------------------------------------------------- the player


@dataclass
class Player:
    """Somebody without a method: looks up, guesses counts, reads errors, tries again, gives up."""

    task: Task
    world: World
    rng: random.Random
    care: float  # chance to do the sensible thing at each choice
    known: list[str] = field(default_factory=list)
    queue: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.target, self.count = next(iter(self.task.targets.items()))
        self.queue = [self.target]

    def reply(self, episode: Episode, observation: str) -> str:
        """The next reply: often a few words, always one tool call."""
        rng = self.rng
        made = episode.inventory.get(self.target, 0) >= self.count
        if (made and rng.random() < 0.9) or rng.random() < 0.05 + 0.04 * ("Error" in observation):
            return self._say("Target crafted.", "Stopping here.", "Done.", "Out of ideas, all done.") + render(Finish())
        if rng.random() < 0.04:
            return self._say("What do I have?", "Checking the inventory.", "Inventory first.") + render(ViewInventory())
        if self.target not in self.known and rng.random() < 0.9:
            return self._look_up([self.target])
        if "Insufficient" in observation and rng.random() < self.care:
            short = [word[:-1] for word in observation.split() if word.endswith(":") and word[:-1] in self.world.depths]
            craftable = [item for item in short if item in self.world.recipes]
            if craftable:
                self.queue.append(rng.choice(craftable))
        return self._work(episode, observation)

    def _work(self, episode: Episode, observation: str) -> str:
        rng = self.rng
        item = self.queue[-1] if self.queue and rng.random() < 0.85 else rng.choice([*self.known, self.target])
        if item not in self.known and rng.random() < 0.85:
            return self._look_up([item])
        recipe = self.world.recipes.get(item)
        if recipe is None:
            return self._look_up([item])
        parts = [part for part in recipe.ingredients if part in self.world.recipes]
        unknown = [part for part in parts if part not in self.known]
        if unknown and rng.random() < 0.8:
            rng.shuffle(unknown)
            chosen = unknown[: rng.randint(1, len(unknown))]
            self.queue.extend(chosen)
            return self._look_up(chosen)
        lacking = [part for part in parts if episode.inventory.get(part, 0) < recipe.ingredients[part]]
        if lacking and rng.random() < self.care:
            self.queue.append(rng.choice(lacking))
            if self.queue[-1] in self.known:
                return self._craft(self.queue[-1], observation)
            return self._look_up([self.queue[-1]])
        return self._craft(item, observation)

    def _craft(self, item: str, observation: str) -> str:
        rng = self.rng
        recipe = self.world.recipes[item]
        crafts = rng.choice([1, 1, 1, 2, 2, 3, 4, 5, 6])
        if item == self.target and rng.random() < self.care:
            crafts = -(-self.count // recipe.result_count)
        count = crafts * recipe.result_count
        scale = crafts
        if rng.random() > self.care:
            scale = max(1, crafts + rng.choice([-1, 0, 1]))
        if rng.random() > self.care:
            count = crafts
        ingredients = {part: amount * scale for part, amount in recipe.ingredients.items()}
        if item not in self.known:
            guesses = [part for part in [*self.task.inventory, *self.known] if part != item]
            ingredients = {part: rng.randint(1, 3) for part in rng.sample(guesses, min(len(guesses), 2))}
        if item in self.queue and rng.random() < 0.8:
            self.queue.remove(item)
        return self._say(
            f"Trying {item}.",
            f"{count} of {item}.",
            f"Crafting {item} now.",
            f"Retry {item}.",
            f"Plan: {crafts} crafts of {item}.",
        ) + render(Craft(ingredients, (item, count)))

    def _look_up(self, items: list[str]) -> str:
        self.known += [item for item in items if item in self.world.recipes and item not in self.known]
        return self._say(
            f"Look at {items[0]}.", "Which recipe?", f"What is in {items[-1]}?", f"Goal: {self.count}x {self.target}."
        ) + render(GetInfo(tuple(items)))

    def _say(self, *choices: str) -> str:
        return self.rng.choice(choices) + "\n" if self.rng.random() < 0.5 else ""


def play(rng: random.Random, tiers: range = range(1, MAX_TIER + 1), max_turns: int = 30) -> tuple[Episode, Chat]:
    """One episode of the player, with its transcript."""
    task, world = fresh_task(rng, tiers)
    episode = Episode(task, max_turns=max_turns, world=world)
    chat = [(message["role"], message["content"]) for message in episode.messages]
    player = Player(task, world, rng, care=rng.uniform(0.3, 0.9))
    observation = ""
    while episode.end is None:
        reply = player.reply(episode, observation)
        observation = episode.step(reply).observation
        chat += [("assistant", reply), ("user", observation)]
    return episode, chat[:-1]


def transcript(rng: random.Random) -> Chat:
    return play(rng)[1]


# ------------------------------------------------------------------------------------------------------ drills


@dataclass
class Sheet:
    """What a drill may ask about: recipe lines shown so far, in order, and the numbers noted so far."""

    rng: random.Random
    world: World
    order: list[str] = field(default_factory=list)  # items whose recipe was shown
    last: list[str] = field(default_factory=list)  # those of the last block
    notes: dict[str, int] = field(default_factory=dict)

    def names(self, low: int, high: int) -> list[str]:
        pool = list(self.world.depths)
        return self.rng.sample(pool, min(len(pool), self.rng.randint(low, high)))

    def shown(self) -> str:
        return self.rng.choice(self.order)


def drill_chat(rng: random.Random) -> Chat:
    """A chat of questions and answers about one small world; later questions reach back to earlier messages."""
    task, world = fresh_task(rng, range(2, MAX_TIER + 1))
    sheet = Sheet(rng, world)
    chat: Chat = [("system", rng.choice([SYSTEM_PROMPT, DRILL_SYSTEM_PROMPT]))]
    unseen = _below(world, next(iter(task.targets)))
    unseen = [item for item in unseen if item in world.recipes]
    if rng.random() < 0.5:
        rng.shuffle(unseen)
    for _ in range(rng.randint(10, 30)):
        if unseen and (not sheet.order or rng.random() < 0.3):
            block, unseen = unseen[: rng.randint(1, 4)], unseen[4:]
            sheet.order += [item for item in block if item not in sheet.order]
            sheet.last = block
            chat.append(("user", "\n".join(_recipe_line(world, item) for item in block)))
            chat.append(("assistant", _new_parts(sheet)))
            continue
        question, answer = rng.choice(DRILLS)(sheet)
        chat += [("user", question), ("assistant", answer)]
    return chat


def copy_chat(rng: random.Random) -> Chat:
    """Copies of any text at all. A token that the base model never saw can not be learnt through LoRA later."""
    chat: Chat = [("system", rng.choice([SYSTEM_PROMPT, DRILL_SYSTEM_PROMPT]))]
    for _ in range(rng.randint(5, 15)):
        text = _any_text(rng)
        chat += [("user", f"Repeat: {text}"), ("assistant", text)]
    return chat


def _any_text(rng: random.Random) -> str:
    count = rng.randint(2, 8)
    if rng.random() < 0.3:
        return " ".join(rng.choices(SYSTEM_PROMPT.split(), k=count))
    alphabet: Sequence[str] = rng.choice([string.ascii_lowercase, string.ascii_letters, string.printable])
    if rng.random() < 0.1:
        alphabet = [chr(rng.randrange(0xA1, 0xD7FF)) for _ in range(8)]
    return " ".join("".join(rng.choices(alphabet, k=rng.randint(1, 6))) for _ in range(count))


def _recipe_line(world: World, item: str) -> str:
    recipe = world.recipes[item]
    return f"{item}: " + json.dumps({"ingredients": recipe.ingredients, "result_count": recipe.result_count})


def _new_parts(sheet: Sheet) -> str:
    """The craftable parts of the last block that no earlier line mentions."""
    earlier = sheet.order[: len(sheet.order) - len(sheet.last)]
    mentioned = set(sheet.order) | {part for item in earlier for part in sheet.world.recipes[item].ingredients}
    parts = dict.fromkeys(part for item in sheet.last for part in sheet.world.recipes[item].ingredients)
    return f"New: {json.dumps([part for part in parts if part in sheet.world.recipes and part not in mentioned])}"


def _ceil(count: int, size: int) -> int:
    return -(-count // size)


Drill = Callable[[Sheet], Message]  # question, answer


def add(sheet: Sheet) -> Message:
    a, b = sheet.rng.randint(1, 40), sheet.rng.randint(1, 20)
    return f"Add {a} and {b}.", str(a + b)


def running_sum(sheet: Sheet) -> Message:
    numbers = [sheet.rng.randint(1, 12) for _ in range(sheet.rng.randint(2, 4))]
    total, steps = numbers[0], []
    for number in numbers[1:]:
        steps.append(f"{total}+{number}={total + number}")
        total += number
    return f"Add {', '.join(map(str, numbers))} step by step.", " ".join(steps)


def multiply(sheet: Sheet) -> Message:
    a, b = sheet.rng.randint(1, 30), sheet.rng.randint(1, 4)
    return f"{a} times {b}?", str(a * b)


def round_up(sheet: Sheet) -> Message:
    count, size = sheet.rng.randint(1, 30), sheet.rng.randint(1, 4)
    crafts = _ceil(count, size)
    return f"How many batches of {size} give at least {count}?", f"{crafts}, which is {crafts * size}"


def repeat(sheet: Sheet) -> Message:
    names = json.dumps(sheet.names(1, 8))
    return f"Repeat {names}", names


def without_first(sheet: Sheet) -> Message:
    names = sheet.names(1, 7)
    return f"{', '.join(names)}. What is left without the first?", f"{', '.join(names[1:]) or 'nothing'}."


def next_name(sheet: Sheet) -> Message:
    names = sheet.names(2, 7)
    place = sheet.rng.randrange(len(names) - 1)
    return f"{', '.join(names)}. After {names[place]}?", names[place + 1]


def names_after(sheet: Sheet) -> Message:
    names = sheet.names(2, 7)
    place = sheet.rng.randrange(len(names) - 1)
    return f"{', '.join(names)}. All after {names[place]}?", f"{', '.join(names[place + 1 :])}."


def times(sheet: Sheet) -> Message:
    counts = {name: sheet.rng.randint(1, 2) for name in sheet.names(1, 4)}
    factor = sheet.rng.randint(1, 12)
    return f"{json.dumps(counts)} times {factor}", json.dumps({name: n * factor for name, n in counts.items()})


def recipe_of(sheet: Sheet) -> Message:
    item = sheet.shown()
    return f"Recipe of {item}?", json.dumps(sheet.world.recipes[item].ingredients)


def yield_of(sheet: Sheet) -> Message:
    item = sheet.shown()
    return f"Yield of {item}?", str(sheet.world.recipes[item].result_count)


def batches_of(sheet: Sheet) -> Message:
    item, count = sheet.shown(), sheet.rng.randint(1, 20)
    size = sheet.world.recipes[item].result_count
    return f"Batches for {count} {item}?", f"{count} by {size} is {_ceil(count, size)}"


def parts_for(sheet: Sheet) -> Message:
    item, crafts = sheet.shown(), sheet.rng.randint(1, 12)
    parts = {part: amount * crafts for part, amount in sheet.world.recipes[item].ingredients.items()}
    return f"Parts for {crafts} batches of {item}?", json.dumps(parts)


def call_for(sheet: Sheet) -> Message:
    item, crafts = sheet.shown(), sheet.rng.randint(1, 12)
    recipe = sheet.world.recipes[item]
    parts = {part: amount * crafts for part, amount in recipe.ingredients.items()}
    return f"Call for {crafts} batches of {item}?", render(Craft(parts, (item, crafts * recipe.result_count)))


def of_layer(sheet: Sheet) -> Message:
    tier = sheet.rng.randint(1, 3)
    found = [item for item in sheet.order if sheet.world.depths[item] == tier]
    return f"Layer {tier} so far?", f"{', '.join(found) or 'none'}."


def note(sheet: Sheet) -> Message:
    item, share = sheet.rng.choice([*sheet.notes, *sheet.order]), sheet.rng.randint(1, 9)
    before = sheet.notes.get(item, 0)
    sheet.notes[item] = before + share
    answer = f"{item} has {before}+{share}={before + share}" if before else f"{item} has {share}"
    return f"Note {share} more {item}.", answer


def note_parts(sheet: Sheet) -> Message:
    item, crafts = sheet.shown(), sheet.rng.randint(1, 6)
    said = []
    for part, amount in sheet.world.recipes[item].ingredients.items():
        if part not in sheet.world.recipes:
            continue
        before, share = sheet.notes.get(part, 0), amount * crafts
        sheet.notes[part] = before + share
        said.append(f"{part} has {before}+{share}={before + share}" if before else f"{part} has {share}")
    return f"Note the craftable parts of {crafts} batches of {item}.", f"{', '.join(said) or 'none'}."


def noted(sheet: Sheet) -> Message:
    if not sheet.notes:
        return note(sheet)
    item = sheet.rng.choice(list(sheet.notes))
    return f"How many {item} noted?", str(sheet.notes[item])


def craftable_parts(sheet: Sheet) -> Message:
    item = sheet.shown()
    found = [part for part in sheet.world.recipes[item].ingredients if part in sheet.world.recipes]
    return f"Craftable parts of {item}?", f"{', '.join(found) or 'none'}."


def plain_recipes(sheet: Sheet) -> Message:
    plain = [item for item in sheet.last if all(map(sheet.world.is_raw, sheet.world.recipes[item].ingredients))]
    return "Which of the last recipes use raw materials alone?", f"{', '.join(plain) or 'none'}."


# Those that reach back to a recipe are the hardest; they are asked three times as often.
DRILLS: tuple[Drill, ...] = (
    *(add, running_sum, multiply, round_up, repeat, without_first, next_name, names_after, times, plain_recipes),
    *(
        recipe_of,
        yield_of,
        batches_of,
        parts_for,
        call_for,
        craftable_parts,
        of_layer,
        note,
        note_parts,
        noted,
    )
    * 3,
)
