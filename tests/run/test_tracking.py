"""Mirroring metrics: what a tracker is given, and what is said if it is missing."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

import train_grpo
import train_sft
from sft_data.dataset import every_task
from sft_data.procedure import ROUNDS
from tests.standing_in import serving
from textcraft import load_tasks
from tinker_client.connection.connect import BackendConfig
from tinker_client.connection.models import TINY_MODEL
from tinker_client.errors import UserError
from tinker_client.run import tracking
from tinker_client.run.jsonl import read_rows, write_json, write_rows


@pytest.fixture
def tracker(monkeypatch) -> ModuleType:
    """A stand-in for the packages trackio and wandb that keeps what it is told."""
    module = ModuleType("tracker")
    module.__spec__ = ModuleSpec("tracker", loader=None)  # other packages look whether it is there
    module.told = []
    for name in ("init", "log", "finish"):
        setattr(module, name, lambda *values, _name=name, **named: module.told.append((_name, values, named)))
    for name in ("trackio", "wandb"):
        monkeypatch.setitem(sys.modules, name, module)
    return module


def test_each_step_is_mirrored_under_the_name_of_the_run(tracker, tmp_path):
    write_json(tmp_path / "config.json", {"flags": {"lr": 1e-5}, "sessions": [{"started": "now"}]})
    with tracking.track("trackio", tmp_path) as log:
        log(1, {"reward/mean": 0.5})
    name = f"{tmp_path.name}-now"
    assert tracker.told == [
        ("init", (), {"project": "textcraft-rl", "name": name, "config": {"lr": 1e-5}, "resume": "never"}),
        ("log", ({"reward/mean": 0.5},), {"step": 1}),
        ("finish", (), {}),
    ]


@pytest.mark.parametrize(("package", "key"), [("trackio", "name"), ("wandb", "id")])
def test_a_resumed_run_goes_on_in_the_tracker_and_a_new_one_of_its_name_does_not(tracker, tmp_path, package, key):
    first, second, later = ({"started": f"2026-11-{day}T22:42:00+00:00"} for day in (28, 29, 30))
    for sessions in ([first], [first, second], [later]):
        write_json(tmp_path / "config.json", {"flags": {}, "sessions": sessions})
        with tracking.track(package, tmp_path):
            pass
    begun, resumed, begun_again = (named for what, _, named in tracker.told if what == "init")
    assert begun[key] == resumed[key] != begun_again[key]
    assert not set(begun[key]) & set("/\\#?%:")  # what wandb refuses
    assert [run["resume"] for run in (begun, resumed, begun_again)] == ["never", "allow", "never"]


def test_both_training_scripts_mirror_what_they_write_down(tracker, tmp_path):
    data, play = tmp_path / "demonstrations.jsonl", {"groups": 1, "group_size": 2, "max_turns": 2}
    write_rows(data, every_task(load_tasks("train", "easy", [2])[:4], ROUNDS[2]))
    with serving() as (_, url):
        flags = {"backend": BackendConfig(base_url=url, tokenizer=str(TINY_MODEL)), "track": "trackio"}
        train_sft.main(train_sft.Config(run_dir=tmp_path / "sft", data=data, epochs=1, batch_size=2, **flags))
        train_grpo.main(train_grpo.Config(run_dir=tmp_path / "grpo", depths=(4,), steps=2, **play, **flags))
    logged = [{"step": named["step"], **values[0]} for what, values, named in tracker.told if what == "log"]
    assert logged == read_rows(tmp_path / "sft" / "metrics.jsonl") + read_rows(tmp_path / "grpo" / "metrics.jsonl")
    assert len(logged) == 4


def test_the_tracker_is_closed_when_the_run_fails(tracker, tmp_path):
    write_json(tmp_path / "config.json", {"flags": {}, "sessions": [{"started": "now"}]})
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
