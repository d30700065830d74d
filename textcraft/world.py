"""Recipes and tasks of TextCraft-Synth, read from the package `platoon-textcraft`.

The package builds its recipe world from a seed and ships the tasks as JSONL. Both are read here once, checked, and
turned into small immutable records; nothing else of the package is used.
"""

import functools
import hashlib
import json
import random
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

Split = Literal["train", "val"]
Difficulty = Literal["easy", "medium", "hard", "extreme"]

BENCHMARK_SEED = 42
ITEMS_PER_DOMAIN_AND_TIER = 25
TASK_FILE_SHA256: dict[str, str] = {
    "train": "685823fbca90aa89e061e61fef58d0122def4221eed14cf2c8c730341363a00f",
    "val": "84a123ee46e29e65f4d7b95f4943aa56907fc3fd5992268faa749602579dfc0c",
}


class BenchmarkError(Exception):
    """The installed benchmark is not the one that this code was written and checked against."""


@dataclass(frozen=True)
class Recipe:
    """One craft: `ingredients` (item -> count) are used up and `result_count` items appear."""

    ingredients: dict[str, int]
    result_count: int


@dataclass(frozen=True)
class World:
    """All items of one recipe world.

    recipes: the recipe of each craftable item; in TextCraft-Synth an item has exactly one.
    depths: crafting layers below each item, 0 for a raw material. Its keys are all items there are.
    """

    recipes: dict[str, Recipe]
    depths: dict[str, int]

    def is_raw(self, item: str) -> bool:
        """Whether `item` exists and can only be had from the starting inventory."""
        return item in self.depths and item not in self.recipes


@dataclass(frozen=True)
class Task:
    """One crafting task: make `targets` (item -> count) from `inventory` (item -> count).

    depth: crafting layers between the raw materials and the target.
    """

    id: str
    split: Split
    targets: dict[str, int]
    inventory: dict[str, int]
    depth: int
    difficulty: Difficulty


@functools.cache
def load_world(seed: int = BENCHMARK_SEED, items_per_domain_and_tier: int = ITEMS_PER_DOMAIN_AND_TIER) -> World:
    """The recipe world of the benchmark, or with another `seed` a world of the same kind with other recipes."""
    from platoon_textcraft.synth_recipe_loader import SynthRecipeLoader

    # The package seeds the global generator; a library must not change its caller's random numbers.
    state = random.getstate()
    try:
        loader = SynthRecipeLoader(seed=seed, items_per_domain_tier=items_per_domain_and_tier)
    finally:
        random.setstate(state)
    ambiguous = [item for item, recipes in loader.recipes.items() if len(recipes) != 1]
    if ambiguous:
        raise BenchmarkError(f"{len(ambiguous)} items have several recipes, among them {ambiguous[0]}")
    recipes = {item: Recipe(dict(only.ingredients), only.result_count) for item, (only,) in loader.recipes.items()}
    return World(recipes, dict(loader.item_depths))


def load_tasks(split: Split, difficulty: Difficulty | None = None, depths: Collection[int] | None = None) -> list[Task]:
    """The tasks of a split in the package's order, those of one difficulty or of some depths where asked.

    Raises BenchmarkError if the installed task file is not the pinned one.
    """
    return [
        task
        for task in _read_split(split)
        if (difficulty is None or task.difficulty == difficulty) and (depths is None or task.depth in depths)
    ]


@functools.cache
def _read_split(split: Split) -> tuple[Task, ...]:
    path = _package_dir() / "data" / f"textcraft_synth_{split}.jsonl"
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != TASK_FILE_SHA256[split]:
        raise BenchmarkError(f"{path} has SHA-256 {digest}, not that of platoon-textcraft 0.3.0: reinstall it")
    return tuple(_task(json.loads(line), split) for line in content.splitlines())


def _package_dir() -> Path:
    spec = find_spec("platoon_textcraft")
    if spec is None or spec.origin is None:
        raise BenchmarkError("platoon-textcraft is not installed: run `uv sync`")
    return Path(spec.origin).parent


def _task(row: dict, split: Split) -> Task:
    misc = row["misc"]
    return Task(
        id=row["id"],
        split=split,
        targets=misc["target_items"],
        inventory=misc["initial_inventory"],
        depth=misc["max_depth"],
        difficulty=misc["difficulty"],
    )
