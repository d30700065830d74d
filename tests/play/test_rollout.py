"""Rollouts against a stand-in for the sampling client: what is asked of it, and what becomes of its answers."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
import pytest
import tinker
from transformers import AutoTokenizer

from sft_data.dataset import every_task
from sft_data.procedure import ROUNDS
from tests.chat_templates import make
from tests.playing import play, play_config
from textcraft import Episode, Task, load_tasks
from tinker_client.connection.models import TINY_MODEL, stop_token_ids
from tinker_client.errors import ServerError
from tinker_client.play import rollout
from tinker_client.play.chat import ChatTemplate
from tinker_client.play.records import EpisodeRecord, TurnRecord, repeated
from tinker_client.play.rollout import Policy, turn_seed
from tinker_client.train.metrics import episode_metrics

TASKS = load_tasks("train", "easy", [2])[:3]


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    return ChatTemplate(tokenizer, stop_token_ids(tokenizer))


class Sampler:
    """A sampling client that answers with `reply(prompt text, turn)`, cut to max_tokens, once `together` are asked."""

    def __init__(self, template: ChatTemplate, reply: Callable[[str, int], str], together: int = 1) -> None:
        self.template, self.reply, self.together = template, reply, together
        self.asked: list[tuple[list[int], tinker.SamplingParams]] = []
        self._waiting: list[Callable[[], None]] = []

    def sample(self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams) -> Future:
        tokens, future = prompt.to_ints(), Future()
        self.asked.append((tokens, sampling_params))
        self._waiting.append(lambda: self._answer(tokens, sampling_params, future))
        if len(self._waiting) >= self.together:
            waiting, self._waiting = self._waiting, []
            threading.Thread(target=lambda: [answer() for answer in waiting]).start()
        return future

    def _answer(self, tokens: list[int], params: tinker.SamplingParams, future: Future) -> None:
        text = self.template.tokenizer.decode(tokens)
        try:
            reply = self.template.reply(self.reply(text, text.count("assistant\n") - 1))[: params.max_tokens]
        except Exception as error:
            future.set_exception(error)
            return
        logprobs = np.full(len(reply), -0.5, np.float32)
        sequence = tinker.SampledSequence("stop", np.array(reply, np.int32), logprobs)
        future.set_result(tinker.SampleResponse([sequence]))


def expert(tasks: Sequence[Task]) -> Callable[[str, int], str]:
    """Plays each of the tasks as its demonstration does."""
    replies = {
        row["messages"][1]["content"]: [m["content"] for m in row["messages"] if m["role"] == "assistant"]
        for row in every_task(tasks, ROUNDS[2])
    }
    return lambda text, turn: next(texts[turn] for opening, texts in replies.items() if opening in text)


def run(sampler: Sampler, **settings: object) -> list[EpisodeRecord]:
    """Two episodes of each task."""
    return play(TASKS, 2, Policy(sampler, version=3), play_config(sampler.template, seed=7, **settings))


def play_one(sampler: Sampler, version: int = 0, **settings: object) -> EpisodeRecord:
    (episode,) = play(TASKS[:1], 1, Policy(sampler, version), play_config(sampler.template, **settings))
    return episode


def test_the_expert_solves_every_task_and_its_tokens_are_the_actions(template):
    sampler = Sampler(template, expert(TASKS))
    episodes = run(sampler)
    assert [(e.task.id, e.group, e.episode) for e in episodes] == [
        (task.id, group, episode) for group, task in enumerate(TASKS) for episode in range(2)
    ]
    for e in episodes:
        assert (e.end, e.reward, e.error) == ("success", 1.0, None)
        actions = [token for token, on in zip(e.conversation.tokens, e.conversation.is_action, strict=True) if on]
        assert actions == [token for turn in e.turns for token in template.reply(turn.reply)]
        assert sum(turn.reply_tokens for turn in e.turns) == e.conversation.action_tokens
        row = e.row()
        assert {turn["policy_version"] for turn in row["turns"]} == {3}
        assert {"task_id", "depth", "step", "group", "episode", "end", "reward", "turns"} <= row.keys()
        game = Episode(e.task)
        assert [game.step(turn.reply).observation for turn in e.turns] == [turn.observation for turn in e.turns]


def test_the_game_is_not_told_what_a_model_thinks():
    template = make("qwen3.5", thinking=True)
    sampler = Sampler(template, lambda text, turn: "<tool>view_inventory()</tool>")  # after an empty thinking block
    episode = play_one(sampler, max_turns=2)
    assert [turn.kind for turn in episode.turns] == ["inventory", "inventory"]
    assert [turn.reply for turn in episode.turns] == ["\n</think>\n\n<tool>view_inventory()</tool>"] * 2


def test_every_prompt_extends_the_one_before_by_the_reply_and_its_observation(template):
    sampler = Sampler(template, expert(TASKS))
    episode = play_one(sampler)
    prompts = [tokens for tokens, _ in sampler.asked]
    assert [len(tokens) for tokens in prompts] == [turn.prompt_tokens for turn in episode.turns]
    for before, after, turn in zip(prompts, prompts[1:], episode.turns, strict=False):
        assert after == before + template.reply(turn.reply) + template.observation(turn.observation)


def test_all_episodes_are_in_flight_at_once_each_with_its_own_seed(template):
    sampler = Sampler(template, lambda text, turn: "<tool>view_inventory()</tool>", together=len(TASKS) * 2)
    # Would hang if an episode waited for another.
    episodes = run(sampler, max_turns=3, max_reply_tokens=64, temperature=0.7)
    assert {e.end for e in episodes} == {"out_of_turns"}
    seeds = [params.seed for _, params in sampler.asked]
    assert sorted(seeds) == sorted(turn_seed(7, 0, g, e, t) for g in range(3) for e in range(2) for t in range(3))
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert {(p.temperature, p.max_tokens, tuple(p.stop)) for _, p in sampler.asked} == {
        (0.7, 64, tuple(template.stop_token_ids))
    }


def test_a_reply_at_the_token_cap_is_cut_off_and_closed(template):
    sampler = Sampler(template, lambda text, turn: "<tool>view_inventory()</tool>" * 20)
    episode = play_one(sampler, max_turns=2, max_reply_tokens=8)
    assert [turn.cut_off for turn in episode.turns] == [True, True]
    assert episode.conversation.action_tokens == 16
    assert template.end_of_message not in np.array(episode.conversation.tokens)[episode.conversation.is_action]


def test_an_episode_without_room_ends_as_out_of_context(template):
    sampler = Sampler(template, lambda text, turn: "x" * 40)
    opening = len(template.opening(Episode(TASKS[0]).messages))
    episode = play_one(sampler, max_reply_tokens=64, context_length=opening + 70)
    assert episode.end == "out_of_context"
    assert episode.reward == 0.0
    assert all(len(tokens) + params.max_tokens <= opening + 70 for tokens, params in sampler.asked)


def test_a_server_error_breaks_one_episode_and_the_others_go_on(template):
    play_on = expert(TASKS)

    def reply(text: str, turn: int) -> str:
        if turn == 1 and Episode(TASKS[1]).messages[1]["content"] in text:
            raise ConnectionError("gone")
        return play_on(text, turn)

    episodes = run(Sampler(template, reply))
    assert [e.end for e in episodes] == ["success"] * 2 + ["broken"] * 2 + ["success"] * 2
    assert episodes[2].error == "ConnectionError: gone"
    assert [len(e.turns) for e in episodes[2:4]] == [1, 1]
    metrics = episode_metrics(episodes, policy_version=3)
    assert metrics["episode/broken"] == 2
    assert metrics["reward/mean"] == metrics["success/depth_2"] == 1.0


def test_a_lost_turn_is_asked_for_again_with_its_seed_and_nothing_of_its_episode_is_lost(template, monkeypatch):
    monkeypatch.setattr(rollout, "RETRY_PAUSE_S", 0.0)
    play_on, lost = expert(TASKS), []

    def reply(text: str, turn: int) -> str:
        if turn == 1 and lost.count(text) < 2:
            lost.append(text)
            raise ConnectionError("gone")
        return play_on(text, turn)

    whole, sampler = run(Sampler(template, play_on)), Sampler(template, reply)
    again = run(sampler)
    assert [e.row() for e in again] == [e.row() for e in whole]
    assert len(lost) == 2 * len(TASKS)  # the two episodes of a task have one prompt in common
    assert len(sampler.asked) == sum(len(e.turns) for e in whole) + len(lost)
    for text in set(lost):
        asked = [(tokens, params.seed) for tokens, params in sampler.asked if template.tokenizer.decode(tokens) == text]
        assert len(asked) == 4
        assert len({seed for _, seed in asked}) == 2


def test_a_server_that_fails_every_episode_ends_the_run(template):
    def reply(text: str, turn: int) -> str:
        raise ConnectionError("gone")

    with pytest.raises(ServerError, match=r"every episode.*ConnectionError: gone"):
        run(Sampler(template, reply))


def turn(reply: str, kind: str = "info", version: int = 0, cut_off: bool = False) -> TurnRecord:
    return TurnRecord(reply, "", kind, version, prompt_tokens=1, reply_tokens=1, cut_off=cut_off)


def test_a_call_is_repeated_whatever_text_and_spaces_stand_around_it():
    calls = [
        'a <tool>craft({"a": 1}, ("b", 1))</tool>',
        '<tool>craft({"a":1}, ("b", 1))</tool> so',
        "<tool>finish()</tool>",
    ]
    assert repeated(calls) == [False, True, False]
    two = ['<tool>craft({"a": 1, "b": 2}, ("c", 1))</tool>', '<tool>craft({"b": 2, "a": 1}, ("c", 1))</tool>']
    assert repeated(two) == [False, True]
    assert repeated(["no call", "no call", "another text"]) == [False, True, False]


def test_metrics_of_episodes_count_turns_ends_and_staleness(template):
    solved = play_one(Sampler(template, expert(TASKS[:1])), version=3)
    view = Sampler(template, lambda text, turn: "<tool>view_inventory()</tool>")
    circling = play_one(view, version=1, max_turns=4)
    wrong = '<tool>craft({"c9_ore": 999}, ("c2_i4", 1))</tool>'
    circling.turns[1:3] = [turn(wrong, "failed_craft", version=2), turn(wrong, "failed_craft", version=2)]
    metrics = episode_metrics([solved, circling], policy_version=4)
    assert (metrics["end/success"], metrics["end/out_of_turns"], metrics["end/wrong_finish"]) == (0.5, 0.5, 0.0)
    assert (metrics["staleness/mean"], metrics["staleness/max"]) == (2.0, 3)  # 4 - 3 and 4 - 1
    assert (metrics["episode/failed_crafts"], metrics["episode/repeated_failed_crafts"]) == (1.0, 0.5)
    assert metrics["episode/repeated_share"] == 2 / (len(solved.turns) + 4)
    assert metrics["tokens/action"] == solved.conversation.action_tokens + circling.conversation.action_tokens
    assert metrics["policy/entropy"] == pytest.approx(0.5)
