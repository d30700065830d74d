"""Which flags a run that goes on may be given anew."""

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tinker_client.errors import UserError

# How the command is given and where things are: never part of what a run is.
_ALWAYS_FREE = frozenset({"run_dir", "resume", "overwrite", "dry_run", "base_url", "turns_in_flight", "retries"})


def resolved(config: Any) -> dict[str, Any]:
    """Every flag of the dataclass `config` as JSON holds it."""
    flags: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return flags


def refuse_changes(path: Path, before: Mapping[str, Any], config: Any, may_change: Collection[str]) -> None:
    """Raises UserError if the run in `path`, begun with the flags `before`, is gone on with other ones.

    config: the flags now, a dataclass. may_change: the flags that may be others, by their names in it.
    """
    was, now = _flat(before), _flat(resolved(config))
    for name in now:
        if name not in _ALWAYS_FREE and name not in may_change and was.get(name) != now[name]:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{path} was begun with {flag} {was.get(name)}, not {now[name]}: give another --run-dir")


def _flat(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in flags.items() if name != "backend"}, **flags.get("backend", {})}
