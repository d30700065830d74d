"""The post's own numbers, to stand beside ours where they are about the same thing."""

import functools
import json
from collections.abc import Collection
from pathlib import Path

NUMBERS = Path(__file__).with_name("published.json")


def post_number(model: str, tasks: str | None, turns: int, measure: str) -> float | None:
    """What the post says about a model's measure, None where it says nothing.

    model: one of base, grpo, sft_round1, sft and sft_grpo, or two of them as "sft_grpo - sft".
    tasks: the key of a `TaskSet`, or "training". measure: the name of a column of the tables.
    """
    return _numbers().get((model, tasks, turns, measure))


def difficulty_key(difficulty: str, depths: Collection[int], tasks: int, *, fit_75: bool) -> str | None:
    """The post's name for tasks of one difficulty: its 60 medium ones are of all three depths, its hard ones are
    all that fit 75 turns."""
    if difficulty == "medium" and set(depths) == {4, 5, 6}:
        return "medium"
    return "hard_fit_75" if difficulty == "hard" and fit_75 and tasks == 44 else None


@functools.cache
def _numbers() -> dict[tuple[str, str | None, int, str], float]:
    rows = json.loads(NUMBERS.read_text())["numbers"]
    return {(row["model"], row["tasks"], row["turns"], row["measure"]): row["value"] for row in rows}
