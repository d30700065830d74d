"""What the settings for SkyRL's JAX backend save: the same episodes and the same update in both ways, in one run.

    python benchmarks/local_server.py --model smollm2

plain: batches of 16 to sample, a loss in chunks of 1,024 tokens as is SkyRL's default, and each update in one call,
padded to its longest episode. as used: what the scripts do. Each is timed `repeat` times after one round that compiles.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from unittest import mock

import tyro
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tinker_client.connection import local_server
from tinker_client.connection.connect import BackendConfig, connect
from tinker_client.errors import exit_on_user_error
from tinker_client.play.chat import ChatTemplate
from tinker_client.play.environment import ENVIRONMENTS
from tinker_client.play.gate import Gate
from tinker_client.play.records import EpisodeRecord
from tinker_client.play.rollout import PlayConfig, play
from tinker_client.play.tasks import select_tasks
from tinker_client.train import updates
from tinker_client.train.datums import REDUCTION, PolicyLoss, policy_batch
from tinker_client.train.updates import Adam, sync_policy


@dataclass(frozen=True)
class Config:
    """Play and train on the local server, in the plain way and as the scripts do."""

    model: str = "tiny"
    """Model of the local server."""
    episodes: int = 12
    """Episodes to play, each of another task, and then to train on."""
    fits_budget: int = 4
    """Turns that an ideal run of each task takes at most."""
    max_turns: int = 6
    """Turns of an episode."""
    max_reply_tokens: int = 128
    """Tokens of a reply."""
    rank: int = 32
    """LoRA rank."""
    repeat: int = 3
    """Timed rounds of each way."""
    seed: int = 0
    """Of the tasks' sample and of the sampling."""


def main(config: Config) -> None:
    table = Table("", "s an episode played", "s an episode trained", "tokens an episode", "s a GRPO step", box=None)
    steps = {}
    for name, way in (("plain", plain), ("as used", ExitStack)):
        with way():
            played, trained, tokens = measure(config)
        steps[name] = config.episodes * (played + trained)
        table.add_row(name, f"{played:.2f}", f"{trained:.2f}", f"{tokens:.0f}", f"{steps[name]:.0f}")
    console = Console(width=120)
    console.print(table)
    console.print(f"ratio of the steps: {steps['plain'] / steps['as used']:.2f}")


@contextmanager
def plain() -> Iterator[None]:
    """The local server and updates without what this project sets for a CPU."""
    settings = local_server.backend_config
    with (
        mock.patch.object(local_server, "sample_batch", lambda model_dir: 16),
        mock.patch.object(local_server, "backend_config", lambda *sizes: settings(*sizes) | {"loss_chunk_size": 1024}),
        mock.patch.object(updates, "_calls", lambda batch, backend: [list(range(len(batch.datums)))]),
    ):
        yield


def measure(config: Config) -> tuple[float, float, float]:
    """Median seconds to play an episode and to train on one, and the tokens of one."""
    environment = ENVIRONMENTS["textcraft"]
    tasks = select_tasks(environment, "train", "easy", None, limit=config.episodes, fits_budget=config.fits_budget)
    played, trained = [], []
    with (
        tempfile.TemporaryDirectory() as scratch,
        connect(BackendConfig(model=config.model), Path(scratch), rank=config.rank) as backend,
    ):
        playing = PlayConfig(
            environment=environment,
            template=ChatTemplate.of(backend),
            max_turns=config.max_turns,
            max_reply_tokens=config.max_reply_tokens,
            temperature=1.0,
            context_length=backend.context_length,
            seed=config.seed,
        )
        trainer = backend.new_training_client(config.rank, config.seed)
        policy = sync_policy(backend, trainer, version=0)
        for _ in range(1 + config.repeat):
            episodes: list[EpisodeRecord] = []
            started = time.monotonic()
            gate = Gate(backend.turns_in_flight)
            play(tasks, 1, policy, playing, gate, on_episode=episodes.append, liveness=backend.liveness)
            played.append((time.monotonic() - started) / len(episodes))
            worth = [1.0 if episode.group % 2 else -1.0 for episode in episodes]
            batch = policy_batch([e.conversation for e in episodes], worth, PolicyLoss(), REDUCTION[backend.kind])
            started = time.monotonic()
            updates.update(backend, trainer, batch, Adam().at(0.0))  # the next round plays the same
            trained.append((time.monotonic() - started) / len(episodes))
        tokens = sum(len(e.conversation.tokens) for e in episodes) / len(episodes)
    return median(played[1:]), median(trained[1:]), tokens


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Config))
