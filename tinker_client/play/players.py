"""Players without a model, behind the interface of a Tinker sampling client: tokens in, tokens out."""

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import tinker

from textcraft import Episode, Task
from textcraft.oracle import advise
from textcraft.tools import render
from tinker_client.play.chat import ChatTemplate, Conversation

# What a player makes of an episode that still runs, with random numbers that are its own: a reply.
Player = Callable[[Episode, random.Random], str]


def oracle(game: Episode, _rng: random.Random) -> str:
    """The reply of the expert, who knows every recipe: an ideal run, whatever the budget is."""
    return render(advise(game).call)


class PlayerClient:
    """A sampling client that a player answers for, so that it is evaluated in the same way as a model.

    It keeps a game of its own for each conversation, and finds it again by the tokens that it is asked to continue:
    a prompt that is not a conversation which it has led so far is a KeyError.
    tasks: what will be played. max_turns: the budget of the episodes.
    """

    def __init__(self, player: Player, template: ChatTemplate, tasks: Iterable[Task], max_turns: int) -> None:
        self._player, self._template, self._max_turns = player, template, max_turns
        self._tasks = {_key(template.opening(Episode(task).messages)): task for task in tasks}
        # Episodes of one task share a conversation until they differ; then it does not matter which is which.
        self._games: defaultdict[bytes, list[tuple[Episode, Conversation]]] = defaultdict(list)

    def sample(
        self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams
    ) -> Future[tinker.SampleResponse]:
        """The player's next reply, cut at `max_tokens`, each token with (almost) logprob 0: it is certain."""
        assert num_samples == 1
        game, conversation = self._game(_key(prompt.to_ints()))
        text = self._player(game, random.Random(sampling_params.seed))
        tokens = self._template.reply(text)[: sampling_params.max_tokens]
        conversation.add_reply(tokens)
        turn = game.step(self._template.decode_reply(tokens))
        if not turn.done:
            conversation.add_observation(turn.observation)
            self._games[_key(conversation.tokens)].append((game, conversation))
        # Not 0, which is what servers write where they have none (rollout.logprobs_problem).
        logprobs = np.full(len(tokens), -np.finfo(np.float32).tiny)
        sequence = tinker.SampledSequence("stop", np.array(tokens, np.int32), logprobs)
        answer: Future[Any] = Future()
        answer.set_result(tinker.SampleResponse([sequence]))
        return answer

    def _game(self, key: bytes) -> tuple[Episode, Conversation]:
        if games := self._games.pop(key, None):
            game = games.pop()
            if games:
                self._games[key] = games
            return game
        new = Episode(self._tasks[key], max_turns=self._max_turns)
        return new, Conversation(self._template, new.messages)


def _key(tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(np.array(tokens, np.int32).tobytes()).digest()
