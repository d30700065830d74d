"""Processes that are to be killed, and what the server of a run is doing meanwhile."""

import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil

MODULES = {"api": "server.local", "engine": "server.local.engine"}  # of a local server's processes
DEADLINE_S = 600.0  # of one start; whoever runs longer hangs
# What a request that is not answered yet says of the moment, the most telling first.
MOMENTS = {
    "SAVE_WEIGHTS": "saving",
    "FORWARD_BACKWARD": "training",
    "OPTIM_STEP": "training",
    "SAVE_WEIGHTS_FOR_SAMPLER": "syncing",
    "SAMPLE": "sampling",
    "CREATE_MODEL": "loading",
    "LOAD_WEIGHTS": "loading",
}


def wait_until(
    process: subprocess.Popen[bytes],
    condition: Callable[[], bool] = lambda: False,
    seconds: float = DEADLINE_S,
    every_s: float = 0.05,
) -> None:
    """Wait until the condition holds, so many seconds have passed or the process has ended."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline and not condition():
        time.sleep(min(every_s, max(0.0, deadline - time.monotonic())))


def ended(process: subprocess.Popen[bytes]) -> int | str:
    """The exit status of a process that is awaited; one that hangs is killed."""
    try:
        return process.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"none within {DEADLINE_S:.0f} s"


def part_of(process: subprocess.Popen[bytes], part: str) -> psutil.Process | None:
    """The engine or the API of the server that a script has started, once there is one."""
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if child.cmdline()[1:3] == ["-m", MODULES[part]]:
                    return child
    return None


def now() -> str:
    """The time as the server's database writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def moment(path: Path, since: str) -> str:
    """What the run's server is asked for at this moment, by a script that was started then."""
    database = path / "server" / "tinker.db"
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=1.0)) as connection:
            asked = set(connection.execute("SELECT request_type, status FROM futures WHERE created_at > ?", (since,)))
    except sqlite3.Error:
        return "starting"
    for kind, name in MOMENTS.items():
        if (kind, "PENDING") in asked:
            return name
    return "between requests" if asked else "starting"
