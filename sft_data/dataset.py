"""The rows of demonstrations: which tasks, which of them with mistakes."""

import itertools
import random
from collections.abc import Sequence

from sft_data.demonstrator import Message, demonstrate
from sft_data.files import DataError, Row
from sft_data.mistakes import KINDS
from sft_data.procedure import Procedure
from sft_data.recovery import demonstrate_recovery
from textcraft.world import Task, load_world


def every_task(tasks: Sequence[Task], procedure: Procedure) -> list[Row]:
    """One perfect demonstration of each task, in their order."""
    world = load_world()
    return [_row(task, "perfect", demonstrate(task, procedure, world=world)) for task in tasks]


def sample(
    tasks: Sequence[Task], procedure: Procedure, count: int, *, recovery: int, mistakes: int, seed: int
) -> list[Row]:
    """`count` demonstrations of different tasks, `recovery` of them with `mistakes` mistakes each, in random order.

    Both numbers are split evenly over the depths, and the kinds of mistake evenly over those that have any; a depth
    with too few tasks leaves its rest to the others. Raises DataError if there are not as many tasks.
    """
    if count > len(tasks):
        raise DataError(
            f"{count} demonstrations were asked for and only {len(tasks)} tasks are selected, each is used once: "
            f"ask for at most {len(tasks)} (--count), or for more --depths"
        )
    world, rng = load_world(), random.Random(seed)
    by_depth: dict[int, list[Task]] = {}
    for task in rng.sample(tasks, len(tasks)):
        by_depth.setdefault(task.depth, []).append(task)
    total = split_evenly(count, {depth: len(group) for depth, group in sorted(by_depth.items())})
    kinds = itertools.cycle(KINDS)
    rows = []
    for depth, wanted in split_evenly(recovery, total).items():
        for _ in range(wanted):
            first = next(kinds)
            planted = [KINDS[(KINDS.index(first) + i) % len(KINDS)] for i in range(mistakes)]
            for position, task in enumerate(by_depth[depth]):
                if messages := demonstrate_recovery(task, procedure, planted, rng, world):
                    rows.append(_row(task, "+".join(planted), messages))
                    del by_depth[depth][position]
                    break
            else:
                raise DataError(
                    f"no task of depth {depth} is left that has room for {' and '.join(planted)}: "
                    "ask for fewer --recovery or --mistakes, or for other --depths"
                )
    done = {depth: sum(row["depth"] == depth for row in rows) for depth in total}
    for depth, number in total.items():
        rows += every_task(by_depth[depth][: number - done[depth]], procedure)
    rng.shuffle(rows)
    return rows


def split_evenly(count: int, room: dict[int, int]) -> dict[int, int]:
    """`count` shared out one at a time in the order of `room`, to none more than its room. ValueError if it is full."""
    if count > sum(room.values()):
        raise ValueError(f"{count} do not fit into {room}")
    shares = dict.fromkeys(room, 0)
    while count:
        for key, most in room.items():
            if count and shares[key] < most:
                shares[key] += 1
                count -= 1
    return shares


def replies(row: Row) -> list[str]:
    """What the model says in a row, turn by turn."""
    return [message["content"] for message in row["messages"] if message["role"] == "assistant"]


def train_on_every_reply(rows: Sequence[Row]) -> None:
    """Give the replies that make a mistake weight 1 too, in place."""
    for row in rows:
        for message in row["messages"]:
            if message["role"] == "assistant":
                message["weight"] = 1


def _row(task: Task, kind: str, messages: list[Message]) -> Row:
    return {
        "id": f"{task.id}.{kind}",
        "task_id": task.id,
        "split": task.split,
        "depth": task.depth,
        "kind": kind,
        "messages": messages,
    }
