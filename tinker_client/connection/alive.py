"""Waiting for a server that may be gone: the SDK itself retries a dead one for ever.

Every wait has a bound, or waits for work whose parts are bounded, and a reason that the log names once a minute.
"""

import asyncio
import logging
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from types import TracebackType
from typing import Protocol, Self

from tinker_client.errors import ServerError

# One training step, compilation included. A step of the post's size takes minutes on one GPU.
STEP_TIMEOUT_S = 3600.0
_CHECK_EVERY_S = 1.0
_LOG_EVERY_S = 60.0

PULSE_EVERY_S = 10.0
PULSE_ANSWER_S = 10.0
# A server that comes back later than this has loaded its model anew, and forgotten ours.
SILENCE_S = 120.0

_log = logging.getLogger(__name__)


class Request[T](Protocol):
    """What the SDK returns for a request that it has sent."""

    def result(self, timeout: float | None = None) -> T:
        """Its answer; raises TimeoutError if there is none within `timeout` seconds."""


class Liveness:
    """Whether the server behind a script is still there. This one never finds it gone; `check` says what does."""

    def check(self) -> None:
        """Raises ServerError once the server is gone."""

    def wait[T](self, request: Request[T], reason: Callable[[], str], timeout_s: float = STEP_TIMEOUT_S) -> T:
        """The result of a request, by default one to train.

        reason: what is waited for, in words.
        Raises ServerError after `timeout_s` or once the server is gone, and what the request itself raises.
        """
        waiting = _Waiting(reason)
        while True:
            asked = time.monotonic()
            try:
                return request.result(timeout=_CHECK_EVERY_S)
            except TimeoutError:
                if time.monotonic() - asked < _CHECK_EVERY_S / 2:  # the request's own, which it would raise for ever
                    raise
            self.check()
            waiting.log()
            if waiting.seconds > timeout_s:
                raise ServerError(f"the server has not answered within {duration(timeout_s)}, asked for {reason()}")

    async def wait_async[T](self, work: asyncio.Future[T], reason: Callable[[], str]) -> T:
        """The result of `work`, which is cancelled once the server is gone or the wait is interrupted."""
        waiting = _Waiting(reason)
        try:
            while not work.done():
                await asyncio.wait([work], timeout=_CHECK_EVERY_S)
                self.check()
                waiting.log()
        except BaseException:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)  # else asyncio complains of an exception nobody saw
            raise
        return work.result()


class Pulse(Liveness):
    """Asks a running server's health page in the background, from entering to leaving."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._last = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True, name="pulse")

    def __enter__(self) -> Self:
        self._last = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    def check(self) -> None:
        """Raises ServerError once the server has not answered for `SILENCE_S`."""
        silence = time.monotonic() - self._last
        if silence > SILENCE_S:
            raise ServerError(f"{self._base_url} has not answered for {duration(silence)}: start the server again")

    def _ask(self) -> None:
        while not self._stop.wait(PULSE_EVERY_S):
            if answers(self._base_url, PULSE_ANSWER_S):
                self._last = time.monotonic()


def answers(base_url: str, timeout: float) -> bool:
    """Whether a Tinker server's health check answers within `timeout` seconds."""
    return _get(f"{base_url}/api/v1/healthz", timeout) is not None


def is_skyrl(base_url: str, timeout: float) -> bool:
    """Whether the server says that it is SkyRL's, which it does by this name and without a useful version."""
    return b"Tinker API Mock" in (_get(f"{base_url}/", timeout) or b"")


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


def _get(url: str, timeout: float) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:  # noqa: S310
            content: bytes = response.read(100_000)
            return content if response.status == 200 else None
    except (OSError, ValueError, HTTPException):
        return None
