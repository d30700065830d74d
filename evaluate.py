"""Success of a model on TextCraft-Synth's val tasks, through a Tinker server.

    python evaluate.py --run-dir evals/base --difficulty hard --rollouts 4
    python evaluate.py --run-dir evals/sft --difficulty hard --rollouts 4 --checkpoint runs/sft
    python evaluate.py report evals/base evals/sft --out report

Without --base-url it starts SkyRL's server with the tiny model on this machine's CPU.

Writes config.json, episodes.jsonl (each episode as it ends) and summary.json into --run-dir; what was interrupted goes
on with --resume. `report` needs no server: it reads the episodes.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from annotated_types import Ge
from rich.console import Console
from rich.markup import escape

from textcraft import Task
from textcraft.world import Difficulty, Split
from tinker_client.connection.alive import Liveness
from tinker_client.connection.connect import BackendConfig, connect
from tinker_client.connection.models import TINY_MODEL, load_tokenizer, stop_token_ids
from tinker_client.dry_run import print_play
from tinker_client.errors import ServerError, UserError, exit_on_user_error
from tinker_client.evaluation.directory import EvaluationRun
from tinker_client.evaluation.episodes import load_evaluations
from tinker_client.evaluation.render import print_tables
from tinker_client.evaluation.scope import scope
from tinker_client.evaluation.tables import tables
from tinker_client.play.chat import ChatTemplate
from tinker_client.play.environment import find_environment
from tinker_client.play.gate import Gate
from tinker_client.play.players import PlayerClient, oracle
from tinker_client.play.rollout import PlayConfig, Policy, play
from tinker_client.play.tasks import select_tasks
from tinker_client.run.flags import Count, NotNegative, check_flags
from tinker_client.run.run_dir import resolve_state
from tinker_client.run.stopping import resumable
from tinker_client.train.updates import sync_policy


@dataclass(frozen=True)
class Config:
    """Play val tasks and report the success rate. `evaluate.py report DIR [DIR ...]` compares evaluations."""

    run_dir: Path
    """Where config.json, episodes.jsonl and summary.json are written."""
    backend: tyro.conf.OmitArgPrefixes[BackendConfig] = field(default_factory=BackendConfig)
    checkpoint: str | None = None
    """What to evaluate: a run directory (its last checkpoint) or a tinker:// training path. Default: the base model."""
    env: str = "textcraft"
    """The game, or module:object of one of your own (tinker_client/play/environment.py)."""
    rank: Count = 32
    """LoRA rank of the untrained adapter that plays as the base model. SkyRL's GPU backends allow one rank a server."""
    player: Literal["model", "oracle"] = "model"
    """Who plays: the model, or the expert who knows every recipe. The expert needs no server and shows the ceilings."""
    split: Split = "val"
    """Reported numbers are on val; train shows what was learnt by heart."""
    difficulty: Difficulty | None = None
    """Play tasks of this difficulty only: easy is depth 2-3, medium 4-6, hard 7-9, extreme 10-12."""
    depths: tuple[int, ...] | None = None
    """Play tasks of these depths only."""
    tasks: tuple[str, ...] | None = None
    """Play these tasks only, by id, for example textcraft_synth.val.17."""
    limit: Count | None = None
    """Play this many of the tasks: a fixed sample, taken evenly over the depths."""
    fits_budget: Count | None = None
    """Play only tasks whose ideal run fits so many turns; with --difficulty hard, 75 leaves the post's 44 tasks."""
    rollouts: Count = 1
    """Episodes of each task."""
    max_turns: Count = 150
    """Turns of an episode. The prompt does not tell, so that episodes also show what fewer turns would have given."""
    max_reply_tokens: Count = 512
    """Tokens of a reply; a longer one is cut off."""
    temperature: Annotated[float, Ge(0)] = 1.0
    """Sampling temperature."""
    seed: int = 0
    """Sets every sampling seed."""
    retries: NotNegative = 2
    """How often an episode asks again for a turn that the server failed, before it counts as broken."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Resume the evaluation that --run-dir holds: play what is missing, and what broke with the server."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the evaluation that --run-dir holds."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the tasks, the ceiling and the most turns and tokens this could take, and stop."""

    def __post_init__(self) -> None:
        check_flags(self)
        if self.player == "oracle" and self.checkpoint is not None:
            raise UserError("--player oracle plays without a model: leave --checkpoint out")
        if self.player == "oracle" and self.env != "textcraft":
            raise UserError("--player oracle knows textcraft only: leave --env out")


