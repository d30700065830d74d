"""Which groups may be played when: sampling runs ahead of training, by a bounded number of steps.

Groups are numbered, start in that order and are trained on in that order. A step takes groups from the head of the
queue and waits for the oldest one, however long it takes. None is dropped, so that long episodes are trained on as
often as they are started.

The bound. While step c collects its groups or trains, the weights in use have the updates of all steps before c. A
group that starts now and is trained on by step s is therefore at most s - c updates old, even its very first turn. So
it may start once it is certain that s <= c + max_staleness. That is certain where few enough groups are in line before
it, since every step takes at least its number of groups, and step c at least those that it still lacks. No clock and no
guess at how long an episode lasts is needed, and nothing has to be thrown away afterwards.

How far ahead. The bound alone would be reached by every group wherever training is the slower side: whatever has ended
waits for it. So sampling stops earlier, with the groups of `steps_ahead` steps in hand. While a step trains all that
wait for it count, so that the staleness becomes `steps_ahead` where training is slower. While a step waits for groups,
sampling is slower: then what has ended behind a group that is still played does not count, since another is started in
its place to keep the server busy. That goes on behind long episodes until the bound ends it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import takewhile
from typing import Any


class Scheduler[Group]:
    """Plays groups ahead of the steps that train on them. Runs within one event loop.

    steps: of the whole run. size: groups a step.
    steps_done, groups_done: where a run that goes on has to start.
    max_staleness: updates between the policy that sampled a turn and the one that it trains; 0 is synchronous.
    steps_ahead: steps whose groups are in hand beyond those that the present one lacks; 1 or more.
    counts: which groups count towards `size`; a step plays more until it has so many that do, but at most `limit`.
    """

    def __init__(
        self,
        *,
        steps: int,
        size: int,
        max_staleness: int,
        steps_ahead: int,
        counts: Callable[[Group], bool] = lambda group: True,
        limit: int | None = None,
        steps_done: int = 0,
        groups_done: int = 0,
    ) -> None:
        self.steps = steps
        self._size = size
        self._max_staleness = max_staleness
        self._steps_ahead = steps_ahead
        self._counts = counts
        self._limit = size if limit is None else max(limit, size)
        self.step = steps_done
        self._play: Callable[[int], Coroutine[Any, Any, Group]] | None = None
        self._lacking = 0  # groups that the present step takes for certain, beside those it has
        self._queue: deque[asyncio.Task[Group]] = deque()  # started and not yet taken, oldest first
        self.started = groups_done
        self.taken = groups_done

    async def next_step(self, play: Callable[[int], Coroutine[Any, Any, Group]]) -> list[Group]:
        """The groups of the next step, in order, once all are played. The step before must have been trained.

        play: plays the group of a number, counted from 0; groups that start later are played by it too.
        Raises what `play` raised.
        """
        self._play = play
        self.step += 1
        groups: list[Group] = []
        counted = 0
        while (lacking := min(self._size - counted, self._limit - len(groups))) > 0:
            self._lacking = lacking
            self._start()
            group = await self._queue[0]
            self._queue.popleft()
            self.taken += 1
            groups.append(group)
            counted += self._counts(group)
        self._lacking = 0
        return groups

    async def close(self) -> None:
        """Stop what is in play."""
        for task in self._queue:
            task.cancel()
        await asyncio.gather(*self._queue, return_exceptions=True)

    def _start(self) -> None:
        """Start every group that may start."""
        assert self._play is not None
        bound = min(self._max_staleness, self.steps - self.step)
        while (
            len(self._queue) < self._lacking + bound * self._size
            and self._in_hand() < self._lacking + self._steps_ahead * self._size
        ):
            task = asyncio.get_running_loop().create_task(self._play(self.started))
            task.add_done_callback(self._on_done)
            self._queue.append(task)
            self.started += 1

    def _in_hand(self) -> int:
        """How many groups count towards `steps_ahead`."""
        if not self._lacking:
            return len(self._queue)
        next_in_line = sum(1 for _ in takewhile(asyncio.Task.done, self._queue))
        return next_in_line + sum(not task.done() for task in self._queue)

    def _on_done(self, task: asyncio.Task[Group]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._start()
