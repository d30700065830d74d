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

import tyro
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import evaluate
import train_grpo
from tinker_client.connect import BackendConfig
from tinker_client.errors import exit_on_user_error
from tinker_client.groups import Advantage, Rewards, advantages
from tinker_client.jsonl import read_rows
from tinker_client.report.episodes import Evaluation, load_evaluations
from tinker_client.report.measures import compare, measure
from tinker_client.report.statistics import Interval

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
    table = Table(
        "", "success", "95 % interval", "change", "95 % interval", "optimizer steps", title="Does GRPO learn?"
    )
    before = evaluated(config, "before", config.init)
    tasks = {episode.task_id for episode in before.episodes}
    table.add_row("before", *texts(measure(before, tasks, config.max_turns, k=1).success), "", "", "")
    for sign in config.signs:
        name = f"sign_{sign:+d}"
        run_dir = config.run_dir / name
        train(config, run_dir, sign)
        after = evaluated(config, f"after_{name}_{config.steps}", str(run_dir))
        success = measure(after, tasks, config.max_turns, k=1).success
        change = compare(before, after, tasks, config.max_turns).difference
        updates = sum("tokens/trained" in row for row in read_rows(run_dir / "metrics.jsonl"))
        label = NAMES.get(sign, f"times {sign}")
        table.add_row(label, *texts(success), *texts(change, "+"), str(updates))
    Console(width=120).print(table)


def train(config: Config, run_dir: Path, sign: int) -> None:
    """One run of train_grpo.py, or what is left of it."""
    train_grpo.main(
        train_grpo.Config(
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
        ),
        advantages_of=partial(signed, sign),
    )


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


def texts(rate: Interval, sign: str = "") -> tuple[str, str]:
    """A rate and its interval."""
    return f"{rate.value:{sign}.3f}", f"[{rate.low:{sign}.3f}, {rate.high:{sign}.3f}]"


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Config))
