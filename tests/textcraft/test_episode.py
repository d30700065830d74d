"""Playing a task: the opening, the observations to the letter, the budget and the end."""

import json

import pytest

from textcraft import Episode, Task, load_tasks
from textcraft.prompt import SYSTEM_PROMPT

# The task of the post: 1x c2_i4 in the world of the benchmark.
TASK = Task("t", "train", {"c2_i4": 1}, {"c9_ore": 11, "c1_ore": 3, "c5_ore": 3}, depth=4, difficulty="medium")
WINNING = [
    'Goal: 1x c2_i4.\n<tool>get_info(["c2_i4"])</tool>',
    '<tool>get_info(["c1_i2_11", "c4_i2"])</tool>',
    '<tool>get_info(["c2_i1"])</tool>',
    'Layer 1: c2_i1.\n<tool>craft({"c9_ore": 4}, ("c2_i1", 4))</tool>',
    '<tool>craft({"c5_ore": 2, "c2_i1": 1}, ("c1_i2_11", 3))</tool>',
    '<tool>craft({"c2_i1": 2, "c1_ore": 1}, ("c4_i2", 3))</tool>',
    '<tool>craft({"c4_i2": 2, "c1_i2_11": 1}, ("c2_i4", 1))</tool>',
    "<tool>finish()</tool>",
]


def test_the_opening_names_the_task_and_not_the_budget():
    system, user = Episode(TASK, max_turns=97).messages
    assert system == {"role": "system", "content": SYSTEM_PROMPT}
    assert user["role"] == "user"
    assert user["content"] == ('Target: craft 1x c2_i4.\nInitial inventory: {"c9_ore": 11, "c1_ore": 3, "c5_ore": 3}')
    assert "97" not in system["content"] + user["content"] and "turn" not in system["content"]


def test_observations_to_the_letter():
    episode = Episode(TASK)
    replies = {
        '<tool>get_info(["c2_i4", "c9_ore", "zz_top", "c2_i4"])</tool>': (
            "info",
            'c2_i4: {"ingredients": {"c4_i2": 2, "c1_i2_11": 1}, "result_count": 1}\n'
            "c9_ore: raw material, no recipe\nzz_top: unknown item\n"
            'c2_i4: {"ingredients": {"c4_i2": 2, "c1_i2_11": 1}, "result_count": 1}',
        ),
        '<tool>craft({"m3_ore": 1, "m0_i1": 1}, ("m0_i2_20", 3))</tool>': (
            "failed_craft",
            "Error: All 1 recipe(s) failed for m0_i2_20. Errors:\n"
            "Recipe 1: Insufficient ingredients in inventory: m3_ore: need 1, have 0, m0_i1: need 1, have 0",
        ),
        '<tool>craft({"c5_ore": 21, "c2_i1": 7}, ("c1_i2_11", 21))</tool>': (
            "failed_craft",
            "Error: All 1 recipe(s) failed for c1_i2_11. Errors:\n"
            "Recipe 1: Wrong amount of c5_ore. Need 14, provided 21",
        ),
        '<tool>craft({"c9_ore": 4}, ("c2_i1", 4))</tool>': ("craft", "Successfully crafted 4 c2_i1(s)"),
        "<tool>view_inventory()</tool>": ("inventory", '{"c9_ore": 7, "c1_ore": 3, "c5_ore": 3, "c2_i1": 4}'),
        "<tool>look()</tool>": (
            "invalid",
            "Invalid turn: there is no tool 'look', the tools are get_info, craft, view_inventory, finish.",
        ),
        "I give up.": (
            "invalid",
            "Invalid turn: the reply holds no tool call, it must hold exactly one <tool>...</tool>.",
        ),
    }
    for number, (reply, (kind, observation)) in enumerate(replies.items(), start=1):
        turn = episode.step(reply)
        assert (turn.kind, turn.observation, turn.done, turn.reward) == (kind, observation, False, 0.0)
        assert episode.turns == number


@pytest.mark.parametrize("message", ["", "'done'", "message='done'", "None"])
def test_a_task_is_won_by_finish_whatever_its_message(message):
    episode = Episode(TASK, max_turns=len(WINNING))
    for reply in WINNING[:-1]:
        assert episode.step(reply).kind in ("info", "craft") and episode.end is None
    turn = episode.step(f"<tool>finish({message})</tool>")
    assert (turn.kind, turn.done, turn.reward, episode.end) == ("finish", True, 1.0, "success")
    assert episode.inventory == {
        "c9_ore": 7,
        "c1_ore": 2,
        "c5_ore": 1,
        "c2_i1": 1,
        "c1_i2_11": 2,
        "c4_i2": 1,
        "c2_i4": 1,
    }


def test_finish_before_the_target_is_there_earns_nothing():
    episode = Episode(TASK)
    turn = episode.step("<tool>finish('done')</tool>")
    assert (turn.kind, turn.done, turn.reward, episode.end) == ("finish", True, 0.0, "wrong_finish")


def test_everything_crafted_but_no_turn_left_to_finish_earns_nothing():
    episode = Episode(TASK, max_turns=len(WINNING) - 1)
    turns = [episode.step(reply) for reply in WINNING[:-1]]
    assert [turn.done for turn in turns] == [False] * 6 + [True]
    assert (turns[-1].kind, turns[-1].reward, episode.end) == ("craft", 0.0, "out_of_turns")
    assert not episode.missing()


@pytest.mark.parametrize("reply", ["<tool>finish()</tool>", "nothing"])
def test_an_ended_episode_takes_no_more_turns(reply):
    episode = Episode(TASK, max_turns=1)
    assert episode.step(reply).done
    with pytest.raises(RuntimeError, match="ended"):
        episode.step(reply)
    assert episode.turns == 1


def test_targets_count_on_top_of_the_starting_inventory():
    episode = Episode(Task("t", "val", {"c2_i1": 2}, {"c2_i1": 5, "c9_ore": 2}, depth=1, difficulty="easy"))
    assert episode.missing() == {"c2_i1": 2}
    episode.step('<tool>craft({"c9_ore": 2}, ("c2_i1", 2))</tool>')
    assert not episode.missing()


def test_a_failed_craft_and_an_invalid_turn_change_nothing_but_the_turn_count():
    episode = Episode(TASK)
    for reply in ['<tool>craft({"c9_ore": 22}, ("c2_i1", 22))</tool>', "<tool>craft(1, 2)</tool>", ""]:
        episode.step(reply)
    assert episode.inventory == TASK.inventory and episode.turns == 3


def test_the_task_is_not_changed_by_playing_it():
    task = load_tasks("val", depths=[2])[0]
    before = json.dumps(task.inventory)
    item = next(iter(task.targets))
    for reply in (f'<tool>get_info(["{item}"])</tool>', '<tool>craft({"raw_t1": 1}, ("t8_i1", 2))</tool>'):
        Episode(task).step(reply)
    assert json.dumps(task.inventory) == before


def test_an_observation_can_always_be_encoded():
    turn = Episode(TASK).step("<tool>get_info(['\\ud800', '\N{SNOWMAN}'])</tool>")
    assert turn.observation == "?: unknown item\n\N{SNOWMAN}: unknown item"


def test_a_budget_without_turns_is_refused():
    with pytest.raises(ValueError, match="at least one turn"):
        Episode(TASK, max_turns=0)
