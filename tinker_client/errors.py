"""How a script ends when something outside its code went wrong: in one line, without a traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

EXIT_USER_ERROR = 2
EXIT_SERVER_ERROR = 3


class UserError(Exception):
    """Something that the user can put right. The message is one line that says what is wrong and what to do."""


class ServerError(Exception):
    """The server ended, hangs, or has forgotten the model, and the run cannot go on. The message is one line."""


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Turn a UserError (exit status 2) or a ServerError (3) into `error: <its line>` on stderr."""
    try:
        yield
    except (UserError, ServerError) as error:
        line = " ".join(str(error).split())
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error:[/] {escape(line)}")
        sys.exit(EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_SERVER_ERROR)
