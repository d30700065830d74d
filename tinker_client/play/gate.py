"""What stands before the server: how many turns it is asked for at once, which ones, and when none."""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count


class Gate:
    """Lets at most `limit` turns through at once, None for all, and none during a pause. Runs within one event loop.

    shared_weights: whether the server samples from the weights in training, so that updates need a pause.

    The limit. A server with continuous batching (vLLM) needs none. SkyRL's JAX backend samples in fixed batches, pads
    each to its longest prompt and reads every prompt anew at each turn. There two batches are in flight, one sampled
    and one that waits, and the shortest prompts come first: that keeps the episodes of a batch at like lengths.

    The pause. The JAX backend has one copy of an adapter. Sampling through the newest client reads it while it trains,
    so that a turn sampled between an optimizer step and the save that follows would be of a newer policy than it says;
    a turn sampled through an older client would load that one's weights over those in training. So there an update
    happens while no turn is in flight, and turns asked for meanwhile wait and then go through the new client.
    """

    def __init__(self, limit: int | None, *, shared_weights: bool = False) -> None:
        self.shared_weights = shared_weights
        self._limit = limit
        self._paused = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap of (prompt tokens, arrival, turn)
        self._arrival = count()
        self._turns = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._busy_since = 0.0
        self._busy_s = 0.0

    @asynccontextmanager
    async def turn(self, prompt_tokens: int) -> AsyncIterator[None]:
        """Around the sampling of one turn: waits for its place."""
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (prompt_tokens, next(self._arrival), turn))
        self._admit()
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():  # cancelled before it had its place
                self._leave()

    async def pause(self) -> None:
        """Let no further turn begin, and wait until none is in flight."""
        self._paused = True
        await self._idle.wait()

    def resume(self) -> None:
        """End the pause."""
        self._paused = False
        self._admit()

    @property
    def busy_s(self) -> float:
        """Seconds so far in which at least one turn was in flight."""
        return self._busy_s + (self._now() - self._busy_since if self._turns else 0.0)

    def _admit(self) -> None:
        while self._waiting and not self._paused and (self._limit is None or self._turns < self._limit):
            turn = heapq.heappop(self._waiting)[-1]
            if turn.done():  # its episode was cancelled
                continue
            if self._turns == 0:
                self._busy_since = self._now()
                self._idle.clear()
            self._turns += 1
            turn.set_result(None)

    def _leave(self) -> None:
        self._turns -= 1
        if self._turns == 0:
            self._busy_s += self._now() - self._busy_since
            self._idle.set()
        self._admit()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
