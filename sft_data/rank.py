"""`python -m sft_data rank`: which wording of the demonstrations a base model finds easiest to predict.

The post chose the format of its plans in this way. Needs a Tinker server; nothing else of sft_data imports this module.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from scipy import stats

from sft_data.dataset import sample
from sft_data.files import DataError, Row
from sft_data.procedure import ROUNDS
from sft_data.wording import WORDINGS, WordingName
from textcraft.world import load_tasks
from tinker_client.connection.connect import BackendConfig, connect
from tinker_client.play.chat import ChatTemplate, Conversation
from tinker_client.train.datums import REDUCTION, supervised_batch
from tinker_client.train.demonstrations import tokenize
from tinker_client.train.updates import forward

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Config:
    """Rank the wordings by a base model's perplexity."""

    backend: tyro.conf.OmitArgPrefixes[BackendConfig] = field(default_factory=BackendConfig)
    wordings: tuple[WordingName, ...] = tuple(WORDINGS)
    """Candidates."""
    round: Literal[1, 2] = 2
    """The procedure that they word."""
    count: int = 30
    """Tasks, the same ones for each candidate."""
    depths: tuple[int, ...] = (4, 5, 6)
    """Depths to take them from, an equal share each; of the train split."""
    seed: int = 0
    """Chooses the tasks."""
    batch_size: int = 8
    """Demonstrations sent at once."""
    rank: int = 32
    """LoRA rank of the untrained adapter that is asked. SkyRL's GPU backends allow one rank a server."""

    def __post_init__(self) -> None:
        if self.count < 2 or min(self.batch_size, self.rank) < 1:
            raise DataError("--count starts at 2, --batch-size and --rank at 1")
        if len(set(self.wordings)) < max(2, len(self.wordings)):
            raise DataError("--wordings are at least two different ones")


@dataclass(frozen=True)
class Score:
    """How well the replies of one wording are predicted; intervals are 95 % ones.

    perplexity: per token of the replies, their tool calls and stop tokens included. ratio: to that of the best.
    tokens, nats: of the replies of one demonstration, on average; the nats are what all of them cost the model.
    """

    wording: str
    perplexity: float
    interval: tuple[float, float]
    ratio: float
    ratio_interval: tuple[float, float]
    tokens: float
    nats: float


def main(config: Config) -> None:
    demonstrations = candidates(config)
    with (
        tempfile.TemporaryDirectory() as scratch,
        connect(config.backend, Path(scratch), rank=config.rank) as backend,
        Progress(transient=True, disable=not Console().is_terminal) as progress,
    ):
        base = backend.new_training_client(config.rank, seed=0)  # an untrained adapter changes nothing
        bar = progress.add_task("predicting", total=config.count * len(config.wordings))

        def predict(conversations: Sequence[Conversation]) -> list[float]:
            batch = supervised_batch(conversations, REDUCTION[backend.kind])
            output = forward(backend, base, batch)
            progress.update(bar, advance=len(conversations))
            return [-float(logprobs.sum()) for logprobs in batch.action_logprobs(output)]

        measured = {}
        for wording, rows in demonstrations.items():
            chats = [row["messages"] for row in rows]
            measured[wording] = measure(
                tokenize(chats, ChatTemplate.of(backend), backend.context_length), predict, config.batch_size
            )
    print_scores(scores(measured, config.seed), f"{backend.server['model']}, {config.count} tasks")


def candidates(config: Config) -> dict[str, list[Row]]:
    """The demonstrations of each wording, all of the same tasks in the same order."""
    tasks = load_tasks("train", depths=config.depths)
    return {
        name: sample(
            tasks,
            replace(ROUNDS[config.round], wording=WORDINGS[name]),
            config.count,
            recovery=0,
            mistakes=1,
            seed=config.seed,
        )
        for name in config.wordings
    }


def measure(
    conversations: Sequence[Conversation], predict: Callable[[Sequence[Conversation]], list[float]], batch_size: int
) -> FloatArray:
    """What the replies of each conversation cost the model, and their tokens: shape (2, conversations).

    predict: the negative log-likelihood of the action tokens of each conversation, in nats.
    """
    nats = np.zeros(len(conversations))
    by_length = sorted(range(len(conversations)), key=lambda i: len(conversations[i].tokens))
    for start in range(0, len(by_length), batch_size):
        indices = by_length[start : start + batch_size]
        nats[indices] = predict([conversations[i] for i in indices])
    return np.stack([nats, [conversation.action_tokens for conversation in conversations]])


def scores(measured: dict[str, FloatArray], seed: int) -> list[Score]:
    """The wordings, best first. measured: per wording what `measure` returns, for the same tasks in the same order.

    The intervals are bootstraps over tasks (BCa, Efron 1987). Those of the ratio are paired: a task that is hard to
    predict is so in every wording. They tell apart what the intervals of the perplexities themselves may not.
    """

    def log_perplexity(nats: FloatArray, tokens: FloatArray, axis: int = -1) -> FloatArray:
        return np.asarray(nats.sum(axis=axis) / tokens.sum(axis=axis))

    def difference(
        nats: FloatArray, tokens: FloatArray, best_nats: FloatArray, best_tokens: FloatArray, axis: int = -1
    ) -> FloatArray:
        return log_perplexity(nats, tokens, axis) - log_perplexity(best_nats, best_tokens, axis)

    def interval(statistic: Callable[..., FloatArray], *data: FloatArray) -> tuple[float, float]:
        found = stats.bootstrap(data, statistic, paired=True, rng=np.random.default_rng(seed)).confidence_interval
        return float(np.exp(found.low)), float(np.exp(found.high))

    order = sorted(measured, key=lambda name: float(log_perplexity(*measured[name])))
    best = measured[order[0]]
    return [
        Score(
            wording=name,
            perplexity=float(np.exp(log_perplexity(*measured[name]))),
            interval=interval(log_perplexity, *measured[name]),
            ratio=float(np.exp(difference(*measured[name], *best))),
            ratio_interval=(1.0, 1.0) if name == order[0] else interval(difference, *measured[name], *best),
            tokens=float(measured[name][1].mean()),
            nats=float(measured[name][0].mean()),
        )
        for name in order
    ]


def print_scores(ranking: Sequence[Score], title: str) -> None:
    """A table of the wordings, best first."""
    table = Table(title=f"Perplexity of the replies: {title}")
    for header in ("wording", "perplexity", "times the best", "tokens", "nats"):
        # Perplexities of a model that has never seen the like have many digits: those may wrap.
        table.add_column(header, justify="left" if header == "wording" else "right", no_wrap=header == "wording")
    for score in ranking:
        low, high = score.interval
        ratio_low, ratio_high = score.ratio_interval
        table.add_row(
            score.wording,
            f"{score.perplexity:.2f} [{low:.2f}, {high:.2f}]",
            "" if score is ranking[0] else f"{score.ratio:.3f} [{ratio_low:.3f}, {ratio_high:.3f}]",
            f"{score.tokens:.0f}",
            f"{score.nats:.0f}",
        )
    console = Console()
    console.print(table)
    console.print("[95 % interval] over tasks; tokens and nats are those of one demonstration's replies", markup=False)
