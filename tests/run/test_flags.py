"""Flags: what is out of range is named with what it was given, and what a resumed run changed."""

import math
from dataclasses import dataclass, field
from typing import Annotated

import pytest
from annotated_types import Ge, Gt, Le

import train_grpo
from tinker_client.connection.connect import BackendConfig
from tinker_client.errors import UserError
from tinker_client.run.flags import Count, NotNegative, changed_flags, check_flags, resolved
from tinker_client.train.updates import Adam


@dataclass(frozen=True)
class Inner:
    share: Annotated[float, Ge(0), Le(1)] = 0.5

    def __post_init__(self) -> None:
        check_flags(self)


@dataclass(frozen=True)
class Flags:
    name: str = "x"
    batch_size: Count = 1
    retries: NotNegative = 0
    limit: Count | None = None
    rate: Annotated[float, Gt(0)] = 0.1
    clip: Annotated[float, Ge(0), Le(1)] | None = None
    free: float = 0.0
    depths: tuple[int, ...] | None = None
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        check_flags(self)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"batch_size": 0}, "--batch-size 0: it is 1 or more"),
        ({"retries": -1}, "--retries -1: it is 0 or more"),
        ({"limit": 0}, "--limit 0: it is 1 or more"),
        ({"rate": 0.0}, "--rate 0.0: it is above 0"),
        ({"rate": -1e-9}, "--rate -1e-09: it is above 0"),
        ({"clip": -0.1}, "--clip -0.1: it is 0 or more"),
        ({"clip": 1.1}, "--clip 1.1: it is 1 or less"),
        ({"rate": math.nan}, "--rate nan: give a finite number"),
        ({"rate": math.inf}, "--rate inf: give a finite number"),
        ({"free": -math.inf}, "--free -inf: give a finite number"),
    ],
)
def test_a_flag_out_of_its_range_is_named_with_what_it_was_given(flags: dict, line: str):
    with pytest.raises(UserError) as caught:
        Flags(**flags)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"limit": None, "clip": None, "depths": None},
        {"batch_size": 1, "retries": 0, "limit": 1, "rate": 1e-300, "clip": 0.0},
        {"clip": 1.0, "free": -1e300, "depths": (-1,)},
    ],
)
def test_the_ends_of_a_range_and_none_pass(flags: dict):
    Flags(**flags)


def test_flags_in_groups_are_named_as_on_the_command_line():
    with pytest.raises(UserError, match=r"^--share 2: it is 1 or less$"):
        Flags(inner=Inner(share=2))
    with pytest.raises(UserError, match=r"^--adam-beta1 1.5: it is 1 or less$"):
        Adam(adam_beta1=1.5)
    with pytest.raises(UserError, match=r"^--turns-in-flight 0: it is 1 or more$"):
        BackendConfig(turns_in_flight=0)


def test_the_scripts_hold_their_flags_to_their_ranges(tmp_path):
    with pytest.raises(UserError, match=r"^--clip-low 1.01: it is 1 or less$"):
        train_grpo.Config(run_dir=tmp_path, clip_low=1.01)
    with pytest.raises(UserError, match=r"^--max-staleness -1: it is 0 or more$"):
        train_grpo.Config(run_dir=tmp_path, max_staleness=-1)


def test_what_changed_is_told_by_the_flags_names_and_a_new_flag_counts_with_its_default():
    before = resolved(Flags(depths=(2, 3)))
    assert changed_flags(before, Flags(depths=(2, 3))) == {}
    assert changed_flags(before, Flags(depths=(2,), batch_size=4, inner=Inner(share=0.25))) == {
        "depths": [[2, 3], [2]],
        "batch_size": [1, 4],
        "share": [0.5, 0.25],
    }
    older = {name: value for name, value in before.items() if name not in ("rate", "inner")}
    assert changed_flags(older, Flags(depths=(2, 3))) == {}
    assert changed_flags(older, Flags(depths=(2, 3), rate=0.2)) == {"rate": [0.1, 0.2]}
