"""Rollouts: many episodes in flight at once, each turn sampled through Tinker.

Every episode runs on its own, so that a server with continuous batching (vLLM) never waits for a slow one. What the
server is asked for at once, and in which order, is up to the `Gate` before it.
"""

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import tinker

from tinker_client.connection.alive import Liveness
from tinker_client.errors import ServerError
from tinker_client.play.chat import ChatTemplate, Conversation
from tinker_client.play.environment import Environment, Task
from tinker_client.play.gate import Gate
from tinker_client.play.progress import EpisodeBar
from tinker_client.play.records import EpisodeRecord, TurnRecord

# A turn may wait for a whole batch of long turns and for a compilation. Past this, it is taken to be lost.
TURN_TIMEOUT_S = 1800.0
# Before a lost turn is asked for again; doubles each time.
RETRY_PAUSE_S = 0.5
# More than any server samples at once; of what is played after these, no tokens are in memory yet.
EPISODES_AT_ONCE = 1024


class LogprobsLostError(Exception):
    """A reply came without the logprobs that it was sampled with, so that nothing could be learnt from it."""


@dataclass(frozen=True)
class Policy:
    """What samples: a client and the number of weight syncs that came before it."""

    client: tinker.SamplingClient
    version: int

    async def sample(
        self, prompt: tinker.ModelInput, params: tinker.SamplingParams
    ) -> tuple[tinker.SampledSequence, int]:
        """One reply, with a logprob a token, and the version that sampled it.

        Raises LogprobsLostError, whatever the SDK raises, or TimeoutError.
        """
        future = self.client.sample(prompt, num_samples=1, sampling_params=params)
        response = await asyncio.wait_for(asyncio.wrap_future(future), TURN_TIMEOUT_S)
        sequence = response.sequences[0]
        if problem := logprobs_problem(sequence):
            raise LogprobsLostError(problem)
        return sequence, self.version


Sample = Callable[[tinker.ModelInput, tinker.SamplingParams], Awaitable[tuple[tinker.SampledSequence, int]]]


@dataclass(frozen=True)
class PlayConfig:
    """How episodes are played.

    environment: the game. template: how its text becomes tokens.
    max_turns: the budget of an episode. max_reply_tokens: the cap of one reply.
    context_length: the longest prompt and reply together; an episode without room for one more token ends there.
    seed: all sampling seeds of a run derive from it.
    retries: how often an episode asks again for a turn that the server failed, before it ends as broken.
    """

    environment: Environment[Any]
    template: ChatTemplate
    max_turns: int
    max_reply_tokens: int
    temperature: float
    context_length: int
    seed: int
    retries: int = 2


def logprobs_problem(sequence: tinker.SampledSequence) -> str | None:
    """What is wrong with the logprobs of a reply, None if nothing is.

    SkyRL's GPU backends fill in zeros where vLLM gives none (skyrl_train_inference_forwarding.py), which the trainer
    would take for a probability of 1. A single token can have one; a whole reply is never sampled with certainty.
    """
    tokens, logprobs = len(sequence.tokens), sequence.logprobs or []
    if len(logprobs) != tokens:
        return f"{len(logprobs)} logprobs for {tokens} tokens"
    if not all(map(math.isfinite, logprobs)):
        return "logprobs that are not finite"
    if tokens > 1 and not any(logprobs):
        return "logprobs that are all 0"
    return None


def turn_seed(seed: int, step: int, group: int, episode: int, turn: int) -> int:
    """The sampling seed of one turn, 31 bits: a hash, so that neighbouring turns and runs share no random numbers."""
    name = f"{seed}/{step}/{group}/{episode}/{turn}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big") >> 1


