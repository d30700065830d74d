"""Demonstrations against the post: its transcripts reply for reply, its figures, and the rules of the procedure."""

import base64
import importlib.util
import itertools
import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from platoon_textcraft.env import TextCraftSynthEnvironment
from rich.console import Console

from sft_data import ROUNDS, Mistakes, demonstrate
from sft_data.__main__ import main
from sft_data.dataset import replies, sample
from sft_data.facts import print_facts
from sft_data.wording import EQUATIONS, PROSE, TERSE
from textcraft import Task, load_tasks
from textcraft.facts import ideal_run
from textcraft.oracle import lookup_rounds, plan_crafts
from textcraft.tools import Craft, Finish, GetInfo, ViewInventory, parse
from textcraft.world import load_world

WORLD = load_world()
TASKS = {task.id: task for split in ("train", "val") for task in load_tasks(split)}


def task_of(number: int, split: str = "train") -> Task:
    return TASKS[f"textcraft_synth.{split}.{number}"]


def said(messages: list[dict]) -> list[str]:
    return replies({"messages": messages})


def weights(messages: list[dict]) -> list[int]:
    return [message["weight"] for message in messages if message["role"] == "assistant"]


# The post's transcripts. It shows the first four replies of round 1 and the turns around the failed craft of round 2;
# the others follow from its rules.

ROUND_1 = [
    "Goal: 1x c2_i4. Plan: look up recipes layer by layer, total each item top-down (at most 8 lines per turn), "
    'then craft each item once bottom-up.\n<tool>get_info(["c2_i4"])</tool>',
    'c2_i4: 1 -> c4_i2+2 c1_i2_11+1\n<tool>get_info(["c1_i2_11", "c4_i2"])</tool>',
    'c1_i2_11: 1, /3 -> 1 crafts -> c2_i1+1\nc4_i2: 2, /3 -> 1 crafts -> c2_i1+2\n<tool>get_info(["c2_i1"])</tool>',
    "Plan done. Crafting bottom-up.\nLayer 1: c2_i1.\nc2_i1: 1+2=3, /2 -> 2 crafts.\n"
    '<tool>craft({"c9_ore": 4}, ("c2_i1", 4))</tool>',
    'Layer 2: c1_i2_11, c4_i2.\nc1_i2_11: 1 crafts.\n<tool>craft({"c5_ore": 2, "c2_i1": 1}, ("c1_i2_11", 3))</tool>',
    'c4_i2: 1 crafts.\n<tool>craft({"c2_i1": 2, "c1_ore": 1}, ("c4_i2", 3))</tool>',
    'Layer 3: c2_i4.\nc2_i4: 1 crafts.\n<tool>craft({"c4_i2": 2, "c1_i2_11": 1}, ("c2_i4", 1))</tool>',
    "<tool>finish()</tool>",
]

