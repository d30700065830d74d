"""The flags of a script: what each may be, how they are recorded, and which a resumed run may be given anew.

A flag says its range in its type, such as `Count` or `Annotated[float, Ge(1)]`, and `check_flags` holds it to that.
"""

import dataclasses
import json
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from annotated_types import Ge, Gt, Le

from tinker_client.errors import UserError

Count = Annotated[int, Ge(1)]
NotNegative = Annotated[int, Ge(0)]

_HOW = frozenset({"resume", "overwrite", "dry_run"})  # what a start is to do, no setting of the run
# Where things are, and how a server is asked: never part of what a run is.
_ALWAYS_FREE = frozenset({"run_dir", "base_url", "turns_in_flight", "retries"})


def check_flags(config: Any) -> None:
    """Hold each field of the dataclass `config` to its annotated range; a float must be finite, None always passes.

    Raises UserError that names the flag and what it was given.
    """
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name)
        if value is None:
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{_flag(name)} {value}: give a finite number")
        for limit in _limits(hint):
            match limit:
                case Ge(least) if value < least:
                    raise UserError(f"{_flag(name)} {value}: it is {least} or more")
                case Gt(bound) if value <= bound:
                    raise UserError(f"{_flag(name)} {value}: it is above {bound}")
                case Le(most) if value > most:
                    raise UserError(f"{_flag(name)} {value}: it is {most} or less")


def resolved(config: Any) -> dict[str, Any]:
    """Every flag of the dataclass `config` as JSON holds it."""
    flags: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return flags


def changed_flags(before: Mapping[str, Any], config: Any) -> dict[str, list[Any]]:
    """The flags of the dataclass `config` that are not what they were, by their names in it: [before, now].

    before: of an earlier start, as `resolved` gave them. A flag that is new since then counts with its default.
    """
    was, now, defaults = _flat(before), _flat(resolved(config)), _defaults(config)
    pairs = {name: [was.get(name, defaults.get(name)), value] for name, value in now.items() if name not in _HOW}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def refuse_changes(path: Path, before: Mapping[str, Any], config: Any, may_change: Collection[str]) -> None:
    """Raises UserError if the run in `path`, begun with the flags `before`, is resumed with other ones.

    config: the flags now, a dataclass. may_change: the flags that may be others, by their names in it.
    """
    for name, (was, now) in changed_flags(before, config).items():
        if name not in _ALWAYS_FREE and name not in may_change:
            raise UserError(f"{path} was begun with {_flag(name)} {was}, not {now}: give another --run-dir")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _limits(hint: Any) -> Iterator[Any]:
    """The ranges that a type is annotated with, also within `X | None`."""
    yield from getattr(hint, "__metadata__", ())
    for part in get_args(hint):
        yield from _limits(part)


def _defaults(config: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            defaults |= _defaults(value)
        elif field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
    return defaults


def _flat(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags of dataclasses within dataclasses as the flags that they are on the command line."""
    flat: dict[str, Any] = {}
    for name, value in flags.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return flat