@dataclass(frozen=True)
class ReportConfig:
    """Report on evaluations: the post's tables, each number beside the post's where it gives one."""

    evaluations: tyro.conf.Positional[tuple[str, ...]]
    """Evaluation directories, as DIR or NAME=DIR; those of one NAME are one model's, played under the same conditions.
    The post's numbers appear beside models called base, grpo, sft_round1, sft and sft_grpo."""
    depths: tuple[int, ...] | None = None
    """Count tasks of these depths only."""
    budgets: tuple[int, ...] | None = None
    """Turns to report at. Default: those that each evaluation was played with, and 75 and 150 as far as that goes."""
    pass_at: Count | None = None
    """The k of pass@k. Default: the episodes of a task."""
    out: Path | None = None
    """Folder for the tables (Markdown, CSV), the pictures (PNG, SVG) and report.html, the page to browse episodes."""

    def __post_init__(self) -> None:
        check_flags(self)
        if not self.evaluations or min(self.budgets or (1,)) < 1:
            raise UserError("name at least one evaluation; --budgets start at 1")


def main(config: Config) -> None:
    environment = find_environment(config.env)
    tasks = select_tasks(
        environment,
        config.split,
        config.difficulty,
        config.depths,
        config.tasks,
        limit=config.limit,
        fits_budget=config.fits_budget,
    )
    if config.dry_run:
        factors = {"tasks": len(tasks), "rollouts": config.rollouts}
        print_play(environment, tasks, factors, config.max_turns, config.max_reply_tokens)
        # For what it refuses: nothing else here needs a tokenizer.
        ChatTemplate.before_connecting(config.backend, resolve_state(config.checkpoint) if config.checkpoint else None)
        return
    run = EvaluationRun.open(
        config.run_dir, config, config.checkpoint, resume=config.resume, overwrite=config.overwrite
    )
    if len(run.finished) < len(tasks) * config.rollouts:
        with model_seat(config, run) if config.player == "model" else nullcontext(oracle_seat(config, tasks)) as seat:
            play(
                tasks,
                config.rollouts,
                seat.policy,
                seat.playing,
                seat.gate,
                on_episode=run.add,
                liveness=seat.liveness,
                finished=run.finished,
            )
    evaluation = run.close()
    print_tables(tables(scope([evaluation])), Console())
    if evaluation.broken:
        raise ServerError(f"{len(evaluation.broken)} episodes broke with the server and are in no rate above")


@dataclass(frozen=True)
class Seat:
    """Who plays: what samples, how it plays, how much of it at once, and whether its server is still there."""

    policy: Policy
    playing: PlayConfig
    gate: Gate
    liveness: Liveness


def oracle_seat(config: Config, tasks: Sequence[Task]) -> Seat:
    tokenizer = load_tokenizer(config.backend.tokenizer or str(TINY_MODEL))
    template = ChatTemplate(tokenizer, stop_token_ids(tokenizer))
    policy = Policy(PlayerClient(oracle, template, tasks, config.max_turns), version=0)
    playing = play_config(config, template, config.backend.context_length or sys.maxsize)
    return Seat(policy, playing, Gate(None), Liveness())


@contextmanager
def model_seat(config: Config, run: EvaluationRun) -> Iterator[Seat]:
    with connect(config.backend, config.run_dir, rank=config.rank, init=run.checkpoint) as backend:
        run.record_server(backend.server)
        model = backend.adapter(config.rank, seed=0)  # an untrained one changes nothing
        policy = sync_policy(backend, model, version=0)
        playing = play_config(config, ChatTemplate.of(backend), backend.context_length)
        yield Seat(policy, playing, Gate(backend.turns_in_flight), backend.liveness)


def play_config(config: Config, template: ChatTemplate, context_length: int) -> PlayConfig:
    return PlayConfig(
        environment=find_environment(config.env),
        template=template,
        max_turns=config.max_turns,
        max_reply_tokens=config.max_reply_tokens,
        temperature=config.temperature,
        context_length=context_length,
        seed=config.seed,
        retries=config.retries,
    )


def report(config: ReportConfig) -> None:
    console = Console()
    what = scope(load_evaluations(config.evaluations, config.depths), config.budgets, config.pass_at)
    print_tables(tables(what), console)
    for path in (directory.path for evaluation in what.evaluations for directory in evaluation.directories):
        if not (path / "summary.json").exists():
            console.print(f"[yellow]warning:[/] {escape(str(path))} is not finished, and short episodes end first")
    if config.out is not None:
        from tinker_client.evaluation.page import write_report  # noqa: PLC0415 - matplotlib, which nothing else needs

        write_report(what, config.out)
        console.print(f"written: {config.out / 'report.html'}, and the tables and pictures beside it", soft_wrap=True)


if __name__ == "__main__":
    with exit_on_user_error():
        if sys.argv[1:2] == ["report"]:
            report(tyro.cli(ReportConfig, args=sys.argv[2:], prog="evaluate.py report"))
        else:
            with resumable():
                main(tyro.cli(Config))
