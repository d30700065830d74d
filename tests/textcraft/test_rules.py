"""Our rules against the package's own environment, which is the judge of them."""

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest
from platoon_textcraft.env import CraftParams, FinishParams, TextCraftSynthEnvironment

from textcraft import Episode, Task, load_tasks
from textcraft.oracle import advise, lookup_rounds
from textcraft.tools import Craft, Finish, GetInfo, ViewInventory, render
from textcraft.world import World, load_world

ODD_VALUES = (0, -1, -(10**30), True, False, None, 2.0, "3", b"3", 1j, [1], (1,), {}, {"a": 1}, {1})
ODD_NAMES = (
    "",
    "zz_top",
    "\uff23\uff19_ore",
    "c9_ore ",
    "tag:planks",
    'a"b\\c\n',
    "\N{SNOWMAN}",
    7,
    2.5,
    True,
    None,
    b"c9_ore",
    (),
)
HUGE = 10**4000 - 1


def package_environment(task: Task) -> TextCraftSynthEnvironment:
    misc = {"target_items": task.targets, "initial_inventory": task.inventory}
    return TextCraftSynthEnvironment({"goal": "", "misc": misc})


def right_craft(world: World, items: list[str], episode: Episode, rng: random.Random) -> Craft:
    """A craft of one of `items` whose counts are right, mostly one that the inventory allows."""
    affordable = [
        item
        for item in items
        if all(episode.inventory.get(name, 0) >= each for name, each in world.recipes[item].ingredients.items())
    ]
    item = rng.choice(affordable or items)
    crafts = rng.choice([1, 1, 1, 2, 3])
    recipe = world.recipes[item]
    return Craft(
        {name: each * crafts for name, each in recipe.ingredients.items()}, (item, recipe.result_count * crafts)
    )


def mutated(call: Craft, world: World, rng: random.Random) -> Craft:
    """`call` with one to three things wrong."""
    ingredients, (item, count) = dict(call.ingredients), call.target
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(list(ingredients) or ["c9_ore"])
        match rng.randrange(11):
            case 0:
                ingredients[name] = rng.choice([1, 2, 3, 5, 9, 21, HUGE, 10**18])
            case 1:
                ingredients[name] = rng.choice(ODD_VALUES)
            case 2:
                ingredients.pop(name, None)
            case 3:
                ingredients[rng.choice(list(world.depths))] = rng.randint(1, 4)
            case 4:
                ingredients[rng.choice(ODD_NAMES)] = rng.choice([1, 2, *ODD_VALUES])
            case 5:
                count = rng.choice([1, 2, 3, 5, 7, HUGE, 12 * 10**3000, 0, -3])
            case 6:
                count = rng.choice(ODD_VALUES)
            case 7:
                item = rng.choice(ODD_NAMES)
            case 8:
                item = rng.choice([name for name in world.depths if world.is_raw(name)])
            case 9:
                item = rng.choice(list(world.recipes))
            case 10:
                ingredients = dict(rng.sample(list(ingredients.items()), len(ingredients)))
    return Craft(ingredients, (item, count))


@pytest.mark.parametrize("split", ["train", "val"])
def test_every_craft_answer_and_grade_is_the_packages(split):
    world, rng = load_world(), random.Random(f"rules of {split}")
    kinds: Counter[str] = Counter()
    rewards: Counter[float] = Counter()
    for task in rng.sample([task for task in load_tasks(split) if task.depth <= 8], 100):
        episode, package = Episode(task, max_turns=10**6), package_environment(task)
        items = [item for items in lookup_rounds(world, task.targets) for item in items]
        expert_share = rng.choice([0, 0.3, 1])
        for _ in range(105):
            call = right_craft(world, items, episode, rng)
            if rng.random() < expert_share:
                while isinstance(expert := advise(episode).call, GetInfo):
                    episode.step(render(expert))
                call = expert if isinstance(expert, Craft) else call
            elif rng.random() < 0.7:
                call = mutated(call, world, rng)
            turn = episode.step(render(call))
            kinds[turn.kind] += 1
            assert turn.observation == package._craft(call.ingredients, call.target)
            assert turn.kind == ("craft" if turn.observation.startswith("Successfully") else "failed_craft")
            assert episode.inventory == package.inventory
            assert float(not episode.missing()) == package.evaluate("done")[0]
        reward = episode.step(render(Finish())).reward
        assert reward == package.evaluate("done")[0]
        rewards[reward] += 1
    assert kinds.total() >= 10_000
    assert min(kinds["craft"], kinds["failed_craft"], 100 * rewards[0.0], 100 * rewards[1.0]) > 1_500


def test_the_answers_are_those_of_the_packages_tools():
    task = load_tasks("val", depths=[4])[0]
    episode, package = Episode(task), package_environment(task)

    def ask(call: Any) -> str:
        output = asyncio.run(call)
        return output.blocks[0].text

    while not isinstance(call := advise(episode).call, Finish):
        observation = episode.step(render(call)).observation
        if isinstance(call, Craft):
            assert observation == ask(package.craft(CraftParams(ingredients=call.ingredients, target=call.target)))
        assert episode.inventory == json.loads(ask(package.view_inventory()))
    assert episode.step(render(ViewInventory())).observation == ask(package.view_inventory())
    assert asyncio.run(package.finish(FinishParams(message="done"))).reward == episode.step(render(call)).reward == 1


def test_every_recipe_and_raw_material_is_the_packages():
    task = load_tasks("val")[0]
    episode, package = Episode(task, max_turns=2), package_environment(task)
    infos = package._get_info([*load_world().depths, "zz_top"])
    turn = episode.step(render(GetInfo(tuple(info["item"] for info in infos))))
    for line, info in zip(turn.observation.split("\n"), infos, strict=True):
        if info["can_craft"]:
            assert line == f"{info['item']}: {json.dumps(info['recipes'][0])}"
        else:
            assert line == f"{info['item']}: {'raw material, no recipe' if info['is_base'] else 'unknown item'}"


@pytest.mark.parametrize("sign", ["", "-"])
def test_counts_go_to_4000_digits(sign):
    task = load_tasks("val")[0]
    package = package_environment(task)
    most = int(sign + "9" * 3999 + "8")
    for ingredients, target in [({"raw_t1": most}, ("t8_i1", 2)), ({"raw_t1": 1}, ("t8_i1", most))]:
        turn = Episode(task).step(render(Craft(ingredients, target)))
        assert (turn.kind, turn.observation) == ("failed_craft", package._craft(ingredients, target))
    longer = f'<tool>craft({{"raw_t1": 1}}, ("t8_i1", {sign}1{"0" * 4000}))</tool>'
    assert Episode(task).step(longer).kind == "invalid"
