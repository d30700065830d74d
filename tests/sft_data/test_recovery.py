"""Planted mistakes: what is said after them, which replies are trained on, and that a row's kind is what happened."""

import random
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from sft_data import ROUNDS, Mistakes, demonstrate
from sft_data.dataset import replies, sample
from sft_data.mistakes import KINDS, find_mistakes
from sft_data.recovery import demonstrate_recovery
from sft_data.wording import POST
from textcraft import Episode, load_tasks
from textcraft.oracle import plan_crafts
from textcraft.tools import Craft, GetInfo, parse
from textcraft.world import load_world

WORLD = load_world()
TASKS = {task.id: task for task in load_tasks("train")}
MEDIUM = load_tasks("train", "medium")


def turns_from(task_id: str, mistakes: Mistakes, first: int) -> list[tuple[int, str]]:
    messages = demonstrate(TASKS[task_id], ROUNDS[2], mistakes)
    turns = [(message["weight"], message["content"]) for message in messages if message["role"] == "assistant"]
    return turns[first:]


def test_an_omitted_lookup_is_looked_up_planned_and_crafted():
    assert turns_from("textcraft_synth.train.747", Mistakes(omitted_lookups=frozenset(["c4_i2"])), 1) == [
        (0, 'c2_i4: 2 -> c4_i2+4 c1_i2_11+2\n<tool>get_info(["c1_i2_11"])</tool>'),
        (1, 'c1_i2_11: 2, /3 -> 1 crafts -> c2_i1+1\n<tool>get_info(["c2_i1"])</tool>'),
        (
            1,
            "Plan done. Crafting bottom-up.\nLayer 1: c2_i1.\nc2_i1: 1, /2 -> 1 crafts.\n"
            '<tool>craft({"c9_ore": 2}, ("c2_i1", 2))</tool>',
        ),
        # The layer that c4_i2 belongs in, without it again.
        (
            0,
            'Layer 2: c1_i2_11.\nc1_i2_11: 1 crafts.\n<tool>craft({"c5_ore": 2, "c2_i1": 1}, ("c1_i2_11", 3))</tool>',
        ),
        (1, 'Layer 3: c2_i4.\nc2_i4: 2 crafts.\n<tool>craft({"c4_i2": 4, "c1_i2_11": 2}, ("c2_i4", 2))</tool>'),
        (1, 'Craft failed: c4_i2 need 4, have 0. c4_i2 was not looked up.\n<tool>get_info(["c4_i2"])</tool>'),
        # c2_i1 was made for c1_i2_11 alone.
        (
            1,
            "c4_i2: 4, /3 -> 2 crafts -> c2_i1+4=5\nc2_i1: 5-2=3, /2 -> 2 crafts.\n"
            '<tool>craft({"c9_ore": 4}, ("c2_i1", 4))</tool>',
        ),
        (1, 'c4_i2: 2 crafts.\n<tool>craft({"c2_i1": 4, "c1_ore": 2}, ("c4_i2", 6))</tool>'),
        (1, 'Retry c2_i4.\n<tool>craft({"c4_i2": 4, "c1_i2_11": 2}, ("c2_i4", 2))</tool>'),
        (1, "<tool>finish()</tool>"),
    ]


def test_a_total_that_runs_short_is_corrected_down_the_tree():
    mistakes = Mistakes(short_shares={("t2_i4_22", "t0_i2"): 1})
    turns = turns_from("textcraft_synth.train.465", mistakes, 1)
    assert turns[0] == (0, 't2_i4_22: 3 -> t0_i2+2 t5_i2_15+3\n<tool>get_info(["t0_i2", "t5_i2_15"])</tool>')
    assert turns[-4:] == [
        (
            1,
            'Layer 3: t2_i4_22.\nt2_i4_22: 3 crafts.\n<tool>craft({"t0_i2": 3, "t5_i2_15": 3}, ("t2_i4_22", 3))</tool>',
        ),
        (
            1,
            "Craft failed: t0_i2 need 3, have 2. t0_i2 was miscounted: 3, not 2.\n"
            "t0_i2: 3-2=1, /2 -> 1 crafts -> t4_i1+1=2\nt0_i2: 1 crafts.\n"
            '<tool>craft({"t4_i1": 1, "raw_t6": 1}, ("t0_i2", 2))</tool>',
        ),
        (1, 'Retry t2_i4_22.\n<tool>craft({"t0_i2": 3, "t5_i2_15": 3}, ("t2_i4_22", 3))</tool>'),
        (1, "<tool>finish()</tool>"),
    ]
    assert [weight for weight, _ in turns].count(0) == 1


@pytest.mark.parametrize(
    ("call", "reading"),
    [
        (Craft({"t4_i1": 4, "raw_t6": 2}, ("t0_i2", 4)), "t4_i1 need 2, provided 4"),
        (Craft({"t4_i1": 2, "raw_t6": 2}, ("t0_i2", 3)), "t0_i2 count 3 is not divisible by 2"),
    ],
)
def test_a_wrong_call_is_read_and_retried_at_once(call, reading):
    turns = turns_from("textcraft_synth.train.465", Mistakes(wrong_calls={"t0_i2": call}), 5)
    assert [weight for weight, _ in turns] == [0] + [1] * (len(turns) - 1)
    assert parse(turns[0][1]) == call
    right = '<tool>craft({"t4_i1": 2, "raw_t6": 2}, ("t0_i2", 4))</tool>'
    assert turns[1] == (1, f"Craft failed: {reading}.\nRetry t0_i2.\n{right}")
    assert turns[2][1].startswith("Layer 2 left: t5_i2_15.")