ROUND_2 = [
    "Goal: 1x m0_i5_10. Plan: look up recipes layer by layer, total each item top-down (at most 5 lines per turn), "
    'then craft each item once bottom-up.\n<tool>get_info(["m0_i5_10"])</tool>',
    'm0_i5_10: 1 -> m4_i3_14+1 m2_i4_12+1\n<tool>get_info(["m4_i3_14", "m2_i4_12"])</tool>',
    "m2_i4_12: 1, /2 -> 1 crafts -> m3_i2_13+2 m0_i2_20+2 m4_i3_14+2=3\nm4_i3_14: 3 -> m6_i2_16+3 m6_i1+6\n"
    '<tool>get_info(["m6_i2_16", "m6_i1", "m3_i2_13", "m0_i2_20"])</tool>',
    "m6_i2_16: 3, /2 -> 2 crafts -> m3_i1_13+2\nm3_i2_13: 2, /2 -> 1 crafts -> m4_i1+2\n"
    "m0_i2_20: 2, /3 -> 1 crafts -> m0_i1+1\n"
    '<tool>get_info(["m3_i1_13", "m4_i1", "m0_i1"])</tool>',
    "Plan done. Crafting bottom-up.\nLayer 1: m6_i1, m3_i1_13, m4_i1.\nm6_i1: 6, /2 -> 3 crafts.\n"
    '<tool>craft({"m8_ore": 3}, ("m6_i1", 6))</tool>',
    'Layer 1 left: m3_i1_13, m4_i1.\nm3_i1_13: 2, /4 -> 1 crafts.\n<tool>craft({"m9_ore": 2}, ("m3_i1_13", 4))</tool>',
    'Layer 1 left: m4_i1.\nm4_i1: 2, /2 -> 1 crafts.\n<tool>craft({"m7_ore": 2}, ("m4_i1", 2))</tool>',
    "Layer 2: m6_i2_16, m3_i2_13, m0_i2_20.\nm6_i2_16: 2 crafts.\n"
    '<tool>craft({"m3_ore": 2, "m3_i1_13": 2}, ("m6_i2_16", 4))</tool>',
    "Layer 2 left: m3_i2_13, m0_i2_20.\nm3_i2_13: 1 crafts.\n"
    '<tool>craft({"m4_i1": 2, "m6_ore": 1}, ("m3_i2_13", 2))</tool>',
    'Layer 2 left: m0_i2_20.\nm0_i2_20: 1 crafts.\n<tool>craft({"m3_ore": 1, "m0_i1": 1}, ("m0_i2_20", 3))</tool>',
    "Craft failed: m0_i1 need 1, have 0. m0_i1 was skipped.\nm0_i1: 1, /2 -> 1 crafts.\n"
    '<tool>craft({"m0_ore": 2}, ("m0_i1", 2))</tool>',
    'Retry m0_i2_20.\n<tool>craft({"m3_ore": 1, "m0_i1": 1}, ("m0_i2_20", 3))</tool>',
    'Layer 3: m4_i3_14.\nm4_i3_14: 3 crafts.\n<tool>craft({"m6_i2_16": 3, "m6_i1": 6}, ("m4_i3_14", 3))</tool>',
    "Layer 4: m2_i4_12.\nm2_i4_12: 1 crafts.\n"
    '<tool>craft({"m3_i2_13": 2, "m0_i2_20": 2, "m4_i3_14": 2}, ("m2_i4_12", 2))</tool>',
    'Layer 5: m0_i5_10.\nm0_i5_10: 1 crafts.\n<tool>craft({"m4_i3_14": 1, "m2_i4_12": 1}, ("m0_i5_10", 1))</tool>',
    "<tool>finish()</tool>",
]


def test_round_1_is_the_posts_transcript():
    task = task_of(2481)
    assert task.targets == {"c2_i4": 1}
    assert list(task.inventory.items())[:3] == [("c9_ore", 11), ("c1_ore", 3), ("c5_ore", 3)]
    messages = demonstrate(task, ROUNDS[1])
    assert said(messages) == ROUND_1
    assert set(weights(messages)) == {1}
    assert [message["content"] for message in messages if message["role"] == "user"][1:4] == [
        'c2_i4: {"ingredients": {"c4_i2": 2, "c1_i2_11": 1}, "result_count": 1}',
        'c1_i2_11: {"ingredients": {"c5_ore": 2, "c2_i1": 1}, "result_count": 3}\n'
        'c4_i2: {"ingredients": {"c2_i1": 2, "c1_ore": 1}, "result_count": 3}',
        'c2_i1: {"ingredients": {"c9_ore": 2}, "result_count": 2}',
    ]


def test_round_2_with_a_skipped_item_is_the_posts_transcript():
    messages = demonstrate(task_of(2457), ROUNDS[2], Mistakes(omitted_crafts=frozenset(["m0_i1"])))
    assert said(messages) == ROUND_2
    # Only the three replies that list the first layer without m0_i1 are not trained on.
    assert weights(messages) == [1] * 4 + [0] * 3 + [1] * 9
    failed = messages.index(next(message for message in messages if "failed for" in message["content"]))
    assert messages[failed]["content"] == (
        "Error: All 1 recipe(s) failed for m0_i2_20. Errors:\n"
        "Recipe 1: Insufficient ingredients in inventory: m0_i1: need 1, have 0"
    )
    assert [message["content"] for message in messages[failed + 2 : failed + 5 : 2]] == [
        "Successfully crafted 2 m0_i1(s)",
        "Successfully crafted 3 m0_i2_20(s)",
    ]


def test_the_posts_running_total_line():
    replied = said(demonstrate(task_of(1854), ROUNDS[2]))
    assert any("m5_i4_15: 2 -> m6_i3+4=6 m3_i2_13+4" in reply.split("\n") for reply in replied)


def test_turns_of_round_2_are_the_posts_figures():
    turns = [(task, len(said(demonstrate(task, ROUNDS[2])))) for task in load_tasks("val", "hard")]
    medians = {depth: median(n for task, n in turns if task.depth == depth) for depth in (7, 8, 9)}
    assert medians == {7: 70, 8: 103, 9: 136.5}
    fitting = [n for task, n in turns if ideal_run(task).turns <= 75]
    assert (len(fitting), sum(n > 75 for n in fitting)) == (44, 12)


