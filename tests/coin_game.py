"""A game whose success is that of a coin: groups have both outcomes, whatever the model is able to do.

python train_grpo.py --env tests.coin_game:GAME --run-dir runs/coin
"""

import textcraft
from tinker_client.play.environment import TextCraft


class CoinEpisode(textcraft.Episode):
    """Ends with a success if its last reply has an odd number of characters."""

    def step(self, reply: str) -> textcraft.Turn:
        turn = super().step(reply)
        return textcraft.Turn(turn.observation, True, float(len(reply) % 2), turn.kind) if turn.done else turn


class CoinGame(TextCraft):
    """TextCraft-Synth's tasks, with episodes that are won by chance."""

    def episode(self, task: textcraft.Task, max_turns: int) -> CoinEpisode:
        return CoinEpisode(task, max_turns=max_turns)


GAME = CoinGame()