def assert_arithmetic_is_right(reply: str) -> None:
    for sum_text, total in re.findall(r"(?<=[ :])(\d+(?:[+-]\d+)+)=(\d+)", reply):
        first, *others = re.findall(r"[+-]?\d+", sum_text)
        assert int(first) + sum(map(int, others)) == int(total), reply
    for total, each, crafts in re.findall(r"(\d+), /(\d+) -> (\d+) crafts", reply):
        assert -(-int(total) // int(each)) == int(crafts), reply


@pytest.mark.parametrize("mistakes", [1, 2, 4])
def test_every_recovery_is_what_its_kind_says_and_wastes_nothing(mistakes):
    rows = sample(MEDIUM, ROUNDS[2], 60, recovery=60, mistakes=mistakes, seed=3)
    singles: Counter[str] = Counter()
    for row in rows:
        task, turns = TASKS[row["task_id"]], [m for m in row["messages"] if m["role"] == "assistant"]
        kinds = row["kind"].split("+")
        singles.update(kinds)
        assert len(kinds) == mistakes
        assert sorted(find_mistakes(task, replies(row), WORLD)) == sorted(kinds)
        episode, made = Episode(task, max_turns=len(turns)), Counter()
        for turn, following in pairwise([*turns, None]):
            played = episode.step(turn["content"])
            call = parse(turn["content"])
            if turn["weight"]:
                assert_arithmetic_is_right(turn["content"])
            if played.kind == "craft":
                made[call.target[0]] += call.target[1] // WORLD.recipes[call.target[0]].result_count
            if played.kind == "failed_craft":
                assert following["weight"] == 1
                assert following["content"].startswith("Craft failed: ")
        assert episode.end == "success"
        # The repair makes exactly what the mistake left out: no craft beyond the minimal plan.
        assert made == plan_crafts(WORLD, task.targets)
        assert 0 in [turn["weight"] for turn in turns]
    assert min(singles.values()) == max(singles.values()) == 20 * mistakes


def test_replies_without_weight_are_those_that_leave_the_item_out():
    for row in sample(MEDIUM, ROUNDS[2], 40, recovery=40, mistakes=1, seed=4):
        task = TASKS[row["task_id"]]
        perfect = [message["content"] for message in demonstrate(task, ROUNDS[2])]
        skipped = [m for m in row["messages"] if m["role"] == "assistant" and not m["weight"]]
        # The first of them is where the demonstration departs from the perfect one.
        first = next(m for m, right in zip(row["messages"], perfect, strict=False) if m["content"] != right)
        assert first is skipped[0]
        if row["kind"] == "wrong_count":
            assert len(skipped) == 1
            continue
        left_out = re.search(r"Craft failed: (\w+) need", "\n".join(replies(row)))[1]
        assert isinstance(parse(first["content"]), GetInfo) == (row["kind"] == "omitted_lookup")
        rest = skipped[1:] if row["kind"] == "omitted_lookup" else skipped
        depth = WORLD.depths[left_out]
        for message in rest:
            layer = re.search(r"^Layer \d+(?: left)?: (.*)\.$", message["content"], re.MULTILINE)[1].split(", ")
            assert left_out not in layer
            assert {WORLD.depths[item] for item in layer} == {depth}
        opening = re.compile(r"^Layer ", re.MULTILINE)
        listed = [m for m in row["messages"] if m["role"] == "assistant" and opening.search(m["content"])]
        of_depth = [m for m in listed if WORLD.depths[parse(m["content"]).target[0]] == depth]
        assert rest == of_depth


def test_a_weight_is_up_to_the_decision_not_to_the_words():
    few_words = replace(POST, plan="Plan.", plan_divided="Plan.", layer="Layer.", layer_left="Layer.")
    for kind in KINDS:
        for task in MEDIUM[:10]:
            in_full, in_few = (
                demonstrate_recovery(task, replace(ROUNDS[2], wording=wording), [kind], random.Random(0), WORLD)
                for wording in (POST, few_words)
            )
            assert [message.get("weight") for message in in_few] == [message.get("weight") for message in in_full]


def test_what_is_left_unsaid_is_the_mistake_of_the_reply_that_goes_on_without_it():
    # The first look-up list would hold one item: it goes straight to crafting, and no list is empty.
    turns = turns_from("textcraft_synth.train.747", Mistakes(omitted_lookups=frozenset(["c4_i2", "c1_i2_11"])), 1)
    assert turns[0] == (
        0,
        "c2_i4: 2 -> c4_i2+4 c1_i2_11+2\nPlan done. Crafting bottom-up.\nLayer 1: c2_i4.\nc2_i4: 2 crafts.\n"
        '<tool>craft({"c4_i2": 4, "c1_i2_11": 2}, ("c2_i4", 2))</tool>',
    )
    # The one item of the first layer is left out: the second opens in its place, with what the first had to say.
    turns = turns_from("textcraft_synth.train.747", Mistakes(omitted_crafts=frozenset(["c2_i1"])), 3)
    assert turns[0] == (
        0,
        "Plan done. Crafting bottom-up.\nLayer 2: c4_i2, c1_i2_11.\nc4_i2: 2 crafts.\n"
        '<tool>craft({"c2_i1": 4, "c1_ore": 2}, ("c4_i2", 6))</tool>',
    )
    assert [weight for weight, _ in turns].count(0) == 1


def test_a_task_without_room_gives_nothing():
    (chain, *_) = [task for task in load_tasks("train", depths=[2]) if len(plan_crafts(WORLD, task.targets)) == 2]
    for kind in KINDS:
        made = demonstrate_recovery(chain, ROUNDS[2], [kind], random.Random(0), WORLD)
        assert (made is None) == (kind != "wrong_count")
