"""Whether a running server still answers, which the SDK never asks: it waits for ever for one that is gone."""

import threading
import time
from types import TracebackType
from typing import Self

from tinker_client.connection.local_server import answers
from tinker_client.connection.waiting import duration
from tinker_client.errors import ServerError

ASK_EVERY_S = 10.0
ANSWER_S = 10.0
# A server that comes back later than this has loaded its model anew, and forgotten ours.
SILENCE_S = 120.0


class Pulse:
    """Asks a server's health page in the background, from entering to leaving."""

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

    def check_alive(self) -> None:
        """Raises ServerError once the server has not answered for `SILENCE_S`."""
        silence = time.monotonic() - self._last
        if silence > SILENCE_S:
            raise ServerError(f"{self._base_url} has not answered for {duration(silence)}: start the server again")

    def _ask(self) -> None:
        while not self._stop.wait(ASK_EVERY_S):
            if answers(self._base_url, ANSWER_S):
                self._last = time.monotonic()
