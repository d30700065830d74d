"""Waiting for a server that may be gone: the SDK itself retries a dead one for ever.

Every wait has a bound, or waits for work whose parts are bounded, and a reason that the log names once a minute.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from tinker_client.errors import ServerError

# One training step, compilation included. A step of the post's size takes minutes on one GPU.
STEP_TIMEOUT_S = 3600.0
_CHECK_EVERY_S = 1.0
_LOG_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class Request[T](Protocol):
    """What the SDK returns for a request that it has sent."""

    def result(self, timeout: float | None = None) -> T:
        """Its answer; raises TimeoutError if there is none within `timeout` seconds."""


def wait[T](
    request: Request[T], reason: Callable[[], str], check_alive: Callable[[], None], timeout_s: float = STEP_TIMEOUT_S
) -> T:
    """The result of a request, by default one to train.

    reason: what is waited for, in words. check_alive: raises if the server has ended (`Backend.check_alive`).
    Raises ServerError after `timeout_s`, and what the request itself raises.
    """
    waiting = _Waiting(reason)
    while True:
        asked = time.monotonic()
        try:
            return request.result(timeout=_CHECK_EVERY_S)
        except TimeoutError:
            if time.monotonic() - asked < _CHECK_EVERY_S / 2:  # the request's own, which it would raise for ever
                raise
        check_alive()
        waiting.log()
        if waiting.seconds > timeout_s:
            raise ServerError(f"the server has not answered within {duration(timeout_s)}, asked for {reason()}")


async def while_alive[T](work: asyncio.Future[T], reason: Callable[[], str], check_alive: Callable[[], None]) -> T:
    """The result of `work`, which is cancelled when `check_alive` raises or the wait is interrupted."""
    waiting = _Waiting(reason)
    try:
        while not work.done():
            await asyncio.wait([work], timeout=_CHECK_EVERY_S)
            check_alive()
            waiting.log()
    except BaseException:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)  # else asyncio complains of an exception that nobody saw
        raise
    return work.result()


def duration(seconds: float) -> str:
    """Such as 8 s, 9 m 40 s, 2 h 5 m."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} m {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} m"


class _Waiting:
    """One wait, which says once a minute what it is for."""

    def __init__(self, reason: Callable[[], str]) -> None:
        self._reason = reason
        self._began = time.monotonic()
        self._next_s = _LOG_EVERY_S

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def log(self) -> None:
        if self.seconds >= self._next_s:
            self._next_s += _LOG_EVERY_S
            _log.warning("waiting since %s for %s", duration(self.seconds), self._reason())
