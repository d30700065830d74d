"""How a script ends when its user, not its code, has to do something."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

EXIT_USER_ERROR = 2


class UserError(Exception):
    """Something that the user can put right. The message is one line that says what is wrong and what to do."""


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Turn a UserError into `error: <its line>` on stderr and exit status 2, without a traceback."""
    try:
        yield
    except UserError as error:
        line = " ".join(str(error).split())
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error:[/] {escape(line)}")
        sys.exit(EXIT_USER_ERROR)
