"""The expert: minimal plans, look-up order, and the best next call from states that random play reaches."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from textcraft import Episode, Task, load_tasks
from textcraft.oracle import advise, lookup_rounds, plan_crafts
from textcraft.tools import Craft, Finish, GetInfo, render
from textcraft.world import Recipe, World, load_world

repeatable = settings(derandomize=True, deadline=None)
POST = Task("t", "train", {"c2_i4": 1}, {"c9_ore": 4, "c1_ore": 1, "c5_ore": 2}, depth=4, difficulty="medium")
TASKS = [task for split in ("train", "val") for task in load_tasks(split) if task.depth <= 6]


def play_advice(episode: Episode) -> list[str]:
    """Follows the expert to the end and returns the kinds of its turns."""
    kinds = []
    while episode.end is None:
        kinds.append(episode.step(render(advise(episode).call)).kind)
    return kinds


def stumble(episode: Episode, rng: random.Random, moves: int) -> None:
    """Random play: look-ups, crafts right and wrong (mostly of what there is material for), good and invalid turns."""
    world = episode.world
    items = [item for items in lookup_rounds(world, episode.task.targets) for item in items]
    for _ in range(moves):
        most = {
            item: min(episode.inventory.get(name, 0) // each for name, each in world.recipes[item].ingredients.items())
            for item in items
        }
        item = rng.choice([item for item in items if most[item]] or items)
        crafts = rng.choice([1, 1, 2, most[item] + 1, most[item] or 1])
        totals = {name: each * crafts for name, each in world.recipes[item].ingredients.items()}
        wrong = {name: total + rng.choice([0, 1]) for name, total in totals.items()}
        target = (item, world.recipes[item].result_count * crafts)
        good = advise(episode).call
        calls = [
            GetInfo((rng.choice(items),)),
            Craft(wrong, target),
            Craft(totals, target),
            Craft(totals, target),
            good,
        ]
        call = rng.choice([call for call in calls if call != Finish()])
        episode.step(rng.choice(["hm", render(call), render(call), render(call)]))


def test_the_task_of_the_post():
    world = load_world()
    assert lookup_rounds(world, POST.targets) == [["c2_i4"], ["c4_i2", "c1_i2_11"], ["c2_i1"]]
    assert plan_crafts(world, POST.targets) == {"c2_i4": 1, "c4_i2": 1, "c1_i2_11": 1, "c2_i1": 2}
    assert play_advice(Episode(POST)) == ["info"] * 3 + ["craft"] * 4 + ["finish"]


def test_look_ups_go_breadth_first_in_order_of_appearance():
    world = load_world()
    for task in TASKS[::50]:
        rounds = lookup_rounds(world, task.targets)
        asked = [item for items in rounds for item in items]
        assert rounds[0] == list(task.targets) and len(set(asked)) == len(asked) and set(asked) <= set(world.recipes)
        for earlier, later in zip(rounds, [*rounds[1:], []], strict=True):
            before = set(asked[: asked.index(earlier[-1]) + 1])
            shown = [name for item in earlier for name in world.recipes[item].ingredients]
            assert later == list(dict.fromkeys(name for name in shown if name in world.recipes and name not in before))


def test_a_plan_uses_what_is_there_and_leaves_the_targets_that_were_there():
    world = load_world()
    assert plan_crafts(world, POST.targets, {"c2_i1": 1, "c4_i2": 2}) == {"c2_i4": 1, "c1_i2_11": 1}
    assert plan_crafts(world, {"c2_i1": 1, "c4_i2": 1}, {"c2_i1": 1}) == {"c4_i2": 1, "c2_i1": 2}
    assert plan_crafts(world, {"c9_ore": 3}) == {}


@settings(repeatable, max_examples=300)
@given(st.sampled_from(TASKS), st.integers(0, 2**32), st.integers(0, 25))
def test_advice_wins_from_any_state_that_is_not_lost(task, seed, moves):
    episode = Episode(task, max_turns=200)
    stumble(episode, random.Random(seed), moves)
    advice, before, asked = advise(episode), episode.turns, set(episode.looked_up)
    kinds = play_advice(episode)
    if advice.lost is None:
        assert episode.end == "success" and not advice.shortages
        assert episode.turns - before == advice.turns
        assert kinds == ["info"] * (advice.turns - advice.crafts - 1) + ["craft"] * advice.crafts + ["finish"]
    else:
        assert episode.end == "wrong_finish" and set(advice.shortages) <= set(task.inventory) and advice.shortages
        assert set(kinds) <= {"info", "craft", "finish"}
        assert all(f"{item} need" in advice.lost for item in advice.shortages)
    assert len(set(episode.looked_up) - asked) <= sum(len(items) for items in lookup_rounds(load_world(), task.targets))


@settings(repeatable, max_examples=60)
@given(st.sampled_from(TASKS), st.integers(0, 2**32), st.integers(0, 12))
def test_advice_never_asks_for_a_name_that_was_not_shown_nor_for_one_twice(task, seed, moves):
    episode = Episode(task, max_turns=200)
    stumble(episode, random.Random(seed), moves)
    while episode.end is None and isinstance(call := advise(episode).call, GetInfo):
        recipes = [episode.world.recipes[item] for item in episode.looked_up if item in episode.world.recipes]
        shown = {*task.targets, *(name for recipe in recipes for name in recipe.ingredients)}
        assert set(call.items) <= shown - set(episode.looked_up) and len(set(call.items)) == len(call.items)
        episode.step(render(call))


@st.composite
def small_games(draw) -> tuple[World, Task, list[tuple[str, int]]]:
    """Two raw materials and four items in layers, a task with one or two targets, and some crafts made before."""
    names = ["r1", "r2", "i1", "i2", "i3", "i4"]
    recipes = {}
    for index, name in enumerate(names[2:], start=2):
        ingredients = draw(st.sets(st.sampled_from(names[:index]), min_size=1, max_size=2))
        recipes[name] = Recipe(
            {other: draw(st.integers(1, 2)) for other in sorted(ingredients)}, draw(st.integers(1, 3))
        )
    targets = draw(st.dictionaries(st.sampled_from(names[2:]), st.integers(1, 2), min_size=1, max_size=2))
    raw = {"r1": st.integers(0, 9), "r2": st.integers(0, 9)}
    inventory = draw(st.fixed_dictionaries(raw, optional={"i1": st.integers(1, 2)}))
    made = draw(st.lists(st.tuples(st.sampled_from(names[2:]), st.integers(1, 2)), max_size=3))
    world = World(recipes, {name: max(0, index - 1) for index, name in enumerate(names)})
    return world, Task("t", "train", targets, inventory, depth=4, difficulty="easy"), made


def successors(world: World, inventory: dict[str, int]) -> Iterator[dict[str, int]]:
    for item, recipe in world.recipes.items():
        after = dict(inventory)
        while all(after.get(name, 0) >= each for name, each in recipe.ingredients.items()):
            for name, each in recipe.ingredients.items():
                after[name] -= each
            after[item] = after.get(item, 0) + recipe.result_count
            yield dict(after)


def fewest_crafts(world: World, final: dict[str, int], inventory: dict[str, int]) -> int | None:
    """By trying every craft call there is, breadth-first; None if nothing leads to `final`."""
    level, seen, calls = [inventory], set(), 0
    while level:
        if any(all(state.get(item, 0) >= count for item, count in final.items()) for state in level):
            return calls
        following = {tuple(sorted(state.items())): state for parent in level for state in successors(world, parent)}
        level = [state for key, state in following.items() if key not in seen]
        seen |= set(following)
        calls += 1
    return None


@settings(repeatable, max_examples=400)
@given(small_games())
def test_no_play_needs_fewer_crafts_and_none_wins_what_the_advice_calls_wasted(game):
    world, task, made = game
    episode = Episode(task, max_turns=50, world=world)
    for item, crafts in made:
        totals = {name: each * crafts for name, each in world.recipes[item].ingredients.items()}
        episode.step(render(Craft(totals, (item, crafts * world.recipes[item].result_count))))
    advice = advise(episode)
    final = {item: count + task.inventory.get(item, 0) for item, count in task.targets.items()}
    fewest = fewest_crafts(world, final, dict(episode.inventory))
    assert (fewest is None) == bool(advice.shortages) == (advice.lost is not None)
    assert fewest is None or (fewest == advice.crafts and play_advice(episode).count("craft") == fewest)


def test_wasted_materials_are_named_and_the_rest_is_still_played():
    wasted = Episode(Task("t", "train", {"c4_i2": 1}, {"c9_ore": 2, "c1_ore": 1, "c5_ore": 2}, 3, "easy"))
    wasted.step('<tool>craft({"c9_ore": 2}, ("c2_i1", 2))</tool>')
    assert advise(wasted).lost is None
    wasted.step('<tool>craft({"c5_ore": 2, "c2_i1": 1}, ("c1_i2_11", 3))</tool>')
    advice = advise(wasted)
    assert advice.lost == "Materials were wasted: c9_ore need 2, have 0." and advice.shortages == {"c9_ore": 2}
    assert advice.call == GetInfo(("c4_i2",))
    assert play_advice(wasted)[-1] == "finish" and wasted.end == "wrong_finish"


@pytest.mark.parametrize("task", TASKS[::400])
def test_too_few_turns_are_said_and_the_advice_stays_the_same(task):
    enough = advise(Episode(task, max_turns=500))
    assert advise(Episode(task, max_turns=enough.turns)) == enough and enough.lost is None
    short = advise(Episode(task, max_turns=enough.turns - 1))
    assert short.lost == f"Too few turns: {enough.turns} needed, {enough.turns - 1} left."
    assert (short.call, short.crafts, short.turns) == (enough.call, enough.crafts, enough.turns)


def test_a_skipped_look_up_comes_before_the_crafts_that_need_it():
    episode = Episode(POST)
    episode.step('<tool>get_info(["c2_i4"])</tool>')
    episode.step('<tool>get_info(["c4_i2"])</tool>')
    assert advise(episode).call == GetInfo(("c1_i2_11", "c2_i1"))


def test_a_finished_task_is_finished_and_an_ended_episode_has_no_advice():
    episode = Episode(POST)
    play_advice(episode)
    with pytest.raises(RuntimeError, match="ended"):
        advise(episode)
    done = Episode(Task("t", "train", {"c2_i1": 2}, {"c9_ore": 2}, 1, "easy"))
    done.step('<tool>craft({"c9_ore": 2}, ("c2_i1", 2))</tool>')
    advice = advise(done)
    assert (advice.call, advice.crafts, advice.turns) == (Finish(), 0, 1)
