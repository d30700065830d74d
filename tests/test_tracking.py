"""Mirroring metrics: what a tracker is given, and what is said if it is missing."""

import sys
from types import ModuleType

import pytest

from tinker_client import tracking
from tinker_client.errors import UserError
from tinker_client.jsonl import write_json


@pytest.fixture
def tracker(monkeypatch) -> ModuleType:
    """A stand-in for the package trackio that keeps what it is told."""
    module = ModuleType("trackio")
    module.told = []
    for name in ("init", "log", "finish"):
        setattr(module, name, lambda *values, _name=name, **named: module.told.append((_name, values, named)))
    monkeypatch.setitem(sys.modules, "trackio", module)
    return module


def test_each_step_is_mirrored_under_the_name_of_the_run(tracker, tmp_path):
    write_json(tmp_path / "config.json", {"flags": {"lr": 1e-5}})
    with tracking.track("trackio", tmp_path) as log:
        log(1, {"reward/mean": 0.5})
    assert tracker.told == [
        ("init", (), {"project": "textcraft-rl", "name": tmp_path.name, "config": {"lr": 1e-5}}),
        ("log", ({"reward/mean": 0.5},), {"step": 1}),
        ("finish", (), {}),
    ]


def test_the_tracker_is_closed_when_the_run_fails(tracker, tmp_path):
    write_json(tmp_path / "config.json", {"flags": {}})
    with pytest.raises(ZeroDivisionError), tracking.track("trackio", tmp_path):
        raise ZeroDivisionError
    assert tracker.told[-1][0] == "finish"


def test_no_tracker_needs_nothing(tmp_path):
    with tracking.track(None, tmp_path) as log:
        log(1, {})


def test_a_tracker_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="--extra wandb"):
        tracking.require_tracker("wandb")
    tracking.require_tracker(None)
