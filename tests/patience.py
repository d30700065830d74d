"""A game with many rewards for `--env tests.patience:PATIENCE`: whoever calls finish() later is worth more."""

from textcraft import Episode, Task, Turn
from tinker_client.play.environment import TextCraft


class PatientGame(Episode):
    """TextCraft, but the reward is the number of turns until the end, as a share of the budget."""

    def step(self, reply: str) -> Turn:
        turn = super().step(reply)
        return Turn(turn.observation, turn.done, self.turns / self.max_turns if turn.done else 0.0, turn.kind)


class Patience(TextCraft):
    def episode(self, task: Task, max_turns: int) -> PatientGame:
        return PatientGame(task, max_turns)


PATIENCE = Patience()
