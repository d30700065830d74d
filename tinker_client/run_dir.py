"""Run directories: what a run was asked to do, what it measured, and where its states are."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

Row = dict[str, Any]


@dataclass(frozen=True)
class SavedState:
    """A training state to start from.

    state_path: `tinker://<model>/weights/<name>`.
    run_dir: the run directory that names it, or None if the path itself was given.
    """

    state_path: str
    run_dir: Path | None


def resolve_state(source: str) -> SavedState:
    """The state that `--init` or `--checkpoint` means: the last one of a run directory, or a `tinker://` training path.

    Raises UserError for a directory without checkpoints, a sampler path and anything else.
    """
    raise NotImplementedError


class RunDir:
    """One run's directory: config.json, metrics.jsonl, checkpoints.jsonl, episodes/."""

    path: Path

    @classmethod
    def create(
        cls, path: Path, config: object, *, resume: bool = False, overwrite: bool = False, init: SavedState | None = None
    ) -> Self:
        """Make the directory and write config.json with every flag of the dataclass `config`.

        A directory that holds a run is refused unless `resume` (go on in it) or `overwrite` (delete what the run wrote).
        `init` is what the run starts from; overwriting that very run is refused. Raises UserError.
        """
        raise NotImplementedError

    def record_server(self, server: Mapping[str, Any]) -> None:
        """Add what is known about the server (`Backend.server`) to config.json."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one row to metrics.jsonl. `step` must be larger than that of the row before; ValueError otherwise."""

    def log_checkpoint(self, step: int, state_path: str, **more: Any) -> None:
        """Append {"step", "state_path", ...} to checkpoints.jsonl, once the server has saved the state."""

    def log_episodes(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append episodes to `episodes/<name>.jsonl`, for example `step_000012`."""

    def last_checkpoint(self) -> Row | None:
        """The last whole row of checkpoints.jsonl."""
        raise NotImplementedError


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append JSON objects to a JSONL file, flushed to the operating system before this returns."""


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSONL file; none if it does not exist. A torn last line (a writer that was killed) is left out."""
    raise NotImplementedError


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file so that a kill leaves the old or the new content."""
