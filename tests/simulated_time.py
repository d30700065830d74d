"""An event loop whose clock jumps to the next timer, so that hours of a schedule are simulated in milliseconds."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _JumpingSelector(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits and no timer is set: a deadlock")
        self.now += max(timeout, 0.0)
        return []


def run[T](work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` with simulated time; a deadlock is a RuntimeError."""
    selector = _JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
