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
from typing import Any, Literal

Split = Literal["train", "val"]
Difficulty = Literal["easy", "medium", "hard", "extreme"]

BENCHMARK_SEED = 42
ITEMS_PER_DOMAIN_AND_TIER = 25
TASK_FILE_SHA256: dict[str, str] = {
    "train": "685823fbca90aa89e061e61fef58d0122def4221eed14cf2c8c730341363a00f",
    "val": "84a123ee46e29e65f4d7b95f4943aa56907fc3fd5992268faa749602579dfc0c",
}
# Of the benchmark's recipes as JSON, in the package's order.
WORLD_SHA256 = "41ad3ee1f7fa257b34d54e09d37f85e1f6b839a8a65aa7a8b3b369f293d4b1a7"


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
    """The recipe world of the benchmark, or with another `seed` a world of the same kind with other recipes.

    Raises BenchmarkError if the installed package builds another benchmark than the pinned one.
    """
    from platoon_textcraft.synth_recipe_loader import SynthRecipeLoader  # noqa: PLC0415 (a fifth of our import time)

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
    world = World(recipes, dict(loader.item_depths))
    if (seed, items_per_domain_and_tier) == (BENCHMARK_SEED, ITEMS_PER_DOMAIN_AND_TIER):
        _check(_fingerprint(world), WORLD_SHA256, "the recipe world")
    return world


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
    path = _data_dir() / f"textcraft_synth_{split}.jsonl"
    content = path.read_bytes()
    _check(hashlib.sha256(content).hexdigest(), TASK_FILE_SHA256[split], str(path))
    return tuple(_task(line, split) for line in content.splitlines())


def _data_dir() -> Path:
    spec = find_spec("platoon_textcraft")
    if spec is None or spec.origin is None:
        raise BenchmarkError("platoon-textcraft is not installed: run `uv sync`")
    return Path(spec.origin).parent / "data"


def _check(digest: str, pinned: str, what: str) -> None:
    if digest != pinned:
        raise BenchmarkError(f"{what} has SHA-256 {digest}, not that of platoon-textcraft 0.3.0: reinstall it")


def _fingerprint(world: World) -> str:
    recipes = [(item, recipe.ingredients, recipe.result_count) for item, recipe in world.recipes.items()]
    return hashlib.sha256(json.dumps([recipes, world.depths]).encode()).hexdigest()


def _task(line: bytes, split: Split) -> Task:
    # Nine tenths of a line is the package's own solution, which we do not use; the order of the keys is pinned with
    # the file's hash, so that it can be cut out unparsed.
    start, end = line.index(b'"gold_trajectory"'), line.rindex(b'"difficulty"')
    row: dict[str, Any] = json.loads(line[:start] + line[end:])
    misc = row["misc"]
    return Task(
        id=row["id"],
        split=split,
        targets=misc["target_items"],
        inventory=misc["initial_inventory"],
        depth=misc["max_depth"],
        difficulty=misc["difficulty"],
    )
