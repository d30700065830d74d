"""How a run is stopped from outside, and how it says which command takes it up again."""

import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.markup import escape

from tinker_client.errors import ServerError

# As shells count: 128 and the signal's number.
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, but with its own exit status."""


@contextmanager
def resumable() -> Iterator[None]:
    """Around a script that has --resume: if it does not reach its end, its last line is the command that goes on.

    Ctrl-C and SIGTERM end it through its context managers, which stop a local server and release adapters.
    Exit status: 130 for Ctrl-C, 143 for SIGTERM, and 3 for a ServerError, which is raised with the command added.
    """
    # A shell without job control starts background jobs with SIGINT ignored; who sends it to one means it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except ServerError as error:
        raise ServerError(f"{error}. Resume with: {resume_command()}") from error
    except KeyboardInterrupt as stop:
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print(f"stopped. Resume with: {escape(resume_command())}")
        sys.exit(EXIT_TERMINATED if isinstance(stop, Terminated) else EXIT_INTERRUPTED)


@contextmanager
def finishing_steps() -> Iterator[Callable[[], bool]]:
    """Around a training loop: the first Ctrl-C only asks it to stop, the second stops it with KeyboardInterrupt.

    Yields a function that says whether it was asked. The loop then finishes its step, saves and raises
    KeyboardInterrupt itself. Signals reach the main thread only, so elsewhere nothing is ever asked.
    """
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        # Not print: the signal may have interrupted another one, whose buffer is not reentrant.
        os.write(2, b"finishing this step, then saving; Ctrl-C again stops at once\n")

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def resume_command() -> str:
    """The command line that resumes this script's run, to be given in the same folder."""
    python = "python" if shutil.which("python") == sys.executable else sys.executable
    flags = [flag for flag in sys.argv if flag not in ("--overwrite", "--resume")]
    return shlex.join([python, *flags, "--resume"])


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
