"""SkyRL's engine with the local backend: `python -m server.local.engine`, which the API of `server.local` starts.

SkyRL has no place to plug a backend in: `get_backend_classes` is a closed list of names. Its main loop looks for
requests every 0.1 s and outlives the API. Both are replaced here; tests/server/test_local_entry.py fails when SkyRL
changes them.
"""

import logging
import os
import time
from typing import Any

import skyrl.tinker.engine
from skyrl.tinker.engine import TinkerEngine

from server.local.backend import LocalBackend, LocalBackendConfig
from tinker_client.errors import UserError, exit_on_user_error

BACKEND = "local"
_LOOK_SECONDS = 0.1  # SkyRL's
_NEW_REQUEST_SECONDS = 0.005


def get_backend_classes(
    backend_name: str, use_ray: bool = False
) -> tuple[type[LocalBackend], type[LocalBackendConfig]]:
    """In place of SkyRL's function of this name."""
    if backend_name != BACKEND or use_ray:
        raise UserError(f"server.local runs its own backend only, --backend {BACKEND}")
    return LocalBackend, LocalBackendConfig


def process_pending_requests(engine: Any) -> None:
    """In place of the engine's main loop: look for requests as soon as there is a new one, and at least as SkyRL does.

    A look takes five queries, a glance at the newest request's number 20 microseconds: so a turn does not wait 0.05 s.
    Ends when the API has, in whatever way: an engine that lived on would answer the next server's clients.
    """
    api = os.getppid()
    with engine.db_engine.connect() as connection:
        cursor = connection.connection.cursor()

        def newest_request() -> int | None:
            [(number,)] = cursor.execute("SELECT max(request_id) FROM futures").fetchall()
            return number  # type: ignore[no-any-return]

        while os.getppid() == api:
            seen, again = newest_request(), time.monotonic() + _LOOK_SECONDS
            engine.process_pending_requests_once()
            while newest_request() == seen and time.monotonic() < again:
                time.sleep(_NEW_REQUEST_SECONDS)


def main() -> None:
    """Run SkyRL's engine, with its flags."""
    logging.getLogger("skyrl").setLevel(logging.INFO)  # its debug lines cost a millisecond each, several a turn
    skyrl.tinker.engine.get_backend_classes = get_backend_classes
    TinkerEngine.process_pending_requests = process_pending_requests
    with exit_on_user_error():
        skyrl.tinker.engine.main()


if __name__ == "__main__":
    main()
