"""A game that has nothing of TextCraft: whoever says finish within the budget has won.

python train_grpo.py --env tests.finish_game:GAME --run-dir runs/finish
"""

from collections.abc import Collection
from dataclasses import dataclass

from textcraft.world import Difficulty, Split


@dataclass(frozen=True)
class Task:
    id: str
    depth: int
    difficulty: str = "medium"


@dataclass(frozen=True)
class Turn:
    observation: str
    done: bool
    reward: float
    kind: str


class Episode:
    def __init__(self, task: Task, max_turns: int) -> None:
        self.messages = [
            {"role": "system", "content": "Say when you have had enough."},
            {"role": "user", "content": f"This is {task.id}."},
        ]
        self.turns, self.end, self._max_turns = 0, None, max_turns

    def step(self, reply: str) -> Turn:
        self.turns += 1
        if "finish" in reply:
            self.end = "success"
        elif self.turns == self._max_turns:
            self.end = "out_of_turns"
        won = self.end == "success"
        return Turn(f"Turn {self.turns} is over.", self.end is not None, float(won), "finish" if won else "info")


class Game:
    def load_tasks(
        self, split: Split, difficulty: Difficulty | None = None, depths: Collection[int] | None = None
    ) -> list[Task]:
        tasks = [Task(f"finish.{split}.{number}", depth=4 + number % 3) for number in range(6)]
        return [
            task for task in tasks if difficulty in (None, task.difficulty) and (not depths or task.depth in depths)
        ]

    def episode(self, task: Task, max_turns: int) -> Episode:
        return Episode(task, max_turns)

    def ideal_turns(self, task: Task) -> int:
        return 1


GAME = Game()