def test_replies_over_450_tokens_at_depth_9_are_within_3_of_the_posts_32():
    tiktoken, dashscope = pytest.importorskip("tiktoken"), importlib.util.find_spec("dashscope")
    if dashscope is None:
        pytest.skip("the Qwen vocabulary comes from the package dashscope")
    vocabulary = Path(dashscope.origin).parent / "resources" / "qwen.tiktoken"
    pairs = (line.split() for line in vocabulary.read_bytes().splitlines() if line)
    encoding = tiktoken.Encoding(
        "qwen",
        pat_str=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        mergeable_ranks={base64.b64decode(token): int(rank) for token, rank in pairs},
        special_tokens={},
    )
    longest = [
        max(len(encoding.encode(reply)) for reply in said(demonstrate(task, ROUNDS[2])))
        for task in load_tasks("val", depths=[9])
    ]
    assert len(longest) == 44
    assert abs(sum(length > 450 for length in longest) - 32) <= 3


def is_plan_line(line: str) -> bool:
    return re.fullmatch(r"\w+: .* -> (\w+\+\d+(=\d+)? ?)+", line) is not None


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("depth", [2, 3, 4, 6, 8, 11])
def test_a_perfect_demonstration_follows_the_procedure(number, depth):
    procedure = ROUNDS[number]
    for task in load_tasks("val", depths=[depth])[:15]:
        rounds = [sorted(asked) if number == 1 else asked for asked in lookup_rounds(WORLD, task.targets)]
        crafts = plan_crafts(WORLD, task.targets)
        replied = said(demonstrate(task, procedure))
        calls = [parse(reply) for reply in replied]

        look_ups = [call for call in calls if isinstance(call, GetInfo)]
        if number == 2:
            assert [list(call.items) for call in look_ups] == rounds
        assert [sorted(call.items) for call in look_ups] == [sorted(asked) for asked in rounds]
        views = [place for place, call in enumerate(calls) if isinstance(call, ViewInventory)]
        assert calls[: len(look_ups)] == look_ups
        assert views == list(range(len(look_ups), len(look_ups) + len(views)))
        assert [call for call in calls if isinstance(call, Finish)] == [calls[-1]]

        # Every item is crafted once with its whole total, the deeper layers' ingredients first.
        made = [call.target for call in calls if isinstance(call, Craft)]
        assert dict(made) == {item: count * WORLD.recipes[item].result_count for item, count in crafts.items()}
        depths = [WORLD.depths[item] for item, _ in made]
        assert len(made) == len(crafts)
        assert depths == sorted(depths)

        # Plan lines: of the items with a craftable ingredient, users first, so many a turn, as early as they fit.
        lines = [[line for line in reply.split("\n") if is_plan_line(line)] for reply in replied]
        planned = [line.split(":")[0] for turn in lines for line in turn]
        with_parts = {item for item in crafts if WORLD.recipes[item].ingredients.keys() & crafts.keys()}
        assert sorted(planned) == sorted(with_parts)
        written: set[str] = set()
        users = {item: {user for user in crafts if item in WORLD.recipes[user].ingredients} for item in crafts}
        for item in planned:
            assert users[item] <= written
            written.add(item)
        written.clear()
        assert max(map(len, lines)) <= procedure.lines_per_turn
        seen: set[str] = set()
        for call, turn in zip(calls, lines, strict=True):
            written.update(line.split(":")[0] for line in turn)
            if len(turn) < procedure.lines_per_turn:
                due = [item for item in seen & with_parts - written if not users[item] - written]
                assert not due
            seen.update(call.items if isinstance(call, GetInfo) else ())
        for place in views:
            assert len(lines[place]) == procedure.lines_per_turn
            assert lines[place + 1]
        first_craft = len(look_ups) + len(views)
        assert not any(lines[first_craft + 1 :])
        assert [place for place, reply in enumerate(replied) if "Plan done." in reply] == [first_craft]


def test_layers_are_numbered_without_gaps_and_run_down():
    for task in load_tasks("val", depths=[6])[:10]:
        listed = [
            (int(match[1]), bool(match[2]), match[3].split(", "))
            for reply in said(demonstrate(task, ROUNDS[2]))
            if (match := re.search(r"^Layer (\d+)( left)?: (.*)\.$", reply, re.MULTILINE))
        ]
        assert list(dict.fromkeys(number for number, _, _ in listed)) == list(range(1, listed[-1][0] + 1))
        for (number, _, items), (following, left, rest) in itertools.pairwise(listed):
            assert left == (following == number)
            assert rest == items[1:] if left else len(items) == 1


