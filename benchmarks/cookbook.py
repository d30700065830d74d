"""The same GRPO steps by train_grpo.py and by tinker-cookbook's `rl/train.py`, on one local server, in turn.

    uv venv .cookbook && uv pip install -p .cookbook/bin/python tinker-cookbook==0.5.2 tinker==0.25.0 \\
        platoon-textcraft==0.3.0 transformers==5.16.1 tyro==1.0.17 rich scipy annotated-types jinja2
    python benchmarks/cookbook.py --cookbook-python .cookbook/bin/python

Both play the same tasks in the same order with the same prompts, and train on one datum an episode with PPO's loss; the
cookbook sets no sampling seeds, so that its episodes are others. The learning rate is next to nothing: all steps are
alike. The median of the rounds' ratios is what counts.
"""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import tyro
from local_server import ROOT, serving, timed
from rich.console import Console
from rich.table import Table

from tinker_client.connection.models import local_model_dir
from tinker_client.run.jsonl import read_rows


@dataclass(frozen=True)
class Config:
    """What is timed."""

    cookbook_python: Path
    """A Python with tinker-cookbook."""
    model: str = "tiny"
    """Model of the local server."""
    engine: str = "torch"
    """Its engine."""
    depths: tuple[int, ...] = (2,)
    """Depths of the train tasks."""
    groups: int = 8
    """Groups of a step."""
    group_size: int = 8
    """Episodes of a group."""
    steps: int = 4
    """Steps of a run; the first is not counted."""
    rounds: int = 2
    """How often both run."""
    max_turns: int = 12
    """Turns of an episode."""
    max_reply_tokens: int = 128
    """Tokens of a reply."""


def main(config: Config) -> None:
    table = Table("round", "", "s a step", "turns a step", "sampled tokens a step", "ms a sampled token")
    ratios = []
    with tempfile.TemporaryDirectory() as scratch, serving(config.model, config.engine, Path(scratch)) as (url, _, _):
        for number in range(1, config.rounds + 1):
            ours = train_grpo(config, url, Path(scratch) / f"ours{number}")
            theirs = cookbook(config, url, Path(scratch) / f"theirs{number}")
            for name, (seconds, turns, tokens) in (("train_grpo.py", ours), ("tinker-cookbook", theirs)):
                numbers = (f"{seconds:.2f}", f"{turns:.0f}", f"{tokens:.0f}", f"{1e3 * seconds / tokens:.2f}")
                table.add_row(str(number), name, *numbers)
            ratios.append((ours[0] / theirs[0], ours[0] / ours[2] * theirs[2] / theirs[0]))
    console = Console(width=120)
    console.print(table)
    by_step, by_token = (median(values) for values in zip(*ratios, strict=True))
    console.print(f"ours / cookbook: {by_step:.2f} a step, {by_token:.2f} a sampled token (medians of the rounds)")


def shared(config: Config) -> list[Any]:
    """The flags that both scripts have."""
    return [
        *("--depths", *config.depths, "--groups", config.groups, "--group-size", config.group_size),
        *("--steps", config.steps, "--lr", 1e-9, "--seed", 0),
        *("--max-turns", config.max_turns, "--max-reply-tokens", config.max_reply_tokens),
    ]


def train_grpo(config: Config, url: str, run_dir: Path) -> tuple[float, float, float]:
    """Median seconds, turns and sampled tokens of our steps."""
    server = ("--base-url", url, "--engine", config.engine, "--max-staleness", 0, "--save-every", config.steps)
    timed(["train_grpo.py", "--run-dir", run_dir, *server, *shared(config)])
    rows = read_rows(run_dir / "metrics.jsonl")[1:]
    turns = median(row["episode/turns"] for row in rows) * config.groups * config.group_size
    return median(row["time/step"] for row in rows), turns, median(row["tokens/action"] for row in rows)


def cookbook(config: Config, url: str, log_path: Path) -> tuple[float, float, float]:
    """The same of the cookbook's."""
    model = ("--base-url", url, "--model", local_model_dir(config.model), "--log-path", log_path)
    command = [config.cookbook_python, ROOT / "benchmarks" / "cookbook_peer.py", *model, *shared(config)]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"tinker-cookbook failed:\n{done.stderr[-5000:]}")
    rows = read_rows(log_path / "metrics.jsonl")[1:]
    episodes = config.groups * config.group_size
    seconds, turns, tokens = (
        median(row[name] for row in rows)
        for name in ("time/total", "env/all/turns_per_episode", "env/all/ac_tokens_per_turn")
    )
    return seconds, turns * episodes, tokens * turns * episodes


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
