"""The benchmark as it is installed: the pinned files, the recipe world, the tasks."""

import hashlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from textcraft import load_tasks, world
from textcraft.world import BenchmarkError, load_world


def test_the_benchmark_has_its_size():
    assert [len(load_tasks(split)) for split in ("train", "val")] == [2522, 632]
    assert len(load_world().depths) == 1452


def test_tasks_are_chosen_by_difficulty_and_depth_in_the_packages_order():
    assert load_tasks("val")[17].id == "textcraft_synth.val.17"
    medium = load_tasks("train", "medium")
    assert {task.depth for task in medium} == {4, 5, 6} and {task.split for task in medium} == {"train"}
    assert load_tasks("train", depths=[4, 5, 6]) == medium
    assert load_tasks("train", "easy", depths=[4]) == []


def test_every_task_speaks_of_this_world():
    items = load_world()
    for task in (*load_tasks("train"), *load_tasks("val")):
        assert task.depth == max(items.depths[target] for target in task.targets)
        assert all(items.is_raw(item) for item in task.inventory)


@pytest.mark.parametrize("seed", [42, 0, 7])
def test_a_recipe_only_uses_items_of_lower_depth(seed):
    other = load_world(seed)
    assert len(other.recipes) > 1000
    for item, recipe in other.recipes.items():
        assert other.depths[item] > max(other.depths[ingredient] for ingredient in recipe.ingredients)


def test_loading_leaves_the_callers_random_numbers_alone():
    random.seed(5)
    expected = random.random()
    random.seed(5)
    load_world(seed=123)
    assert random.random() == expected


def test_a_changed_task_file_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "textcraft_synth_val.jsonl").write_bytes(b"{}\n")
    monkeypatch.setattr(world, "_data_dir", lambda: tmp_path)
    with pytest.raises(BenchmarkError, match=hashlib.sha256(b"{}\n").hexdigest()):
        world._read_split.__wrapped__("val")


def test_a_missing_package_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(world, "find_spec", lambda name: None)
    with pytest.raises(BenchmarkError, match="not installed: run"):
        world._read_split.__wrapped__("val")


def test_a_changed_world_is_an_error(monkeypatch):
    monkeypatch.setattr(world, "BENCHMARK_SEED", 43)
    with pytest.raises(BenchmarkError, match="recipe world"):
        load_world.__wrapped__(43)


def test_the_game_brings_no_model_library_and_no_web_stack():
    code = "import sys, textcraft, textcraft.oracle; print(*sys.modules)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "tinker", "numpy", "rich", "tyro", "platoon_textcraft.env", "pydantic"}
    assert not heavy & set(done.stdout.split())
