"""Does GRPO learn, and is it the advantages that do it? The same run with their sign as it is, negated, and with zeros.

    python benchmarks/learning.py --run-dir runs/learning

Success on a few fixed tasks, trained on over and over, must rise, fall and stay, beyond what sampling explains: it
shows that learning works, not that it generalises. The tasks are the shortest ones, since the outcome of an episode
says the less about each of its tokens, the more there are. Each run and each evaluation is a run directory of the
scripts; those that are there already are not made again, so that signs can be run one by one.
"""

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import evaluate
import train_grpo
from tinker_client.connection.connect import BackendConfig
from tinker_client.errors import exit_on_user_error
from tinker_client.evaluation.episodes import Evaluation, load_evaluations
from tinker_client.run.jsonl import read_rows
from tinker_client.train.advantages import Advantage, Rewards, advantages

NAMES = {1: "advantages as they are", -1: "negated", 0: "zero"}


@dataclass(frozen=True)
class Config:
    """Train with each sign of the advantages and evaluate before and after on the same tasks."""

    run_dir: Path
    """Where the runs and their evaluations are written."""
    backend: tyro.conf.OmitArgPrefixes[BackendConfig] = field(default_factory=BackendConfig)
    init: str | None = None
    """What all runs start from: a run directory or a tinker:// training path. Default: the base model."""
    signs: tuple[int, ...] = (1, -1, 0)
    """Factors on the advantages."""
    steps: int = 12
    """Optimizer steps of a run."""
    groups: int = 8
    """Tasks per step."""
    group_size: int = 8
    """Episodes of each task."""
    lr: float = 1e-3
    """Learning rate."""
    max_staleness: int = 0
    """As of train_grpo.py."""
    depths: tuple[int, ...] = (2,)
    """Depths of the tasks, to train on and to evaluate."""
    fits_budget: int = 3
    """Turns that an ideal run of each takes at most."""
    tasks: int = 8
    """Tasks to train on, the same at every step, and to evaluate."""
    rollouts: int = 16
    """Episodes of each of them in an evaluation."""
    max_turns: int = 6
    """Turns of an episode."""
    max_reply_tokens: int = 128
    """Tokens of a reply."""
    seed: int = 0
    """Of the runs and the evaluations."""


def main(config: Config) -> None:
    table = Table("", "success", "change", "95 % interval", "optimizer steps", title="Does GRPO learn?")
    before = evaluated(config, "before", config.init)
    table.add_row("before", f"{success(before):.3f}", "", "", "")
    for sign in config.signs:
        name = f"sign_{sign:+d}"
        run_dir = config.run_dir / name
        train(config, run_dir, sign)
        after = evaluated(config, f"after_{name}_{config.steps}", str(run_dir))
        updates = sum("tokens/trained" in row for row in read_rows(run_dir / "metrics.jsonl"))
        label = NAMES.get(sign, f"times {sign}")
        low, high = change_interval(before, after)
        change = success(after) - success(before)
        table.add_row(label, f"{success(after):.3f}", f"{change:+.3f}", f"[{low:+.3f}, {high:+.3f}]", str(updates))
    Console(width=120).print(table)


def train(config: Config, run_dir: Path, sign: int) -> None:
    """One run of train_grpo.py, or what is left of it."""
    run = train_grpo.Config(
        run_dir=run_dir,
        backend=config.backend,
        init=config.init,
        depths=config.depths,
        fits_budget=config.fits_budget,
        limit=config.tasks,
        steps=config.steps,
        groups=config.groups,
        group_size=config.group_size,
        lr=config.lr,
        max_staleness=config.max_staleness,
        max_turns=config.max_turns,
        max_reply_tokens=config.max_reply_tokens,
        seed=config.seed,
        resume=True,
    )
    with patch("train_grpo.advantages", partial(signed, sign)):
        train_grpo.main(run)


def signed(sign: int, groups: Rewards, kind: Advantage) -> list[list[float]]:
    """The advantages times `sign`."""
    return [[sign * advantage for advantage in group] for group in advantages(groups, kind)]


def evaluated(config: Config, name: str, checkpoint: str | None) -> Evaluation:
    """What evaluate.py plays on the fixed tasks."""
    run_dir = config.run_dir / name
    if not (run_dir / "summary.json").exists():
        evaluate.main(
            evaluate.Config(
                run_dir=run_dir,
                backend=config.backend,
                checkpoint=checkpoint,
                split="train",
                depths=config.depths,
                fits_budget=config.fits_budget,
                limit=config.tasks,
                rollouts=config.rollouts,
                max_turns=config.max_turns,
                max_reply_tokens=config.max_reply_tokens,
                seed=config.seed,
                overwrite=True,
            )
        )
    return load_evaluations([str(run_dir)])[0]


def success(evaluation: Evaluation) -> float:
    """The share of all episodes that succeed."""
    return float(np.mean([episode.solved for episode in evaluation.episodes]))


def change_interval(before: Evaluation, after: Evaluation) -> tuple[float, float]:
    """What sampling episodes leaves open about the change on just these tasks: a 95 % interval.

    The mean of the tasks' own differences, each from two binomials with a success and a failure added to either
    (Agresti and Caffo 2000). Unlike those of the report, it says nothing about other tasks.
    """
    difference, variance = [], []
    for task in sorted({episode.task_id for episode in before.episodes}):
        rates = []
        for evaluation in (before, after):
            solved = [episode.solved for episode in evaluation.episodes if episode.task_id == task]
            rates.append(((sum(solved) + 1) / (len(solved) + 2), len(solved) + 2))
        difference.append(rates[1][0] - rates[0][0])
        variance.append(sum(rate * (1 - rate) / n for rate, n in rates))
    low, high = stats.norm.interval(0.95, np.mean(difference), np.sqrt(np.sum(variance)) / len(variance))
    return float(low), float(high)


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Config))
