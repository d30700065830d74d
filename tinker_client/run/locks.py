"""Directories that one process at a time may work in. The operating system ends a claim with its process."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinker_client.errors import UserError

_CHECK_EVERY_S = 0.1
_held: dict[Path, int] = {}


def claim(directory: Path) -> None:
    """Claim a directory until this process ends. Raises UserError if another process has it."""
    path = directory.resolve()
    if path not in _held:
        _held[path] = _locked(directory, wait_s=0.0)


@contextmanager
def claimed(directory: Path, wait_s: float) -> Iterator[int]:
    """A claim as a file descriptor, which processes that inherit it keep up after the context.

    Raises UserError if another process has the directory for longer than `wait_s`.
    """
    descriptor = _locked(directory, wait_s)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(directory: Path, wait_s: float) -> int:
    descriptor = os.open(directory, os.O_RDONLY)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise UserError(f"another process works in {directory}: let it end first, or stop it") from None
            time.sleep(_CHECK_EVERY_S)
        except OSError:  # a file system without locks
            return descriptor
