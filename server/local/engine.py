"""SkyRL's engine with the local backend: `python -m server.local.engine`, which the API of `server.local` starts.

SkyRL has no place to plug a backend in: `get_backend_classes` is a closed list of names, and its main loop sleeps for a
fixed time. Both are replaced here; tests/server/test_local_entry.py fails when SkyRL changes them.
"""

import os
import time
from typing import Any

import skyrl.tinker.engine
from skyrl.tinker.engine import TinkerEngine

from server.local.backend import LocalBackend, LocalBackendConfig
from tinker_client.errors import UserError, exit_on_user_error

BACKEND = "local"
# SkyRL's own pause between two looks for requests.
_POLL_SECONDS = 0.1
_CHANGE_SECONDS = 0.005


def get_backend_classes(
    backend_name: str, use_ray: bool = False
) -> tuple[type[LocalBackend], type[LocalBackendConfig]]:
    """In place of SkyRL's function of this name."""
    if backend_name != BACKEND or use_ray:
        raise UserError(f"server.local runs its own backend only, --backend {BACKEND}")
    return LocalBackend, LocalBackendConfig


def process_pending_requests(engine: Any) -> None:
    """In place of the engine's main loop, which looks for requests ten times a second, with five queries each.

    This one looks as soon as the API has written to the database, which SQLite says in microseconds. It ends when the
    API is gone, however that ended: an engine that lives on would answer the requests of the next server's clients.
    """
    api = os.getppid()
    with engine.db_engine.connect() as connection:
        cursor = connection.connection.cursor()

        def data_version() -> int:
            return int(cursor.execute("PRAGMA data_version").fetchone()[0])

        while os.getppid() == api:
            seen = data_version()
            engine.process_pending_requests_once()
            again = time.monotonic() + _POLL_SECONDS
            while data_version() == seen and time.monotonic() < again:
                time.sleep(_CHANGE_SECONDS)


def main() -> None:
    """Run SkyRL's engine, with its flags."""
    skyrl.tinker.engine.get_backend_classes = get_backend_classes
    TinkerEngine.process_pending_requests = process_pending_requests
    with exit_on_user_error():
        skyrl.tinker.engine.main()


if __name__ == "__main__":
    main()
