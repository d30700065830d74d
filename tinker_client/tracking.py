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
    """A function that logs a step's metrics to the tracker, if there is one, under the run directory's name.

    A resumed run goes on in the tracker too. trackio writes to this machine, wandb to where its own settings say.
    """
    if tracker is None:
        yield lambda step, metrics: None
        return
    module: Any = importlib.import_module(tracker)
    config = json.loads((run_dir / "config.json").read_text())
    name = run_dir.resolve().name
    # trackio finds the run to go on with by its name, wandb by an id, which may hold no colon.
    identity = {"id": f"{name}-{config['started'].replace(':', '')}"} if tracker == "wandb" else {}
    resume = "allow" if "resumed" in config else "never"
    module.init(project=PROJECT, name=name, config=config["flags"], resume=resume, **identity)
    try:
        yield lambda step, metrics: module.log(dict(metrics), step=step)
    finally:
        module.finish()
