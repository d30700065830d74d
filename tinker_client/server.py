"""A SkyRL Tinker server on this machine's CPU, for as long as a script runs."""

from pathlib import Path
from types import TracebackType
from typing import Self


class LocalServer:
    """SkyRL's JAX backend on a free port of 127.0.0.1, with all that it writes inside `directory`.

    Raises UserError on entering if uv or the `jax` extra is missing or the server does not come up.
    """

    def __init__(self, directory: Path, model_dir: Path, *, max_rank: int) -> None:
        self.directory = directory
        self.model_dir = model_dir
        self.max_rank = max_rank
        self.base_url = ""

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError
