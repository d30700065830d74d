"""Waiting for a server that may be gone: the SDK itself retries a dead one for ever."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import tinker

# One training step, compilation included. A step of the post's size takes minutes on one GPU.
STEP_TIMEOUT_S = 3600.0
_CHECK_EVERY_S = 1.0


def wait[T](future: "tinker.APIFuture[T]", check_alive: Callable[[], None]) -> T:
    """The result of a request to train.

    check_alive: raises if the server has ended (`Backend.check_alive`). Raises TimeoutError after STEP_TIMEOUT_S.
    """
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(TimeoutError):
            result: T = future.result(timeout=_CHECK_EVERY_S)
            return result
        check_alive()
    raise TimeoutError(f"the server has not answered within {STEP_TIMEOUT_S:.0f} s")


async def while_alive[T](work: "asyncio.Future[T]", check_alive: Callable[[], None]) -> T:
    """The result of `work`, which is cancelled when `check_alive` raises."""
    while not work.done():
        await asyncio.wait([work], timeout=_CHECK_EVERY_S)
        try:
            check_alive()
        except BaseException:
            work.cancel()
            raise
    return work.result()
