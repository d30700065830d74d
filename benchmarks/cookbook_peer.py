"""GRPO on TextCraft-Synth by tinker-cookbook's own `rl/train.py`, for benchmarks/cookbook.py, which starts it.

Runs under the cookbook's Python, beside whose packages it needs this project's own (not its server). The game, its
prompt and the tokens of a conversation are ours; rollouts, advantages, datums, updates and logs are the cookbook's.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import chz
import tinker
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tinker_cookbook.rl import train, types

import textcraft
from tinker_client.connection.models import load_tokenizer, stop_token_ids
from tinker_client.play.chat import ChatTemplate, Conversation
from tinker_client.play.environment import ENVIRONMENTS
from tinker_client.play.tasks import select_tasks, task_order


@dataclass(frozen=True)
class Config:
    """What train_grpo.py is given too."""

    base_url: str
    """The server."""
    model: str
    """Its model, a folder with a tokenizer."""
    log_path: Path
    """Where the cookbook logs."""
    depths: tuple[int, ...] = (2,)
    """Depths of the train tasks."""
    groups: int = 8
    """Groups of a step."""
    group_size: int = 8
    """Episodes of a group."""
    steps: int = 4
    """Optimizer steps."""
    max_turns: int = 12
    """Turns of an episode."""
    max_reply_tokens: int = 128
    """Tokens of a reply."""
    lr: float = 1e-9
    """Learning rate."""
    seed: int = 0
    """Of the order of the tasks."""


class Game(types.Env):
    """One episode, as a conversation of tokens that only grows, so that the cookbook makes one datum of it."""

    def __init__(self, task: textcraft.Task, template: ChatTemplate, max_turns: int) -> None:
        self._episode = textcraft.Episode(task, max_turns=max_turns)
        self._template = template
        self._conversation = Conversation(template, self._episode.messages)

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[int]]:
        """The opening, and what ends a reply."""
        return self._prompt(), self._template.stop_token_ids

    async def step(self, action: list[int], *, extra: Any = None) -> types.StepResult:
        """Play one reply."""
        self._conversation.add_reply(action)
        turn = self._episode.step(self._template.decode_reply(action))
        if not turn.done:
            self._conversation.add_observation(turn.observation)
        return types.StepResult(turn.reward, turn.done, self._prompt(), self._template.stop_token_ids)

    def _prompt(self) -> tinker.ModelInput:
        return tinker.ModelInput.from_ints(self._conversation.tokens)


@dataclass(frozen=True)
class Group(types.EnvGroupBuilder):
    """The episodes of one task."""

    task: textcraft.Task
    template: ChatTemplate
    config: Config

    async def make_envs(self) -> Sequence[types.Env]:
        """New episodes."""
        return [Game(self.task, self.template, self.config.max_turns) for _ in range(self.config.group_size)]


class Tasks(types.RLDataset):
    """The same tasks in the same order as train_grpo.py plans them."""

    def __init__(self, config: Config) -> None:
        tokenizer = load_tokenizer(config.model)
        template = ChatTemplate(tokenizer, stop_token_ids(tokenizer))
        tasks = select_tasks(ENVIRONMENTS["textcraft"], "train", None, config.depths)
        order = islice(task_order(tasks, config.seed), config.steps * config.groups)
        self._groups = [Group(task, template, config) for task in order]
        self._config = config

    def get_batch(self, index: int) -> Sequence[types.EnvGroupBuilder]:
        """The groups of a step."""
        size = self._config.groups
        return self._groups[index * size : (index + 1) * size]

    def __len__(self) -> int:
        return self._config.steps


@chz.chz
class TasksBuilder(types.RLDatasetBuilder):
    """What the cookbook's configuration wants in place of a dataset."""

    config: Any

    async def __call__(self) -> tuple[types.RLDataset, None]:
        """The tasks; none to test on."""
        return Tasks(self.config), None


def main(config: Config) -> None:
    cookbook = train.Config(
        learning_rate=config.lr,
        dataset_builder=TasksBuilder(config=config),
        model_name=config.model,
        recipe_name="textcraft",
        max_tokens=config.max_reply_tokens,
        log_path=str(config.log_path),
        base_url=config.base_url,
        loss_fn="ppo",
        lora_rank=32,
        remove_constant_reward_groups=True,  # as ours: they have no gradient
        eval_every=0,
        save_every=0,
        ttl_seconds=None,
    )
    asyncio.run(train.main(cookbook))


if __name__ == "__main__":
    main(tyro.cli(Config))
