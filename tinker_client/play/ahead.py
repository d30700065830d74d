"""Rollouts for training, on a thread of their own, so that sampling goes on while the main thread trains."""

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import tinker

from tinker_client.connection.alive import Liveness
from tinker_client.errors import ServerError
from tinker_client.play.gate import Gate
from tinker_client.play.progress import EpisodeBar
from tinker_client.play.records import EpisodeRecord
from tinker_client.play.rollout import PlayConfig, Policy, play_episode
from tinker_client.play.scheduler import Scheduler
from tinker_client.play.tasks import Plan

Group = list[EpisodeRecord]


class Rollouts:
    """Plays the groups of a plan ahead of the steps that train on them, as `scheduler` and `gate` allow.

    Entering starts the thread, leaving stops it and what is in play. Turns are always sampled from `policy`, which the
    main thread replaces after an update. A turn in flight meanwhile keeps the version it began with, the oldest that
    can have sampled it: vLLM swaps SkyRL's adapter in the middle of a reply. Its logprobs are those of the weights that
    sampled each token.
    group_size: episodes of a task.
    """

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        playing: PlayConfig,
        scheduler: Scheduler[Group],
        gate: Gate,
        *,
        group_size: int,
        liveness: Liveness,
    ) -> None:
        self.policy = policy
        self._plan = plan
        self._playing = playing
        self._scheduler = scheduler
        self._gate = gate
        self._group_size = group_size
        self._liveness = liveness
        self._episodes_of_step = 0
        self._bar = EpisodeBar("")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="rollouts")

    def __enter__(self) -> Self:
        self._bar.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._scheduler.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._bar.__exit__(kind, error, trace)

    @property
    def groups_taken(self) -> int:
        """Groups of the plan that steps have taken so far: where a run that is resumed has to start playing."""
        return self._scheduler.taken

    @property
    def seconds_sampling(self) -> float:
        """Seconds so far in which at least one turn was being sampled."""
        return self._run(self._read_busy_seconds(), "the rollouts' clock")

    def next_step(self) -> list[Group]:
        """The groups of the next step, in the order of the plan, once all their episodes have ended.

        The step before must have been trained. A server error ends only its own episode, as `broken`.
        Raises ServerError if the server is gone or failed every episode.
        """
        groups = self._run(self._next_step(), lambda: f"step {self._scheduler.step}: {self._bar.in_words()}")
        episodes = [episode for group in groups for episode in group]
        if all(episode.end == "broken" for episode in episodes):
            raise ServerError(f"the server failed every episode, the first one with {episodes[0].error}: see its log")
        return groups

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around an update of the weights, up to the new `policy`: where they are shared, no turn is in flight."""
        if not self._gate.shared_weights:
            yield
            return
        self._run(self._gate.pause(), "the turns in flight, so that the weights can be updated")
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._gate.resume)

    def _run[T](self, work: Coroutine[Any, Any, T], what: str | Callable[[], str]) -> T:
        # Bounded by the time-outs of its turns.
        reason = what if callable(what) else lambda: what
        return self._liveness.wait(asyncio.run_coroutine_threadsafe(work, self._loop), reason, timeout_s=math.inf)

    async def _next_step(self) -> list[Group]:
        label = f"step {self._scheduler.step + 1}/{self._scheduler.steps}"
        self._bar.begin(label, done_with=self._episodes_of_step)
        groups = await self._scheduler.next_step(self._play_group)
        self._episodes_of_step = sum(map(len, groups))
        return groups

    async def _read_busy_seconds(self) -> float:
        return self._gate.busy_s

    async def _play_group(self, number: int) -> Group:
        planned = self._plan[number]
        self._bar.expect(self._group_size)
        return await asyncio.gather(
            *(
                play_episode(
                    planned.task,
                    self._sample,
                    self._playing,
                    step=planned.step,
                    group=planned.group,
                    episode=episode,
                    bar=self._bar,
                )
                for episode in range(self._group_size)
            )
        )

    async def _sample(
        self, prompt: tinker.ModelInput, params: tinker.SamplingParams
    ) -> tuple[tinker.SampledSequence, int]:
        async with self._gate.turn(prompt.length):
            # Read only now: an update may have come while this turn waited.
            return await self.policy.sample(prompt, params)
