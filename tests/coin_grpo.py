"""train_grpo.py on a game whose success is that of a coin: groups have both outcomes, whatever the model is able to do.

python -m tests.coin_grpo --run-dir runs/coin
"""

import tyro

import train_grpo
from textcraft import Episode, Turn
from tinker_client.errors import exit_on_user_error
from tinker_client.play import rollout
from tinker_client.run.stopping import resumable


class CoinGame(Episode):
    """Ends with a success if its last reply has an odd number of characters."""

    def step(self, reply: str) -> Turn:
        turn = super().step(reply)
        return Turn(turn.observation, True, float(len(reply) % 2), turn.kind) if turn.done else turn


if __name__ == "__main__":
    rollout.Episode = CoinGame
    with exit_on_user_error(), resumable():
        train_grpo.main(tyro.cli(train_grpo.Config))
