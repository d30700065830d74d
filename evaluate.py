"""Success of a model on TextCraft-Synth's val tasks, through a Tinker server.

    python evaluate.py --run-dir evals/base --difficulty hard --rollouts 4
    python evaluate.py --run-dir evals/sft --difficulty hard --rollouts 4 --checkpoint runs/sft
    python evaluate.py report evals/base evals/sft

Without --base-url it starts SkyRL's server with the tiny model on this machine's CPU.

Writes config.json, episodes.jsonl and summary.json into --run-dir. `report` needs no server: it reads the episodes.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from rich.console import Console

from textcraft.world import Difficulty, Split
from tinker_client.backend import BackendConfig, connect
from tinker_client.chat import ChatTemplate
from tinker_client.errors import UserError, exit_on_user_error
from tinker_client.evaluation import comparison_table, summarize, summarize_by_depth, summary_table
from tinker_client.rollout import PlayConfig, Policy, play
from tinker_client.run_dir import RunDir, append_rows, read_rows, resolve_state, write_json
from tinker_client.tasks import select_tasks


@dataclass(frozen=True)
class Config:
    """Play val tasks and report the success rate. `evaluate.py report DIR [DIR ...]` compares evaluations."""

    run_dir: Path
    """Where config.json, episodes.jsonl and summary.json are written."""
    backend: tyro.conf.OmitArgPrefixes[BackendConfig] = field(default_factory=BackendConfig)
    checkpoint: str | None = None
    """What to evaluate: a run directory (its last checkpoint) or a tinker:// training path. Default: the base model."""
    split: Split = "val"
    """Reported numbers are on val; train shows what was learnt by heart."""
    difficulty: Difficulty | None = None
    """Play tasks of this difficulty only: easy is depth 2-3, medium 4-6, hard 7-9, extreme 10-12."""
    depths: tuple[int, ...] | None = None
    """Play tasks of these depths only."""
    tasks: tuple[str, ...] | None = None
    """Play these tasks only, by id, for example textcraft_synth.val.17."""
    limit: int | None = None
    """Play this many of the tasks: a fixed sample, taken evenly over the depths."""
    rollouts: int = 1
    """Episodes of each task."""
    max_turns: int = 150
    """Turns of an episode. The prompt does not tell, so that episodes also show what fewer turns would have given."""
    max_reply_tokens: int = 512
    """Tokens of a reply; a longer one is cut off."""
    temperature: float = 1.0
    """Sampling temperature."""
    seed: int = 0
    """Sets every sampling seed."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the evaluation that --run-dir holds."""

    def __post_init__(self) -> None:
        counts = (self.rollouts, self.max_turns, self.max_reply_tokens, 1 if self.limit is None else self.limit)
        if min(counts) < 1 or self.temperature < 0:
            raise UserError("counts start at 1 and --temperature is not negative")


@dataclass(frozen=True)
class ReportConfig:
    """Compare evaluations: one row each, and the paired differences over the tasks."""

    directories: tyro.conf.Positional[tuple[Path, ...]]
    """Evaluation directories, the one to compare with first."""
    depths: tuple[int, ...] | None = None
    """Count tasks of these depths only."""


def main(config: Config) -> None:
    tasks = select_tasks(config.split, config.difficulty, config.depths, config.tasks, config.limit)
    checkpoint = resolve_state(config.checkpoint) if config.checkpoint else None
    run = RunDir.create(config.run_dir, config, overwrite=config.overwrite, init=checkpoint)
    with connect(config.backend, config.run_dir, init=checkpoint) as backend:
        run.record_server(backend.server)
        if backend.init_state_path:
            model = backend.training_client_from(backend.init_state_path, with_optimizer=False)
        else:
            model = backend.new_training_client(rank=32, seed=0)  # an untrained adapter changes nothing
        playing = PlayConfig(
            max_turns=config.max_turns,
            max_reply_tokens=config.max_reply_tokens,
            temperature=config.temperature,
            context_length=backend.context_length,
            turns_in_flight=backend.turns_in_flight,
            seed=config.seed,
        )
        template = ChatTemplate(backend.tokenizer, backend.stop_token_ids)
        policy = Policy(backend.sampling_client(model), version=0)
        episodes = play(
            tasks,
            config.rollouts,
            policy,
            template,
            playing,
            step=0,
            label="evaluating",
            check_alive=backend.check_alive,
        )
    rows = [episode.row() for episode in episodes]
    append_rows(config.run_dir / "episodes.jsonl", rows)
    overall, by_depth = summarize(rows), summarize_by_depth(rows)
    write_json(
        config.run_dir / "summary.json",
        {"overall": overall.to_json(), "by_depth": {depth: s.to_json() for depth, s in by_depth.items()}},
    )
    named = {f"depth {depth}": summary for depth, summary in by_depth.items()}
    Console().print(summary_table(f"{config.run_dir}", {**named, "all": overall}))


def report(config: ReportConfig) -> None:
    names = [directory.resolve().name for directory in config.directories]
    if len(set(names)) < len(names):
        names = [str(directory) for directory in config.directories]
    evaluations = {}
    for name, directory in zip(names, config.directories, strict=True):
        rows = read_rows(directory / "episodes.jsonl")
        if config.depths is not None:
            rows = [row for row in rows if row["depth"] in config.depths]
        if not rows:
            raise UserError(f"{directory} holds no episodes to report on: run evaluate.py --run-dir {directory} first")
        evaluations[name] = rows
    console = Console()
    console.print(summary_table("Success on the tasks played", {n: summarize(r) for n, r in evaluations.items()}))
    if len(evaluations) > 1:
        console.print(comparison_table(evaluations))


if __name__ == "__main__":
    with exit_on_user_error():
        if sys.argv[1:2] == ["report"]:
            report(tyro.cli(ReportConfig, args=sys.argv[2:], prog="evaluate.py report"))
        else:
            main(tyro.cli(Config))
