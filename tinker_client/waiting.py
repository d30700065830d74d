"""Waiting for a server that may be gone: the SDK itself retries a dead one for ever."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

# One training step, compilation included. A step of the post's size takes minutes on one GPU.
STEP_TIMEOUT_S = 3600.0
_CHECK_EVERY_S = 1.0


class Request[T](Protocol):
    """What the SDK returns for a request that it has sent."""

    def result(self, timeout: float | None = None) -> T:
        """Its answer; raises TimeoutError if there is none within `timeout` seconds."""


def wait[T](request: Request[T], check_alive: Callable[[], None], timeout_s: float = STEP_TIMEOUT_S) -> T:
    """The result of a request, by default one to train.

    check_alive: raises if the server has ended (`Backend.check_alive`). Raises TimeoutError after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with suppress(TimeoutError):
            return request.result(timeout=_CHECK_EVERY_S)
        check_alive()
    raise TimeoutError(f"the server has not answered within {timeout_s:.0f} s")


async def while_alive[T](work: asyncio.Future[T], check_alive: Callable[[], None]) -> T:
    """The result of `work`, which is cancelled when `check_alive` raises."""
    while not work.done():
        await asyncio.wait([work], timeout=_CHECK_EVERY_S)
        try:
            check_alive()
        except BaseException:
            work.cancel()
            raise
    return work.result()
