"""Runs a command until its own stdin closes, then ends every process of it.

    python watchdog.py COMMAND ARGUMENT...

The script that starts it holds the other end of stdin. However that script ends, by an exception, a signal or SIGKILL,
the operating system closes the pipe, on Linux and macOS alike; nothing has to be done by the script itself. The command
leads a process group of its own, so that its children (`uv run` starts Python, which starts another `uv run`) end with
it. Start the watchdog in a new session: Ctrl-C in the script's terminal must not reach it.
"""

import os
import select
import signal
import subprocess
import sys
import time

GRACE_SECONDS = 5.0


def main() -> int:
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_stop(child)))
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], 0.5)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    return _stop(child)


def _stop(child: subprocess.Popen[bytes]) -> int:
    """End the process group: politely, then for certain, since a grandchild may outlive its parent."""
    _signal_group(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and _group_lives(child):
        time.sleep(0.05)
    _signal_group(child.pid, signal.SIGKILL)
    return child.wait()


def _group_lives(child: subprocess.Popen[bytes]) -> bool:
    child.poll()  # reaps the leader, which as a zombie would keep its group alive
    return _signal_group(child.pid, 0)


def _signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