def assert_replays_in_the_package(row: dict) -> None:
    """Play the row's calls in the package's environment: same answers, reward 1."""
    task = TASKS[row["task_id"]]
    misc = {"target_items": task.targets, "initial_inventory": task.inventory}
    package = TextCraftSynthEnvironment({"goal": "", "misc": misc})
    turns = row["messages"][2:]
    assert [message["role"] for message in turns] == ["assistant", "user"] * (len(turns) // 2) + ["assistant"]
    observations = [message["content"] for message in turns[1::2]]
    *calls, last = [parse(message["content"]) for message in turns[::2]]
    for call, observation in zip(calls, observations, strict=True):
        match call:
            case Craft(ingredients, target):
                assert observation == package._craft(ingredients, target)
            case GetInfo(items):
                infos = package._get_info(items)
                assert observation == "\n".join(f"{info['item']}: {json.dumps(info['recipes'][0])}" for info in infos)
            case ViewInventory():
                assert observation == json.dumps(package.inventory)
            case _:
                pytest.fail(f"unexpected {call}")
    assert isinstance(last, Finish)
    assert package.evaluate("done")[0] == 1.0


@pytest.mark.parametrize(
    ("number", "depths", "recovery", "mistakes", "wording"),
    [
        (1, (4, 5, 6), 0, 1, None),
        (2, (4, 5, 6), 60, 1, None),
        (2, (2, 3), 60, 1, TERSE),
        (2, (4, 5, 6), 60, 3, TERSE),
        (2, (7, 8, 9), 12, 4, None),
        (2, (4, 5, 6), 12, 2, PROSE),
        (2, (4, 5, 6), 12, 2, EQUATIONS),
    ],
)
def test_every_demonstration_replays_in_the_packages_environment(number, depths, recovery, mistakes, wording):
    procedure = replace(ROUNDS[number], wording=wording or ROUNDS[number].wording)
    tasks = load_tasks("train", depths=depths)
    rows = sample(tasks, procedure, recovery + 30, recovery=recovery, mistakes=mistakes, seed=11)
    assert Counter(row["kind"] == "perfect" for row in rows)[True] == 30
    for row in rows:
        assert_replays_in_the_package(row)


def numbers_in(reply: str) -> list[str]:
    """The numbers of a reply's plan and craft lines, without those of item names."""
    lines = [line for line in reply.split("\n")[:-1] if not line.startswith(("Goal", "Layer", "todo"))]
    return re.findall(r"\d+", re.sub(r"\b[a-z]\d_i\w+", "", "\n".join(lines)))


def test_terse_says_the_same_with_the_same_calls():
    tasks = random.Random(5).sample(load_tasks("train", depths=[2, 3, 4, 5]), 20)
    for task, procedure in [(task, procedure) for task in tasks for procedure in ROUNDS.values()]:
        post, terse = said(demonstrate(task, procedure)), said(demonstrate(task, replace(procedure, wording=TERSE)))
        assert [parse(reply) for reply in post] == [parse(reply) for reply in terse]
        assert list(map(numbers_in, post)) == list(map(numbers_in, terse))
        assert all(len(short) <= len(long) for short, long in zip(terse, post, strict=True))
        assert sum(map(len, terse)) < 0.9 * sum(map(len, post))


def test_facts_are_the_posts_figures(capsys):
    main(["facts", "--splits", "val", "--json"])
    printed = json.loads(capsys.readouterr().out)
    print_facts(printed, Console(width=80))
    table = capsys.readouterr().out
    assert "136.5 (90-162)" in table
    assert "\N{HORIZONTAL ELLIPSIS}" not in table
    figures = printed["val"]
    by_depth, hard = figures["by_depth"], figures["by_difficulty"]["hard"]
    assert [by_depth[depth]["round_2"]["turns_median"] for depth in "789"] == [70, 103, 136.5]
    assert (hard["ideal"]["fit_75"], hard["round_2"]["fit_75"]) == (44, 44 - 12)
    assert (figures["all"]["tasks"], by_depth["4"]["tasks"], by_depth["12"]["tasks"]) == (632, 72, 44)
    for row in by_depth.values():
        medians = [row[player]["turns_median"] for player in ("ideal", "round_1", "round_2")]
        assert medians == sorted(medians)