def play(
    tasks: Sequence[Task],
    rollouts: int,
    policy: Policy,
    config: PlayConfig,
    gate: Gate,
    *,
    on_episode: Callable[[EpisodeRecord], None],
    liveness: Liveness,
    finished: Collection[tuple[int, int]] = (),
) -> None:
    """Play each task `rollouts` times, all at once, under a progress bar. The episodes' step is 0.

    on_episode: called with each episode when it ends, in whatever order that is; none is kept.
    finished: (group, episode) of those that need not be played; group is the index of the task in `tasks`.
    A server error ends only its own episode, as `broken`; a server that is gone (`liveness`) ends all.
    Raises ServerError if it is gone, or fails every episode.
    """
    left = [(g, e) for g in range(len(tasks)) for e in range(rollouts) if (g, e) not in finished]
    queue = iter(left)
    errors: list[str] = []

    async def sample(prompt: tinker.ModelInput, params: tinker.SamplingParams) -> tuple[tinker.SampledSequence, int]:
        async with gate.turn(prompt.length):
            return await policy.sample(prompt, params)

    async def play_next() -> None:
        for group, episode in queue:
            record = await play_episode(tasks[group], sample, config, step=0, group=group, episode=episode, bar=bar)
            on_episode(record)
            if record.end == "broken":
                errors.append(str(record.error))

    async def play_all() -> None:
        players = asyncio.gather(*(play_next() for _ in range(min(EPISODES_AT_ONCE, len(left)))))
        await liveness.wait_async(players, bar.in_words)

    with EpisodeBar("evaluating", len(left)) as bar:
        asyncio.run(play_all())
    if len(errors) == len(left) > 0:
        raise ServerError(f"the server failed every episode, the first one with {errors[0]}: see its log")


async def play_episode(
    task: Task,
    sample: Sample,
    config: PlayConfig,
    *,
    step: int,
    group: int,
    episode: int,
    bar: EpisodeBar,
) -> EpisodeRecord:
    """Play one episode to its end. Each turn is sampled anew, so that an episode may span policy versions."""
    template = config.template
    game = config.environment.episode(task, config.max_turns)
    conversation = Conversation(template, game.messages)
    record = EpisodeRecord(task, step, group, episode, conversation)
    # The prompt in pieces, one a turn, so that no turn validates again what earlier ones have sent.
    prompt: list[tinker.EncodedTextChunk] = []
    sent = lost = 0
    bar.begins(record)
    while game.end is None:
        prompt_tokens = len(conversation.tokens)
        room = config.context_length - prompt_tokens
        if room < 1:
            record.end = "out_of_context"
            break
        params = tinker.SamplingParams(
            max_tokens=min(config.max_reply_tokens, room),
            temperature=config.temperature,
            seed=turn_seed(config.seed, step, group, episode, game.turns),
            stop=template.stop_token_ids,
        )
        if sent < prompt_tokens:
            prompt.append(tinker.EncodedTextChunk(tokens=conversation.tokens[sent:]))
            sent = prompt_tokens
        try:
            sequence, version = await sample(tinker.ModelInput(chunks=prompt), params)
        except Exception as error:  # whatever the SDK raises, the other episodes go on
            lost += 1
            record.without_logprobs += isinstance(error, LogprobsLostError)
            record.error = f"{type(error).__name__}: {error}"
            bar.lost_turn(record.error)
            if lost > config.retries:
                break
            await asyncio.sleep(RETRY_PAUSE_S * 2 ** (lost - 1))
            continue
        conversation.add_reply(sequence.tokens, sequence.logprobs)
        reply = template.decode_reply(sequence.tokens)
        turn = game.step(template.answer(reply))
        if not turn.done:
            conversation.add_observation(turn.observation)
        record.turns.append(
            TurnRecord(
                reply=reply,
                observation=turn.observation,
                kind=turn.kind,
                policy_version=version,
                prompt_tokens=prompt_tokens,
                reply_tokens=len(sequence.tokens),
                cut_off=not template.ends_reply(sequence.tokens),
            )
        )
        record.reward = turn.reward
        bar.turn()
    if game.end is not None:
        record.end = game.end
    if record.end != "broken":
        record.error = None
    bar.ended(record)
    return record
