"""Mirrors of metrics.jsonl in an experiment tracker; off unless asked for."""

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tinker_client.errors import UserError

Tracker = Literal["trackio", "wandb"]

PROJECT = "textcraft-rl"


def require_tracker(tracker: Tracker | None) -> None:
    """Raises UserError if the tracker's package is not installed."""
    if tracker is not None and importlib.util.find_spec(tracker) is None:
        raise UserError(f"--track {tracker} is not installed: run `uv sync` with `--extra {tracker}` added")


@contextmanager
def track(tracker: Tracker | None, run_dir: Path) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """A function that logs a step's metrics to the tracker, if there is one, under the run's name and time of start.

    A resumed run goes on in the tracker too. trackio writes to this machine, wandb to where its own settings say.
    """
    if tracker is None:
        yield lambda step, metrics: None
        return
    module: Any = importlib.import_module(tracker)
    config = json.loads((run_dir / "config.json").read_text())
    # By this the run is found again: by trackio as its name, by wandb as its id, which may hold no colon.
    sessions = config["sessions"]
    name = f"{run_dir.resolve().name}-{sessions[0]['started'].replace(':', '')}"
    identity = {"id": name} if tracker == "wandb" else {}
    resume = "allow" if len(sessions) > 1 else "never"
    module.init(project=PROJECT, name=name, config=config["flags"], resume=resume, **identity)
    try:
        yield lambda step, metrics: module.log(dict(metrics), step=step)
    finally:
        module.finish()
