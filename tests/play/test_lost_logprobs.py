"""Replies without logprobs: asked for again and counted, never trained on as if they had been certain."""

import math
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import pytest
import tinker

from tests.playing import play
from textcraft import load_tasks
from tinker_client.connection.models import TINY_MODEL, load_tokenizer, stop_token_ids
from tinker_client.errors import ServerError
from tinker_client.play import rollout
from tinker_client.play.chat import ChatTemplate
from tinker_client.play.environment import TextCraft
from tinker_client.play.players import PlayerClient, oracle
from tinker_client.play.records import EpisodeRecord
from tinker_client.play.rollout import PlayConfig, Policy
from tinker_client.train.metrics import episode_metrics

TASKS = load_tasks("train", "easy", [2])[:2]
MAX_TURNS = 20
Spoil = Callable[[list[float]], list[float] | None]


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    tokenizer = load_tokenizer(str(TINY_MODEL))
    return ChatTemplate(tokenizer, stop_token_ids(tokenizer))


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch) -> None:
    monkeypatch.setattr(rollout, "RETRY_PAUSE_S", 0.0)


class Forgetful:
    """Answers as the expert does, the first `times` times that it is asked for a turn with other logprobs."""

    def __init__(self, template: ChatTemplate, spoil: Spoil, times: int) -> None:
        self._expert = PlayerClient(oracle, template, TASKS, MAX_TURNS)
        self._spoil, self._times = spoil, times
        self._answers: dict[int, list[int]] = {}
        self.seeds: list[int] = []

    def sample(self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams) -> Future:
        seed = sampling_params.seed
        self.seeds.append(seed)
        if seed not in self._answers:  # the expert goes on at each question
            self._answers[seed] = self._expert.sample(prompt, num_samples, sampling_params).result().sequences[0].tokens
        tokens = self._answers[seed]
        logprobs: list[float] | None = [-0.5] * len(tokens)
        if self.seeds.count(seed) <= self._times:
            logprobs = self._spoil(logprobs)
        answer: Future = Future()
        given = None if logprobs is None else np.array(logprobs, np.float32)
        answer.set_result(tinker.SampleResponse([tinker.SampledSequence("stop", np.array(tokens, np.int32), given)]))
        return answer


def played(template: ChatTemplate, client: object) -> list[EpisodeRecord]:
    config = PlayConfig(TextCraft(), template, MAX_TURNS, 256, temperature=1.0, context_length=4096, seed=7)
    return play(TASKS, 1, Policy(client, 0), config)


SPOILT: dict[str, Spoil] = {
    "none": lambda logprobs: None,
    "empty": lambda logprobs: [],
    "too few": lambda logprobs: logprobs[1:],
    "too many": lambda logprobs: [*logprobs, -0.5],
    "zeros": lambda logprobs: [0.0] * len(logprobs),
    "NaN": lambda logprobs: [math.nan, *logprobs[1:]],
    "infinite": lambda logprobs: [*logprobs[:-1], -math.inf],
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_reply_without_logprobs_is_asked_for_again_with_its_seed_and_counted(template, spoil):
    whole = played(template, Forgetful(template, spoil, times=0))
    client = Forgetful(
        template, lambda logprobs: spoil(logprobs) if client.seeds[-1] == client.seeds[0] else logprobs, 2
    )
    again = played(template, client)
    assert client.seeds.count(client.seeds[0]) == 3
    assert sorted(episode.without_logprobs for episode in again) == [0, 2]
    assert sorted(episode.row()["without_logprobs"] for episode in again) == [0, 2]
    assert [e.row() | {"without_logprobs": 0} for e in again] == [e.row() for e in whole]
    assert {e.end for e in again} == {"success"}
    metrics = episode_metrics(again, policy_version=0)
    assert (metrics["episode/without_logprobs"], metrics["episode/broken"]) == (2, 0)
    assert metrics["policy/entropy"] == pytest.approx(0.5)


def test_after_the_retries_the_episode_is_broken_and_the_others_go_on(template):
    client = Forgetful(template, lambda logprobs: None if client.seeds[-1] == client.seeds[0] else logprobs, 99)
    broken, whole = sorted(played(template, client), key=lambda episode: episode.end)
    assert (broken.end, broken.without_logprobs, whole.end) == ("broken", 3, "success")
    assert broken.error == f"LogprobsLostError: 0 logprobs for {len(client._answers[client.seeds[0]])} tokens"
    metrics = episode_metrics([broken, whole], policy_version=0)
    assert (metrics["episode/without_logprobs"], metrics["episode/broken"]) == (3, 1)
    assert episode_metrics([broken], policy_version=0) == {"episode/broken": 1, "episode/without_logprobs": 3}


def test_a_server_that_never_gives_any_ends_the_run(template):
    with pytest.raises(ServerError, match="logprobs that are all 0"):
        played(template, Forgetful(template, SPOILT["zeros"], times=99))


def test_a_single_token_can_be_certain_and_the_expert_is(template):
    reply = tinker.SampledSequence("length", np.array([5], np.int32), np.zeros(1, np.float32))
    assert rollout.logprobs_problem(reply) is None
    assert {e.end for e in played(template, PlayerClient(oracle, template, TASKS, MAX_TURNS))} == {"success"}
